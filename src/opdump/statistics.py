"""The named statistics of the config dialects: `STATISTICS` defines them, and a summary of a tensor or its elements provide their
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.extensions import Registry
from opdump.kernels import DigestBatch, Summary
from opdump.kernels.reference import compensated
from opdump.records import Statistics, StatisticValue, format_statistic

# The table of statistics: the name of each in a config, its heading, and the function that computes it.
#
# The digests (`md5`, `hash`, `xxh3`) are hexadecimal, of the elements in C order, little-endian, before any widening. The digest of an
# empty tensor is the digest of zero bytes.


def md5(array: npt.NDArray[Any]) -> str:
    """MD5 of the whole buffer."""
    import hashlib  # only if a digest is computed: the import starts OpenSSL

    return hashlib.md5(_elements_of(array).view("u1").data, usedforsecurity=False).hexdigest()


def sha1(array: npt.NDArray[Any]) -> str:
    """SHA1 of a buffer of up to 20480 elements; of a larger one, SHA1 of the joined digests of slices of 20480 elements."""
    return _by_kernel("hash", array)


def xxh3(array: npt.NDArray[Any]) -> str:
    """XXH3 with 128 bits of the whole buffer, as `xxh128sum` prints it: shows whether two tensors are equal, but is not a secure
    hash.
    """
    return _by_kernel("xxh3", array)


def _by_kernel(name: str, array: npt.NDArray[Any]) -> str:
    elements = _elements_of(array)
    batch = DigestBatch((name,))
    return batch.digests(batch.add(elements.ctypes.data, elements.nbytes, elements.itemsize))[name]


def _elements_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1)


# The statistics, one row each, and those of installed packages (entry points of the group `opdump.statistics`).
#
# Names are those of `statistic_category` of data_dump.json; headings those of statistic.csv and of the tables of a device
# (docs/device-dumps.md#the-csv-of-an-operator).


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One statistic. One of the `of_...` functions computes it; which one depends on the input that it needs.

    A summary is always computed for every tensor; elements are then read once more. Functions may be called in any thread.
    """

    heading: str
    """Its column in statistic.csv."""
    kind: type[float | int | str] = float
    """Kind of its values. Numbers are printed with 6 significant digits (`%g`), counts as integers."""
    of_summary: Callable[[Summary], float] | None = None
    of_summaries: Callable[[Summary], npt.NDArray[Any]] | None = None
    """The same for many tensors at once, with the fields as columns. Needed if `of_summary` does not work on columns."""
    of_elements: Callable[[npt.NDArray[Any]], StatisticValue] | None = None
    """From a read-only array; bfloat16 and smaller floats are passed as float32."""
    of_bytes: Callable[[npt.NDArray[Any]], StatisticValue] | None = None
    """From the elements as stored in memory, before any widening: bfloat16 as uint16."""
    on_device: bool = False
    """Whether `stat_calc_mode: device` offers it."""
    device_heading: str = ""
    """Its column in the operator tables of a device, if it differs from `heading`."""
    dump_stats: str = ""
    """Its name in `dump_stats` of acl.json; empty if there is none."""
    same_as: str = ""
    """The statistic that this name is another spelling of."""


def _averages(columns: Summary) -> npt.NDArray[Any]:
    counts: Any = columns.count
    averages = np.full(len(counts), np.nan)
    np.divide(columns.sum, counts, out=averages, where=counts != 0)
    return averages


def _norms(columns: Summary) -> npt.NDArray[Any]:
    norms: npt.NDArray[Any] = np.sqrt(columns.sum_squares)
    return norms


