"""The statistics that reports show of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opdump.checks.not_finite import MEASURES, not_finite
from opdump.errors import OpdumpError
from opdump.kernels import DTYPE_CODES, summarise
from opdump.records import DamagedPayload, StatisticValue, SupportsInspection, TensorRecord
from opdump.statistics import OWN, SummaryStatistics, format_statistic

SHOWN = MEASURES


def statistics_of(record: TensorRecord, damaged: list[str]) -> Mapping[str, StatisticValue]:
    """The recorded statistics; where none were recorded, those of the elements in the file, which may be a sample. Empty for complex tensors, and
    where the file cannot be read. `damaged` is told of a file that cannot be read, unless the problems of the dump call it damaged already;
    where statistics were recorded, its header and size are looked at.
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
    """Why the elements of a tensor cannot be read, as far as its file's header and size tell: no element is read, and statistics of an index
    are as good as ever where their file is not. Empty where they can be read, or are not there.
    """
    payload = record.payload
    try:
        if payload is not None and isinstance(payload, SupportsInspection):
            payload.inspect()
    except OpdumpError as error:
        return str(error)
    return ""


def added_statistics(records: Iterable[TensorRecord]) -> tuple[str, ...]:
    """The statistics of these tensors that a package added when they were recorded; it need not be installed here."""
    return tuple(sorted({name for record in records for name in record.statistics if name not in OWN}))


def shown_statistics(statistics: Mapping[str, StatisticValue], added: Sequence[str]) -> list[str]:
    """One text for each of SHOWN, one for `not_finite` and one for each of `added`; empty where a statistic is unknown."""
    count = not_finite(statistics)
    shown, others = ([_text(statistics, name) for name in names] for names in (SHOWN, added))
    return [*shown, "" if count is None else str(count), *others]


def _text(statistics: Mapping[str, StatisticValue], name: str) -> str:
    return format_statistic(statistics[name]) if name in statistics else ""
