"""What part of a dump a person asked to see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from opdump.call_stacks import shortened
from opdump.catalog.catalog import Catalog, Execution
from opdump.errors import NotInDumpError
from opdump.records import SupportsFile, TensorRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """Which executions to show. None means any; a `limit` of 0 means all of them.

    `op` is a name in any of the forms of `Catalog.ops`;
    `source` is `FILE:LINE` or `FILE`.
    """

    op: str | None = None
    source: str | None = None
    step: int | None = None
    rank: int | None = None
    include_skipped: bool = False
    limit: int = 0


def selected(catalog: Catalog, selection: ShownPart) -> list[Execution]:
    """The executions that were asked for, in execution order, `limit` of them at most, and one more if there are more.

    Raises NotInDumpError where an operator, a line, a step or a rank was named that the dump does not hold.
    """
    found = each_selected(catalog, selection)
    return list(itertools.islice(found, selection.limit + 1) if selection.limit else found)


def each_selected(catalog: Catalog, selection: ShownPart) -> Iterator[Execution]:
    """All that were asked for, whatever the limit, one step in memory at a time. Raises as `selected` does, at once."""
    _check_place(catalog, selection)
    found = catalog.ops(
        selection.op,
        step=selection.step,
        rank=selection.rank,
        source=selection.source,
        include_skipped=selection.include_skipped,
    )
    first = next(found, None)
    if first is None and selection.source is not None:
        raise NotInDumpError(
            f"{catalog.path}: no operator came from {selection.source}{_known_files(catalog, selection)}"
        )
    return itertools.chain(() if first is None else (first,), found)


def file_of(record: TensorRecord) -> str | None:
    """The file that holds a tensor's elements, under the path that the dump was opened with; None where there is none."""
    payload = record.payload
    return payload.file if payload is not None and isinstance(payload, SupportsFile) else None


def _check_place(catalog: Catalog, selection: ShownPart) -> None:
    if selection.rank is not None:
        catalog.steps_of(selection.rank)  # raises where there is no such rank
    if selection.step is not None and selection.step not in catalog.steps:
        held = ", ".join(map(str, catalog.steps[:20])) or "none"
        raise NotInDumpError(f"{catalog.path}: holds no step {selection.step}; it holds {held}")


def _known_files(catalog: Catalog, selection: ShownPart) -> str:
    files = {
        frame.file
        for op in catalog.ops(step=selection.step, rank=selection.rank, include_skipped=True)
        for frame in shortened(op.stack).frames
    }
    if not files:
        return "; the dump holds no source lines"
    shown = sorted(files)[:5]
    more = f" and {len(files) - 5} more files" if len(files) > 5 else ""
    return f"; the operators of the dump came from {', '.join(shown)}{more}"
