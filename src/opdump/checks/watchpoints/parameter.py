"""Parameter: a threshold of a condition, or a number that its formula needs beside it."""

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
    """Whether a parameter is satisfied; None where what the dump has does not tell. `actual` is the number that it was held against."""

    hit: bool | None
    actual: Interval


Judge = Callable[[Measured, Values], Judgement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter. With `judge` it is a threshold, of which one at least must be given; without, a number that others use.

    `default` is what counts where no threshold is given; None where it counts only if it is given.
    """

    name: str
    range: Range
    default: float | None = None
    judge: Judge | None = None
    needs: tuple[str, ...] = ()
    """Parameters that must be given with it."""
    needs_elements: bool = False
    """Whether statistics alone do not always tell."""

    def prepare(self, measured: Measured, values: Values) -> None:
        """Computes what the threshold needs elements for, while they are there."""
        if self.needs_elements and isinstance(self.judge, Threshold):
            self.judge.measure(measured, values, True)

    @property
    def is_threshold(self) -> bool:
        return self.judge is not None

    def value_of(self, text: str) -> float:
        """The value that a text gives. Raises ValueError, with what was expected, for one outside of the range."""
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
"""The number that a threshold is held against: with True from elements, where there are some."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Judges by a comparison of a measure with the parameter of that name."""

    name: str
    measure: Measure
    compare: Callable[[Interval, float], bool | None]

    def __call__(self, measured: Measured, values: Values) -> Judgement:
        actual = self.measure(measured, values, False)
        hit = self.compare(actual, values[self.name])
        if hit is not False and not actual.is_exact:
            # A number is shown of what is found, and elements may tell where bounds do not.
            actual = self.measure(measured, values, True)
            hit = self.compare(actual, values[self.name])
        return Judgement(hit, actual)


def above(name: str, measure: Measure) -> Judge:
    """Satisfied where the measure is more than the parameter of that name."""
    return Threshold(name, measure, Interval.is_above)


def below(name: str, measure: Measure) -> Judge:
    """Satisfied where the measure is less."""
    return Threshold(name, measure, Interval.is_below)


def at_least(name: str, measure: Measure) -> Judge:
    """Satisfied where the measure is as much or more."""
    return Threshold(name, measure, Interval.is_at_least)
