"""What watchpoints check: a condition with its parameters; those of MindSpore Insight, one row each, and those of installed packages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from opdump.checks.watchpoints.measured import Interval, Measured
from opdump.extensions import Registry

# Parameter: a threshold of a condition, or an additional number in its formula.

Values = Mapping[str, float]
Range = Literal["percentage", "number", "amount", "bool"]
"""`percentage`: 0 to 100; `number`: finite; `amount`: finite, 0 or more."""

_EXPECTED: Final[Mapping[Range, str]] = {
    "percentage": "a percentage from 0 to 100",
    "number": "a finite number",
    "amount": "a finite number, 0 or more",
    "bool": "true or false",
}


class Judgement(NamedTuple):
    """Whether a parameter is satisfied; None if the dump does not have enough data to decide. `actual` is the number that was
    compared.
    """

    hit: bool | None
    actual: Interval


Judge = Callable[[Measured, Values], Judgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. With `judge` it is a threshold, of which at least one must be given; without, a number that others use.

    `default` applies if no threshold is given; None if the parameter applies only when given.
    """

    name: str
    range: Range
    default: float | None = None
    judge: Judge | None = None
    needs: tuple[str, ...] = ()
    """Parameters that must be given together with it."""
    needs_elements: bool = False
    """Whether statistics may not be enough to decide."""

    def prepare(self, measured: Measured, values: Values) -> None:
        """Compute what the threshold needs from the elements, while they are available."""
        if self.needs_elements and isinstance(self.judge, Threshold):
            self.judge.measure(measured, values, True)

    @property
    def is_threshold(self) -> bool:
        return self.judge is not None

    def value_of(self, text: str) -> float:
        """The value of a text. Raises ValueError, with the expected range, for an invalid one."""
        expected = _EXPECTED[self.range]
        if self.range == "bool":
            if text.lower() in ("true", "1", "false", "0"):
                return float(text.lower() in ("true", "1"))
            raise ValueError(f"{self.name} is {text!r}; expected {expected}")
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{self.name} is {text!r}; expected {expected}") from None
        is_below = self.range != "number" and value < 0
        if not math.isfinite(value) or is_below or (self.range == "percentage" and value > 100):
            raise ValueError(f"{self.name} is {text}; expected {expected}")
        return value


Measure = Callable[[Measured, Values, bool], Interval]
"""The measure that a threshold is compared with; called with True to compute it from elements if there are some."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Compares a measure with the parameter of that name."""

    name: str
    measure: Measure
    compare: Callable[[Interval, float], bool | None]

    def __call__(self, measured: Measured, values: Values) -> Judgement:
        actual = self.measure(measured, values, False)
        hit = self.compare(actual, values[self.name])
        if hit is not False and not actual.is_exact:
            # A hit shows a number, and elements can decide if bounds cannot.
            actual = self.measure(measured, values, True)
            hit = self.compare(actual, values[self.name])
        return Judgement(hit, actual)


def above(name: str, measure: Measure) -> Judge:
    """Satisfied if the measure is greater than the parameter of that name."""
    return Threshold(name, measure, Interval.is_above)


def below(name: str, measure: Measure) -> Judge:
    """Satisfied if the measure is less."""
    return Threshold(name, measure, Interval.is_below)


def at_least(name: str, measure: Measure) -> Judge:
    """Satisfied if the measure is greater or equal."""
    return Threshold(name, measure, Interval.is_at_least)


# Condition: what a watchpoint checks, and when it is met. A package adds one by an entry point (group `opdump.watchpoints`).

