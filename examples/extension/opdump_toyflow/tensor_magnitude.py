"""A watchpoint: a tensor that contains a value of large magnitude."""

from __future__ import annotations

from collections.abc import Mapping

from opdump.checks.watchpoints import Condition, Interval, Measured, Parameter, above


def magnitude(measured: Measured, _values: Mapping[str, float], _exact: bool) -> Interval:
    """The largest absolute value, from max and min."""
    low, high = measured.min(), measured.max()
    return Interval(max(abs(low.high), abs(high.low)), max(abs(low.low), abs(high.high)))


TENSOR_MAGNITUDE = Condition(
    id="tensor_magnitude",
    target="tensor",
    parameters=(Parameter(name="magnitude_gt", range="amount", judge=above("magnitude_gt", magnitude)),),
)
