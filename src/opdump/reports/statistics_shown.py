"""The statistics of a tensor that reports show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from opdump.checks.not_finite import MEASURES, not_finite
from opdump.errors import OpdumpError
from opdump.kernels import DTYPE_CODES, summarise
from opdump.records import DamagedPayload, StatisticValue, SupportsInspection, TensorRecord
from opdump.statistics import OWN, SummaryStatistics, format_statistic

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