# Two of the names are misleading: "negative zero count" counts the elements below zero and "positive zero count" those
# above; zeros of either sign are in "zero count".
OWN: Final[Mapping[str, Statistic]] = {
    "max": Statistic(heading="Max Value", of_summary=lambda s: s.max, on_device=True, dump_stats="Max"),
    "min": Statistic(heading="Min Value", of_summary=lambda s: s.min, on_device=True, dump_stats="Min"),
    "avg": Statistic(
        heading="Avg Value",
        of_summary=lambda s: s.sum / s.count if s.count else math.nan,
        of_summaries=_averages,
        on_device=True,
        dump_stats="Avg",
    ),
    "count": Statistic(heading="Count", kind=int, of_summary=lambda s: s.count),
    "negative zero count": Statistic(heading="Negative Zero Count", kind=int, of_summary=lambda s: s.negative),
    "positive zero count": Statistic(heading="Positive Zero Count", kind=int, of_summary=lambda s: s.positive),
    "nan count": Statistic(
        heading="NaN Count", kind=int, of_summary=lambda s: s.nan, device_heading="Nan Count", dump_stats="Nan"
    ),
    "negative inf count": Statistic(
        heading="Negative Inf Count", kind=int, of_summary=lambda s: s.negative_inf, dump_stats="Negative Inf"
    ),
    "positive inf count": Statistic(
        heading="Positive Inf Count", kind=int, of_summary=lambda s: s.positive_inf, dump_stats="Positive Inf"
    ),
    "zero count": Statistic(heading="Zero Count", kind=int, of_summary=lambda s: s.zero),
    "md5": Statistic(heading="MD5", kind=str, of_bytes=md5),
    "l2norm": Statistic(
        heading="L2Norm Value",
        of_summary=lambda s: math.sqrt(s.sum_squares),
        of_summaries=_norms,
        on_device=True,
        device_heading="l2norm",
        dump_stats="L2norm",
    ),
    "hash": Statistic(heading="SHA1", kind=str, of_bytes=sha1),
    "hash:sha1": Statistic(heading="SHA1", kind=str, same_as="hash"),
    "hash:md5": Statistic(heading="MD5", kind=str, same_as="md5"),
    "xxh3": Statistic(heading="XXH3", kind=str, of_bytes=xxh3),
}
"""In the order of the columns of a device."""

STATISTICS: Final[Registry[Statistic]] = Registry(
    "opdump.statistics", dict.fromkeys(OWN, "opdump.statistics:OWN"), loaded=OWN
)

DEFAULT: Final = ("max", "min", "l2norm")
"""The default of `statistic_category`."""
DEVICE_DEFAULT: Final = ("max", "min", "avg", "nan count", "negative inf count", "positive inf count")
"""The default of `dump_stats`."""

_OWN_HEADINGS: Final[Mapping[str, str]] = {
    heading.lower(): name
    for name, each in OWN.items()
    for heading in (each.heading, each.device_heading)
    if heading and not each.same_as
}
_OWN_DUMP_STATS: Final[Mapping[str, str]] = {each.dump_stats: name for name, each in OWN.items() if each.dump_stats}


def statistic(name: str) -> Statistic:
    """The statistic of that name. Raises KeyError if there is none, and ExtensionError if that of a package cannot be loaded."""
    own = OWN.get(name)
    return STATISTICS.load(name) if own is None else own


def one_spelling(names: Iterable[str]) -> tuple[str, ...]:
    """Each statistic once, by its main spelling: `hash:md5` becomes `md5`, `hash:sha1` becomes `hash`."""
    return tuple(dict.fromkeys(statistic(name).same_as or name for name in names))


def name_of_heading(heading: str) -> str | None:
    """The statistic of a column, case-insensitive (older files write `Nan Count`); None for other columns."""
    wanted = heading.strip().lower()
    if not wanted:
        return None
    return _OWN_HEADINGS.get(wanted) or next(
        (
            name
            for name, each in STATISTICS.loaded().items()
            if wanted in (each.heading.lower(), each.device_heading.lower())
        ),
        None,
    )


def unknown_names(names: Iterable[object]) -> list[object]:
    """The names that are not statistics. Installed packages are searched if one is not opdump's own."""
    return [name for name in names if not isinstance(name, str) or name not in STATISTICS]


def dump_stats(names: Iterable[str]) -> Mapping[str, str]:
    """The valid values of `dump_stats`, with the statistic of each name, in the order of the columns.

    Installed packages are searched if one of `names` is not opdump's own.
    """
    if all(name in _OWN_DUMP_STATS for name in names):
        return _OWN_DUMP_STATS
    return {each.dump_stats: name for name, each in STATISTICS.loaded().items() if each.dump_stats}


# The statistics of a tensor: from its summary, from a device, from its elements, and of a whole from its parts.

# Max and min as a device computes them, for its statistics files.
#
# A device starts with the first element and replaces it by each later one that compares greater (less). So a NaN at the start
# stays, a later NaN is skipped, and the first zero counts among zeros of either sign; integers keep all their digits. See
# docs/device-dumps.md#the-csv-of-an-operator.

_EXACT_IN_FLOAT64 = 2**53
_LOOKED_AT = 1 << 14

Extremes = tuple[float | int, float | int]
"""Max and min. An int if a float64 cannot represent the number."""


def has_device_extremes(summary: Summary, *, is_float: bool) -> bool:
    """Whether max and min of a summary equal those of a device, so that the elements need not be read."""
    if is_float:
        return not summary.nan and summary.max != 0 and summary.min != 0
    return max(abs(summary.max), abs(summary.min)) < _EXACT_IN_FLOAT64


