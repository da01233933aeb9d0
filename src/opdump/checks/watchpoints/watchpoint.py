"""Watchpoint: a condition with the values of its parameters, and its result for one tensor.

watchpoint = Watchpoint(condition, {"abs_mean_lt": 1e-9}, ("abs_mean_lt",))
watchpoint.look(measured)       an Outcome: hit, not hit, or why that is not known
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from opdump.checks.watchpoints.condition import Condition
from opdump.checks.watchpoints.interval import Interval
from opdump.checks.watchpoints.measured import Measured
from opdump.checks.watchpoints.parameter import Parameter
from opdump.op_types import bare_name, names_of
from opdump.records import IO, OpRecord

HAS_NAN: Final = 1
HAS_INF: Final = 2
NO_PREVIOUS: Final = 4
NO_VALUE: Final = 32
"""Bits of `WatchHit.error_code`, those of MindSpore Insight."""

_OPERATORS: Final[Mapping[str, str]] = {"gt": ">", "lt": "<", "ge": ">="}
Bound = Literal["", "at most", "at least"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SatisfiedParameter:
    """A threshold that a tensor crossed. If statistics only bound the number, `bound` names the side."""

    name: str
    preset: float
    actual: float
    bound: Bound = ""

    @property
    def words(self) -> str:
        """`abs_mean 3e-10 < 1e-09`, `abs_mean at most 3e-10 < 1e-09`."""
        measure, _, operator = self.name.rpartition("_")
        if operator not in _OPERATORS:
            return f"largest change {self.actual:g}"
        bound = f"{self.bound} " if self.bound else ""
        return f"{measure} {bound}{self.actual:g} {_OPERATORS[operator]} {self.preset:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a watchpoint for a tensor; all fields are empty if it was not hit."""

    satisfied: tuple[SatisfiedParameter, ...] = ()
    error_code: int = 0
    text: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchHit:
    """A hit of a watchpoint or, with an `error_code`, a tensor that could not be checked.

    `error_code`: 1 has NaN, 2 has infinities, 4 no tensor of the step before, 32 no value: its elements are needed and not
    available.
    """

    condition: str
    watchpoint: str
    """The text of the watchpoint as the user wrote it."""
    text: str
    error_code: int = 0
    parameters: tuple[SatisfiedParameter, ...] = ()
    op_name: str = ""
    op_type: str = ""
    net_name: str = ""
    rank: int | None = None
    step: int | None = None
    timestamp: int = 0
    order: int = 0
    occurrence: int = 0
    source: str = ""
    """The line of the program, `train.py:175`; empty if unknown."""
    io: IO | None = None
    slot: int | None = None
    argument: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Watchpoint:
    """A condition with its parameters. `enabled` names the active thresholds; `values` has those and the parameters that they
    need.
    """

    condition: Condition
    values: Mapping[str, float] = field(default_factory=dict)
    enabled: tuple[str, ...] = ()
    operators: str = ""
    """The operators or weights that it applies to; empty for all. A type by any framework's name, a full name or its last part."""
    text: str = ""
    is_asked: bool = True
    """Whether the user wrote it, and wants to know if it found nothing to check."""

    @property
    def needs_elements(self) -> bool:
        """Whether statistics may not be enough to decide."""
        return any(each.needs_elements for each in self._thresholds)

    @property
    def _thresholds(self) -> list[Parameter]:
        return [each for each in self.condition.thresholds if each.name in self.enabled]

    def is_for(self, op: OpRecord, name: str) -> bool:
        """Whether it applies to the tensors of an operator, or to the weight of that name."""
        wanted = self.operators
        if not wanted:
            return True
        names = {each.lower() for each in names_of(bare_name(op.op_type))} | {op.op_type.lower()}
        return wanted.lower() in names or any(
            each == wanted or each.endswith(f"/{wanted}") for each in (op.op_name, name)
        )

    def prepare(self, measured: Measured) -> None:
        """Compute what needs elements, while they are available."""
        for parameter in self._thresholds:
            parameter.prepare(measured, self.values)

    def look(self, measured: Measured, *, is_complex: bool = False) -> Outcome:
        """The result for one tensor."""
        stats = measured.stats
        nan, inf = stats.nan or 0, stats.inf or 0
        if self.condition.kind == "overflow":
            counts = [
                f"{'some' if number < 0 else number} {name}" for number, name in ((nan, "NaN"), (inf, "inf")) if number
            ]
            if counts:
                return Outcome(text=", ".join(counts))
            if stats.nan is None and stats.inf is None:
                return _no_value(is_complex=is_complex)
            return Outcome()
        error = (HAS_NAN if nan else 0) | (HAS_INF if inf else 0)
        lacks_history = self.condition.needs_history and measured.previous is None
        if error or lacks_history:
            return _error(error | (NO_PREVIOUS if lacks_history else 0))
        satisfied, is_known = [], True
        for parameter in self._thresholds:
            assert parameter.judge is not None
            hit, actual = parameter.judge(measured, self.values)
            if hit:
                satisfied.append(_satisfied(parameter, self.values, actual))
            is_known = is_known and hit is not None
        if satisfied:
            return Outcome(tuple(satisfied), 0, ", ".join(each.words for each in satisfied))
        return Outcome() if is_known else _no_value(is_complex=is_complex)


def _satisfied(parameter: Parameter, values: Mapping[str, float], actual: Interval) -> SatisfiedParameter:
    bound: Bound = "" if actual.is_exact else "at most" if math.isfinite(actual.high) else "at least"
    if bound and parameter.name.endswith(("_gt", "_ge")):
        bound = "at least"
    value = actual.low if bound == "at least" else actual.high
    return SatisfiedParameter(name=parameter.name, preset=values[parameter.name], actual=value, bound=bound)


_WORDS: Final = (
    (HAS_NAN, "has NaN"),
    (HAS_INF, "has infinities"),
    (NO_PREVIOUS, "no tensor of the step before"),
)


def _error(code: int) -> Outcome:
    return Outcome((), code, "not checked: " + ", ".join(words for bit, words in _WORDS if code & bit))


def _no_value(*, is_complex: bool) -> Outcome:
    if is_complex:
        return Outcome((), NO_VALUE, "not checked: complex numbers have no order")
    return Outcome((), NO_VALUE, "not checked: needs elements, dump with --full")
