"""Parameter: a threshold of a condition, or an additional number in its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from opdump.checks.watchpoints.interval import Interval
from opdump.checks.watchpoints.measured import Measured

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