def have_device_extremes(columns: Summary, *, are_floats: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The same for many tensors: the fields are columns of their summaries, (n,), with a flag per tensor for float elements."""
    of_all: Any = columns
    own = (of_all.nan == 0) & (of_all.max != 0) & (of_all.min != 0)
    # An integer is never NaN, so a tensor with NaN has floats.
    exact = np.maximum(np.abs(of_all.max), np.abs(of_all.min)) < _EXACT_IN_FLOAT64
    found: npt.NDArray[np.bool_] = np.where(are_floats, own, exact)
    return found


def device_extremes(array: npt.NDArray[Any], summary: Summary) -> Extremes | None:
    """Max and min of an array of any shape with this summary; None if they equal those of the summary.

    None for no elements. bfloat16 must be widened to float32.
    """
    if not array.size or has_device_extremes(summary, is_float=array.dtype.kind == "f"):
        return None
    if array.dtype.kind != "f":
        return int(array.max()), int(array.min())
    flat = array.reshape(-1)
    if np.isnan(flat[0]):
        return float("nan"), float("nan")
    numbers = flat[~np.isnan(flat)] if summary.nan else flat
    greatest, least = (float(numbers.max()), float(numbers.min())) if summary.nan else (summary.max, summary.min)
    if greatest == 0 or least == 0:
        zero = _first_zero(numbers)
        greatest, least = greatest or zero, least or zero
    return greatest, least


def _first_zero(flat: npt.NDArray[Any]) -> float:
    """The first zero, with its sign; after a rectifier it is usually near the start."""
    for start in range(0, flat.size, _LOOKED_AT):
        part = flat[start : start + _LOOKED_AT]
        places = part == 0
        place = int(places.argmax())
        if places[place]:
            return float(part[place])
    return 0.0


# SummaryStatistics: the named statistics of one summary.

_FROM_SUMMARY: Final = tuple(name for name, each in OWN.items() if each.of_summary is not None)
_SHOWN: Final = ("max", "min", "avg", "l2norm", "count")
_SHOWN_IF_ANY: Final = ("nan count", "negative inf count", "positive inf count")
_NO_OTHERS: Final[Mapping[str, StatisticValue]] = {}


class SummaryStatistics(Statistics):
    """Every statistic of a summary, and those that were computed in addition, by the config's spelling.

    Values are computed on access. `avg` and `l2norm` are in double precision and propagate NaN and Inf; for no elements `avg` is
    NaN and `l2norm` 0. Two mappings with NaN in the same places are equal. `others` has the digests (`md5`, `hash` and `xxh3`, if
    computed) and the statistics of installed packages.
    """

    __slots__ = ("extremes", "others", "summary")

    def __init__(
        self, summary: Summary, others: Mapping[str, StatisticValue] | None = None, extremes: Extremes | None = None
    ) -> None:
        """`extremes` are max and min by the rules of a device if they differ; they are not part of the mapping."""
        self.summary: Final = summary
        self.extremes: Final = extremes
        self.others: Final = others or _NO_OTHERS

    def __reduce__(self) -> tuple[Any, ...]:
        """Comparisons run in other processes, too, and a mapping view cannot be sent to them."""
        return SummaryStatistics, (self.summary, dict(self.others), self.extremes)

    def __getitem__(self, name: str, /) -> Any:
        own = OWN.get(name)
        if own is None or own.of_summary is None:
            return self.others[(own and own.same_as) or name]
        return own.kind(own.of_summary(self.summary))

    def __iter__(self) -> Iterator[str]:
        yield from _FROM_SUMMARY
        yield from self.others

    def __len__(self) -> int:
        return len(_FROM_SUMMARY) + len(self.others)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        if isinstance(other, SummaryStatistics) and (self.summary, self.others) == (other.summary, other.others):
            return True
        return self.keys() == other.keys() and all(_same(self[name], other[name]) for name in self)

    __hash__ = None  # type: ignore[assignment]  # equal mappings of other types have no hash to agree with

    def __repr__(self) -> str:
        names = [*_SHOWN, *(name for name in _SHOWN_IF_ANY if self[name])]
        shown = ", ".join(f"{name} {format_statistic(self[name])}" for name in names)
        return f"SummaryStatistics({shown})"


def _same(one: StatisticValue, other: StatisticValue) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return one == other


# Statistics of a whole from the statistics of its parts: the shards of a tensor on several ranks, or the batches of a step.

_NOT_COUNTS: Final = ("max", "min", "sum", "sum_squares")


def merge_statistics(parts: Iterable[Mapping[str, StatisticValue]]) -> SummaryStatistics:
    """The statistics of all elements of `parts` together; each part is the `statistics` of a tensor record.

    Counts, `max` and `min` are exactly those of the concatenated tensor. `avg` and `l2norm` come from the sums of the parts, which are added with
    compensation (Neumaier): they differ from those of the concatenated tensor only in the rounding of the parts' own sums. NaN and infinities
    are treated as in one tensor: NaN in any part makes `max`, `min`, `avg` and `l2norm` NaN. Empty parts change nothing, and no parts are a
    tensor without elements. Digests and statistics of packages cannot be merged, and are left out.

    Raises ValueError for statistics without a summary: of complex tensors, of dumps without opdump's index.

    >>> from opdump.kernels import summarise
    >>> import numpy as np
    >>> halves = np.arange(3.0), np.arange(3.0, 7.0)
    >>> merge_statistics(SummaryStatistics(summarise(half)) for half in halves)["avg"]
    3.0
    """
    summaries = []
    for number, part in enumerate(parts):
        if not isinstance(part, SummaryStatistics):
            named = ", ".join(part) or "none"
            raise ValueError(
                f"part {number} has no summary that could be merged, only these statistics: {named}; expected the statistics of a tensor in "
                "opdump's index (`opdump complete` makes one for a dump that MindSpore wrote)"
            )
        summaries.append(part.summary)
    return SummaryStatistics(_merged(summaries))


def _merged(summaries: list[Summary]) -> Summary:
    has_nan = any(each.nan for each in summaries)
    fields: dict[str, float] = {
        name: math.fsum(getattr(each, name) for each in summaries)
        for name in Summary._fields
        if name not in _NOT_COUNTS
    }
    return Summary(
        **fields,
        max=math.nan if has_nan else max((each.max for each in summaries), default=-math.inf),
        min=math.nan if has_nan else min((each.min for each in summaries), default=math.inf),
        sum=compensated(each.sum for each in summaries),
        sum_squares=compensated(each.sum_squares for each in summaries),
    )


# ElementStatistics: the selected statistics that opdump's own summary does not provide.

Array = npt.NDArray[Any]
Values = dict[str, StatisticValue]


class ElementStatistics:
    """Digests, and statistics of installed packages. False if no elements need to be read.

    If a function of a package raises for a tensor, that tensor lacks the statistic, and one warning is printed.
    """

    def __init__(self, names: Iterable[str]) -> None:
        chosen = {name: statistic(name) for name in sorted(one_spelling(names))}
        self._of_bytes = {name: each for name, each in chosen.items() if each.of_bytes is not None}
        self._of_elements = {name: each for name, each in chosen.items() if each.of_elements is not None}
        self.of_summary = {name: each for name, each in chosen.items() if each.of_summary and name not in OWN}
        """The package statistics that a summary provides."""
        self._failed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._of_bytes or self._of_elements)

    @property
    def digests_alone(self) -> tuple[str, ...]:
        """The names of the digests if nothing else is computed from elements: the argument for a `DigestBatch`."""
        own_alone = self._of_bytes.keys() <= OWN.keys() and not self._of_elements
        return tuple(self._of_bytes) if own_alone else ()

    def of(self, raw: Array, widened: Callable[[], Array] | None = None) -> Values:
        """The values for one tensor, from its elements as stored in memory. `widened` returns them in a numpy type if `raw` has
        none.
        """
        found: Values = {}
        for name, each in self._of_bytes.items():
            self._add(found, name, each, each.of_bytes, raw)
        if self._of_elements:
            elements = (raw if widened is None else widened()).view()
            elements.flags.writeable = False  # it may be memory of the program
            for name, each in self._of_elements.items():
                self._add(found, name, each, each.of_elements, elements)
        return found

    def from_summary(self, summary: Summary) -> Values:
        """The values of `of_summary` for one tensor."""
        found: Values = {}
        for name, each in self.of_summary.items():
            self._add(found, name, each, each.of_summary, summary)
        return found

    def _add(self, found: Values, name: str, each: Statistic, function: Callable[[Any], Any] | None, of: Any) -> None:
        assert function is not None
        try:
            with np.errstate(all="ignore"):
                found[name] = each.kind(function(of))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            if name in OWN:
                raise
            if name not in self._failed:
                import logging

                self._failed.add(name)
                reason = f"{type(error).__name__}: {error}"
                logging.getLogger("opdump").warning(
                    "the statistic %r of a tensor is left out: %s (reported once)", name, reason
                )
