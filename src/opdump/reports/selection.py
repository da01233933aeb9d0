"""What part of a dump a person asked to see."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from opdump.catalog import Catalog, Execution
from opdump.errors import NotInDumpError
from opdump.layouts.ascend.payload import DamagedPayload, DumpPayload
from opdump.layouts.mindspore_sync.payload import FilePayload
from opdump.records import OpRecord, TensorRecord
from opdump.reports.operator_choice import OperatorChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which executions to show. None means any; a `limit` of 0 means all of them.

    `op` is a name in any of the forms of `OperatorChoice`;
    `source` is `FILE:LINE` or `FILE`.
    """

    op: str | None = None
    source: str | None = None
    step: int | None = None
    rank: int | None = None
    include_skipped: bool = False
    limit: int = 0


def selected(catalog: Catalog, selection: Selection) -> list[Execution]:
    """The executions that were asked for, in execution order, `limit` of them at most, and one more if there are more.

    Raises NotInDumpError where an operator, a line, a step or a rank was named that the dump does not hold.
    """
    found = each_selected(catalog, selection)
    return list(itertools.islice(found, selection.limit + 1) if selection.limit else found)


def each_selected(catalog: Catalog, selection: Selection) -> Iterator[Execution]:
    """All that were asked for, whatever the limit, one step in memory at a time. Raises as `selected` does, at once."""
    _check_place(catalog, selection)
    meanings = [None] if selection.op is None else OperatorChoice.parse(selection.op).readings()
    for meant in meanings:
        found = _matching(catalog, selection, meant)
        first = next(found, None)
        if first is not None:
            return itertools.chain([first], found)
    if selection.op is not None and not selection.include_skipped:
        # What an operator without a kernel made is named too, by those that read it.
        return each_selected(catalog, replace(selection, include_skipped=True))
    if selection.op is not None:
        catalog.op(selection.op, selection.step, selection.rank)  # says which names are near
    if selection.source is not None:
        raise NotInDumpError(
            f"{catalog.path}: no operator came from {selection.source}{_known_files(catalog, selection)}"
        )
    return iter(())


def file_of(record: TensorRecord) -> str | None:
    """The file that holds a tensor's elements, under the path that the dump was opened with; None where there is none."""
    payload = record.payload
    if isinstance(payload, FilePayload | DumpPayload | DamagedPayload):
        return os.path.join(payload.root, payload.relative)
    return None


def _check_place(catalog: Catalog, selection: Selection) -> None:
    if selection.rank is not None:
        catalog.steps_of(selection.rank)  # raises where there is no such rank
    if selection.step is not None and selection.step not in catalog.steps:
        held = ", ".join(map(str, catalog.steps[:20])) or "none"
        raise NotInDumpError(f"{catalog.path}: holds no step {selection.step}; it holds {held}")


def _matching(catalog: Catalog, selection: Selection, meant: Callable[[Execution], bool] | None) -> Iterator[Execution]:
    skipped = selection.include_skipped
    for rank in catalog.ranks if selection.rank is None else (selection.rank,):
        for step in catalog.steps_of(rank) if selection.step is None else (selection.step,):
            wanted = None
            if selection.source is not None:
                found = catalog.at_source(selection.source, step=step, rank=rank, include_skipped=skipped)
                wanted = {_key(op) for op in found}
            for execution in catalog.executions(step=step, rank=rank, include_skipped=skipped):
                op = execution.op
                if wanted is not None and _key(op) not in wanted:
                    continue
                if meant is None or meant(execution):
                    yield execution


def _key(op: OpRecord) -> tuple[str, int, int]:
    return op.op_name, op.occurrence, op.timestamp


def _known_files(catalog: Catalog, selection: Selection) -> str:
    files = {
        frame.file
        for op in catalog.ops(step=selection.step, rank=selection.rank, include_skipped=True)
        for frame in op.stack
    }
    if not files:
        return "; the dump holds no source lines"
    shown = sorted(files)[:5]
    more = f" and {len(files) - 5} more files" if len(files) > 5 else ""
    return f"; the operators of the dump came from {', '.join(shown)}{more}"