Target = Literal["weight", "gradient", "activation", "tensor"]
Kind = Literal["formula", "overflow", "device overflow"]
"""`formula`: decided by its parameters; `overflow`: NaN or infinities; `device overflow`: an overflow of an operator that a
device, or a dump of overflows, reports.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, as defined by MindSpore Insight or a package."""

    id: str
    target: Target
    parameters: tuple[Parameter, ...] = ()
    kind: Kind = "formula"
    needs_history: bool = False
    """Whether it compares with the step before."""
    first_step_only: bool = False
    """Whether it applies only to step 0."""

    @property
    def thresholds(self) -> tuple[Parameter, ...]:
        """The parameters of which at least one must be given."""
        return tuple(each for each in self.parameters if each.is_threshold)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name."""
        return next((each for each in self.parameters if each.name == name), None)


# The rows.

_abs_mean: Measure = lambda m, _v, exact: m.abs_mean(exact=exact)  # noqa: E731  a table of formulas
_max: Measure = lambda m, _v, _exact: m.max()  # noqa: E731
_min: Measure = lambda m, _v, _exact: m.min()  # noqa: E731
_mean: Measure = lambda m, _v, _exact: m.mean()  # noqa: E731
_zeros: Measure = lambda m, _v, _exact: m.zero_percentage()  # noqa: E731
_max_min: Measure = lambda m, _v, _exact: m.max_min()  # noqa: E731
_update_ratio: Measure = lambda m, v, exact: m.update_ratio(v["epsilon"], exact=exact)  # noqa: E731
_share: Measure = lambda m, v, exact: m.range_percentage(  # noqa: E731
    v["range_start_inclusive"], v["range_end_inclusive"], exact=exact
)


def _unchanged(measured: Measured, values: Values) -> Judgement:
    """All elements are unchanged within `atol + rtol * |before|`. `equal_nan` has no effect, as in MindSpore Insight."""
    excess = measured.excess(values["rtol"], values["atol"])
    changed = excess.is_above(0)
    is_nan = excess.low != excess.low
    hit = False if is_nan else None if changed is None else not changed
    return Judgement(hit, measured.largest_change() if hit else excess)


def _zero_percentage(judge: Judge, *, default: float) -> Parameter:
    return Parameter(name="zero_percentage_ge", range="percentage", default=default, judge=judge)


_ZEROS: Final = _zero_percentage(at_least("zero_percentage_ge", _zeros), default=100.0)
_INITIALIZATION: Final = (
    _ZEROS,
    Parameter(name="max_gt", range="number", judge=above("max_gt", _max)),
    Parameter(name="min_lt", range="number", judge=below("min_lt", _min)),
)
_TOO_LARGE: Final = (
    Parameter(name="abs_mean_gt", range="amount", judge=above("abs_mean_gt", _abs_mean), needs_elements=True),
    Parameter(name="max_gt", range="number", judge=above("max_gt", _max)),
    Parameter(name="min_gt", range="number", judge=above("min_gt", _min)),
    Parameter(name="mean_gt", range="number", judge=above("mean_gt", _mean)),
)
_TOO_SMALL: Final = (
    Parameter(name="abs_mean_lt", range="amount", judge=below("abs_mean_lt", _abs_mean), needs_elements=True),
    Parameter(name="max_lt", range="number", judge=below("max_lt", _max)),
    Parameter(name="min_lt", range="number", judge=below("min_lt", _min)),
    Parameter(name="mean_lt", range="number", judge=below("mean_lt", _mean)),
)
_ENDS: Final = ("range_start_inclusive", "range_end_inclusive")
_RANGE: Final = (
    Parameter(name="range_start_inclusive", range="number"),
    Parameter(name="range_end_inclusive", range="number"),
    Parameter(
        name="range_percentage_lt",
        range="percentage",
        judge=below("range_percentage_lt", _share),
        needs=_ENDS,
        needs_elements=True,
    ),
    Parameter(
        name="range_percentage_gt",
        range="percentage",
        judge=above("range_percentage_gt", _share),
        needs=_ENDS,
        needs_elements=True,
    ),
    Parameter(name="max_min_lt", range="number", judge=below("max_min_lt", _max_min)),
    Parameter(name="max_min_gt", range="number", judge=above("max_min_gt", _max_min)),
)
_NOT_CHANGED: Final = (
    Parameter(name="rtol", range="amount", default=1e-5, judge=_unchanged, needs_elements=True),
    Parameter(name="atol", range="amount", default=1e-8),
    Parameter(name="equal_nan", range="bool", default=0.0),
)
_EPSILON: Final = Parameter(name="epsilon", range="amount", default=1e-9)


def _update(name: str, judge: Judge, default: float) -> tuple[Parameter, ...]:
    return (Parameter(name=name, range="amount", default=default, judge=judge, needs_elements=True), _EPSILON)


_CONDITIONS: Final = (
    Condition(id="weight_initialization", target="weight", parameters=_INITIALIZATION, first_step_only=True),
    Condition(id="weight_overflow", target="weight", kind="overflow"),
    Condition(id="weight_too_large", target="weight", parameters=_TOO_LARGE),
    Condition(id="weight_too_small", target="weight", parameters=_TOO_SMALL),
    Condition(id="weight_not_changed", target="weight", parameters=_NOT_CHANGED, needs_history=True),
    Condition(
        id="weight_change_too_large",
        target="weight",
        parameters=_update("abs_mean_update_ratio_gt", above("abs_mean_update_ratio_gt", _update_ratio), 0.1),
        needs_history=True,
    ),
    Condition(
        id="weight_change_too_small",
        target="weight",
        parameters=_update("abs_mean_update_ratio_lt", below("abs_mean_update_ratio_lt", _update_ratio), 1e-4),
        needs_history=True,
    ),
    Condition(id="gradient_vanishing", target="gradient", parameters=_TOO_SMALL),
    Condition(id="gradient_too_large", target="gradient", parameters=_TOO_LARGE),
    Condition(id="gradient_exploding", target="gradient", kind="overflow"),
    Condition(id="activation_range", target="activation", parameters=_RANGE),
    Condition(id="tensor_initialization", target="tensor", parameters=_INITIALIZATION, first_step_only=True),
    Condition(id="tensor_overflow", target="tensor", kind="overflow"),
    Condition(id="operator_overflow", target="tensor", kind="device overflow"),
    Condition(id="tensor_too_large", target="tensor", parameters=_TOO_LARGE),
    Condition(id="tensor_too_small", target="tensor", parameters=_TOO_SMALL),
    Condition(id="tensor_all_zero", target="tensor", parameters=(_ZEROS,)),
    Condition(id="tensor_range", target="tensor", parameters=_RANGE),
)

OWN: Final[Mapping[str, Condition]] = MappingProxyType({each.id: each for each in _CONDITIONS})

WATCHPOINTS: Final[Registry[Condition]] = Registry(
    "opdump.watchpoints", dict.fromkeys(OWN, "opdump.checks.watchpoints.conditions:OWN"), loaded=OWN
)
