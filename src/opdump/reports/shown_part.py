"""What of a dump is shown: the part that the user selected, and the statistics of a tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opdump.call_stacks import shortened
from opdump.catalog.catalog import Catalog, Execution
from opdump.checks.not_finite import MEASURES, not_finite
from opdump.errors import NotInDumpError, OpdumpError
from opdump.kernels import DTYPE_CODES, summarise
from opdump.records import (
    DamagedPayload,
    StatisticValue,
    SupportsFile,
    SupportsInspection,
    TensorRecord,
    format_statistic,
)
from opdump.statistics import OWN, SummaryStatistics

# The part of a dump that the user selected.


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


# The statistics of a tensor that reports show.

SHOWN = MEASURES


def statistics_of(record: TensorRecord, damaged: list[str]) -> Mapping[str, StatisticValue]:
    """The recorded statistics or, if there are none, those of the elements in the file, which may be a sample.

    Empty for complex tensors and unreadable files. An unreadable file is added to `damaged`, unless the problems of the dump list
    it already. If statistics were recorded, only the header and the size of the file are checked.
    """
    if record.statistics:
        damage = damage_of(record)
        if damage:
            damaged.append(damage)
        return record.statistics
    if record.payload is None or isinstance(record.payload, DamagedPayload):
        return {}
    try:
        array = record.payload.to_host()
    except OpdumpError as error:
        damaged.append(str(error))
        return {}
    return SummaryStatistics(summarise(array)) if array.dtype.name in DTYPE_CODES else {}


def damage_of(record: TensorRecord) -> str:
    """Why the elements of a tensor cannot be read, judged by the header and the size of the file, without reading elements. Empty
    if they can be read, or do not exist.

    The statistics of an index stay valid if their file is damaged.
    """
    payload = record.payload
    try:
        if payload is not None and isinstance(payload, SupportsInspection):
            payload.inspect()
    except OpdumpError as error:
        return str(error)
    return ""


def added_statistics(records: Iterable[TensorRecord]) -> tuple[str, ...]:
    """The statistics of these tensors that a package added during recording; it need not be installed here."""
    return tuple(sorted({name for record in records for name in record.statistics if name not in OWN}))


def shown_statistics(statistics: Mapping[str, StatisticValue], added: Sequence[str]) -> list[str]:
    """One text for each of SHOWN, one for `not_finite` and one for each of `added`; empty if a statistic is unknown."""
    count = not_finite(statistics)
    shown, others = ([_text(statistics, name) for name in names] for names in (SHOWN, added))
    return [*shown, "" if count is None else str(count), *others]


def _text(statistics: Mapping[str, StatisticValue], name: str) -> str:
    return format_statistic(statistics[name]) if name in statistics else ""


# JSON lacks NaN and infinities: they are the strings "nan", "inf" and "-inf".


def finite_number(value: StatisticValue) -> StatisticValue:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def finite_json(value: Any) -> Any:
    """The same JSON value, with NaN and infinities as strings."""
    if isinstance(value, float):
        return finite_number(value)
    if isinstance(value, Mapping):
        return {name: finite_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(item) for item in value]
    return value
