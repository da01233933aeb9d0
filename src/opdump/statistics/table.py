"""The table of statistics: the name of each in a config, its heading, and the function that computes it.

The digests (`md5`, `hash`, `xxh3`) are hexadecimal, of the elements in C order, little-endian, before any widening. The digest of an
empty tensor is the digest of zero bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opdump.extensions import Registry

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.kernels import Summary
    from opdump.records import StatisticValue


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
    from opdump.kernels import DigestBatch  # only if a digest is computed: kernels import numpy

    elements = _elements_of(array)
    batch = DigestBatch((name,))
    return batch.digests(batch.add(elements.ctypes.data, elements.nbytes, elements.itemsize))[name]


def _elements_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    import numpy as np

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
    import numpy as np

    counts: Any = columns.count
    averages = np.full(len(counts), np.nan)
    np.divide(columns.sum, counts, out=averages, where=counts != 0)
    return averages


def _norms(columns: Summary) -> npt.NDArray[Any]:
    import numpy as np

    norms: npt.NDArray[Any] = np.sqrt(columns.sum_squares)
    return norms


# Two of the names are misleading: "negative zero count" counts the elements below zero and "positive zero count" those
# above; zeros of either sign are in "zero count".
OWN: Final[Mapping[str, Statistic]] = MappingProxyType(
    {
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
)
"""In the order of the columns of a device."""

STATISTICS: Final[Registry[Statistic]] = Registry(
    "opdump.statistics", dict.fromkeys(OWN, "opdump.statistics.table:OWN"), loaded=OWN
)

DEFAULT: Final = ("max", "min", "l2norm")
"""The default of `statistic_category`."""
DEVICE_DEFAULT: Final = ("max", "min", "avg", "nan count", "negative inf count", "positive inf count")
"""The default of `dump_stats`."""

_OWN_HEADINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        heading.lower(): name
        for name, each in OWN.items()
        for heading in (each.heading, each.device_heading)
        if heading and not each.same_as
    }
)
_OWN_DUMP_STATS: Final[Mapping[str, str]] = MappingProxyType(
    {each.dump_stats: name for name, each in OWN.items() if each.dump_stats}
)


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
