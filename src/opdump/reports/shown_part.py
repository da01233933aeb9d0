"""The part of a dump that the user selected."""

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
    """The executions to show. None selects any; a `limit` of 0 selects all.

    `op` is a name in any form that `Catalog.ops` accepts; `source` is `FILE:LINE` or `FILE`.
    """

    op: str | None = None
    source: str | None = None
    step: int | None = None
    rank: int | None = None
    include_skipped: bool = False
    limit: int = 0


def selected(catalog: Catalog, selection: ShownPart) -> list[Execution]:
    """The selected executions in execution order: at most `limit` of them, and one more if there are more.

    Raises NotInDumpError if the dump does not contain the given operator, line, step or rank.
    """
    found = each_selected(catalog, selection)
    return list(itertools.islice(found, selection.limit + 1) if selection.limit else found)


def each_selected(catalog: Catalog, selection: ShownPart) -> Iterator[Execution]:
    """All selected executions regardless of the limit, with one step in memory at a time. Raises like `selected`, immediately."""
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
    """The file with a tensor's elements, under the path that the dump was opened with; None if there is none."""
    payload = record.payload
    return payload.file if payload is not None and isinstance(payload, SupportsFile) else None


def _check_place(catalog: Catalog, selection: ShownPart) -> None:
    if selection.rank is not None:
        catalog.steps_of(selection.rank)  # raises if there is no such rank
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
