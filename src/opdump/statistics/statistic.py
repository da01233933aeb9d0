"""Statistic: one statistic of a tensor, with its names, its formula and its columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.kernels import Summary
    from opdump.records import StatisticValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One statistic. It is computed by one of the `of_...` functions, from what that needs to see.

    A summary is taken of every tensor in any case; elements are looked at one time more. Functions may be called in any thread.
    """

    heading: str
    """Its column in statistic.csv."""
    kind: type[float | int | str] = float
    """Of its values. Numbers are printed with 6 significant digits (`%g`), counts as whole numbers."""
    of_summary: Callable[[Summary], float] | None = None
    of_summaries: Callable[[Summary], npt.NDArray[Any]] | None = None
    """The same of many tensors at once: the fields of what it is given are columns. Needed where `of_summary` does not do for them."""
    of_elements: Callable[[npt.NDArray[Any]], StatisticValue] | None = None
    """From an array that must not be written into; bfloat16 and smaller floats come as float32."""
    of_bytes: Callable[[npt.NDArray[Any]], StatisticValue] | None = None
    """From the elements as they lie in memory, before any widening: bfloat16 as uint16."""
    on_device: bool = False
    """Whether `stat_calc_mode: device` offers it."""
    device_heading: str = ""
    """Its column in the operator tables of a device, where that is not `heading`."""
    dump_stats: str = ""
    """What `dump_stats` of acl.json calls it; empty where that does not know it."""
    same_as: str = ""
    """The statistic that this name is another spelling of."""
