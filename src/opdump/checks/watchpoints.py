"""Watchpoints: the conditions of the MindSpore Insight debugger, over the tensors of any dump or of a running program.

A condition is a row of `WATCHPOINTS`; a watchpoint is a condition with values for its parameters. `measured.py` computes the
measures of a tensor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, Protocol

from opdump.checks.measured import Interval, Measured
from opdump.checks.not_finite import PARAMETER, is_root_input
from opdump.checks.operator_classes import reads_variable
from opdump.checks.tensor_checks import TensorStats
from opdump.extensions import Registry
from opdump.op_types import bare_name, names_of, rows_of
from opdump.records import IO, OpRecord, StatisticValue

__all__ = [
    "WATCHPOINTS",
    "Condition",
    "Interval",
    "Judgement",
    "Measured",
    "Parameter",
    "Targets",
    "WatchHit",
    "Watchpoint",
    "WatchpointChecker",
    "above",
    "at_least",
    "below",
    "in_order_of_time",
]


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

_MEASURES: Final[Mapping[str, Measure]] = {
    "abs_mean": lambda m, _v, exact: m.abs_mean(exact=exact),
    "max": lambda m, _v, _exact: m.max(),
    "min": lambda m, _v, _exact: m.min(),
    "mean": lambda m, _v, _exact: m.mean(),
    "zero_percentage": lambda m, _v, _exact: m.zero_percentage(),
    "max_min": lambda m, _v, _exact: m.max_min(),
    "abs_mean_update_ratio": lambda m, v, exact: m.update_ratio(v["epsilon"], exact=exact),
    "range_percentage": lambda m, v, exact: m.range_percentage(
        v["range_start_inclusive"], v["range_end_inclusive"], exact=exact
    ),
}
_JUDGES: Final[Mapping[str, Callable[[str, Measure], Judge]]] = {"gt": above, "lt": below, "ge": at_least}


def _threshold(name: str, of: Range = "number", **more: Any) -> Parameter:
    """A threshold for a measure. Its name has both: `max_gt`."""
    measure, _, judge = name.rpartition("_")
    return Parameter(name=name, range=of, judge=_JUDGES[judge](name, _MEASURES[measure]), **more)


def _unchanged(measured: Measured, values: Values) -> Judgement:
    """All elements are unchanged within `atol + rtol * |before|`. `equal_nan` has no effect, as in MindSpore Insight."""
    excess = measured.excess(values["rtol"], values["atol"])
    changed = excess.is_above(0)
    is_nan = excess.low != excess.low
    hit = False if is_nan else None if changed is None else not changed
    return Judgement(hit, measured.largest_change() if hit else excess)


_ZEROS: Final = _threshold("zero_percentage_ge", "percentage", default=100.0)
_INITIALIZATION: Final = (_ZEROS, _threshold("max_gt"), _threshold("min_lt"))
_TOO_LARGE: Final = (
    _threshold("abs_mean_gt", "amount", needs_elements=True),
    *map(_threshold, ("max_gt", "min_gt", "mean_gt")),
)
_TOO_SMALL: Final = (
    _threshold("abs_mean_lt", "amount", needs_elements=True),
    *map(_threshold, ("max_lt", "min_lt", "mean_lt")),
)
_ENDS: Final = ("range_start_inclusive", "range_end_inclusive")
_RANGE: Final = (
    *(Parameter(name=name, range="number") for name in _ENDS),
    _threshold("range_percentage_lt", "percentage", needs=_ENDS, needs_elements=True),
    _threshold("range_percentage_gt", "percentage", needs=_ENDS, needs_elements=True),
    _threshold("max_min_lt"),
    _threshold("max_min_gt"),
)
_NOT_CHANGED: Final = (
    Parameter(name="rtol", range="amount", default=1e-5, judge=_unchanged, needs_elements=True),
    Parameter(name="atol", range="amount", default=1e-8),
    Parameter(name="equal_nan", range="bool", default=0.0),
)
_EPSILON: Final = Parameter(name="epsilon", range="amount", default=1e-9)


def _update(name: str, default: float) -> tuple[Parameter, ...]:
    return (_threshold(name, "amount", default=default, needs_elements=True), _EPSILON)


_CONDITIONS: Final = (
    Condition(id="weight_initialization", target="weight", parameters=_INITIALIZATION, first_step_only=True),
    Condition(id="weight_overflow", target="weight", kind="overflow"),
    Condition(id="weight_too_large", target="weight", parameters=_TOO_LARGE),
    Condition(id="weight_too_small", target="weight", parameters=_TOO_SMALL),
    Condition(id="weight_not_changed", target="weight", parameters=_NOT_CHANGED, needs_history=True),
    Condition(
        id="weight_change_too_large",
        target="weight",
        parameters=_update("abs_mean_update_ratio_gt", 0.1),
        needs_history=True,
    ),
    Condition(
        id="weight_change_too_small",
        target="weight",
        parameters=_update("abs_mean_update_ratio_lt", 1e-4),
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

OWN: Final[Mapping[str, Condition]] = {each.id: each for each in _CONDITIONS}

WATCHPOINTS: Final[Registry[Condition]] = Registry(
    "opdump.watchpoints", dict.fromkeys(OWN, "opdump.checks.watchpoints:OWN"), loaded=OWN
)


# A watchpoint: a condition with the values of its parameters. Its checker applies watchpoints to the tensors of one rank.

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

    `error_code`: 1 NaN, 2 infinities, 4 no tensor of the previous step, 32 no value: its elements are needed and not
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
        if self.condition.kind == "overflow":
            return _overflow(stats, is_complex=is_complex)
        error = (HAS_NAN if stats.nan else 0) | (HAS_INF if stats.inf else 0)
        if self.condition.needs_history and measured.previous is None:
            error |= NO_PREVIOUS
        if error:
            return _error(error)
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
    (HAS_NAN, "NaN"),
    (HAS_INF, "infinities"),
    (NO_PREVIOUS, "no tensor of the previous step"),
)


def _error(code: int) -> Outcome:
    return Outcome((), code, "not checked: " + ", ".join(words for bit, words in _WORDS if code & bit))


def _overflow(stats: TensorStats, *, is_complex: bool) -> Outcome:
    """The result of the condition `overflow`, which is met by any NaN and any infinity."""
    counts = [(stats.nan, "NaN"), (stats.inf, "inf")]
    found = [f"{'some' if number < 0 else number} {name}" for number, name in counts if number]
    if found:
        return Outcome(text=", ".join(found))
    return _no_value(is_complex=is_complex) if stats.nan is None and stats.inf is None else Outcome()


def _no_value(*, is_complex: bool) -> Outcome:
    if is_complex:
        return Outcome((), NO_VALUE, "not checked: complex numbers have no order")
    return Outcome((), NO_VALUE, "not checked: needs values; record them with --full")


# Targets: which tensors are weights, gradients and activations, in a dump of any framework.
#
# weight       Parameter.x, as the step left it, or as operators first read it; a variable that TensorFlow reads
# gradient     the output of a backward operator
# activation   the output of an activation function in the forward pass
# tensor       every output, and inputs without a maker in the dump: parameters, data

Moment = Literal["", "read", "end"]
"""For a weight: as first read in the step, or as the step left it."""

_PREFIX: Final = f"{PARAMETER}."


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ACTIVATIONS: Final = _words(
    """
    ReLU ReLU6 LeakyReLU PReLU Elu SeLU CeLU GeLU SiLU Mish HSwish HSigmoid HShrink SoftShrink Sigmoid LogSigmoid Tanh Softplus
    Softsign GLU Threshold Softmax MaskedSoftmax LogSoftmax
    """
)
_GRADIENT_SCOPES: Final = ("gradients", "gradient_tape")
_OPTIMIZER_SCOPES: Final = _words(
    """
    adam adamw adamax nadam sgd rmsprop adagrad adadelta ftrl lion lamb muon momentum gradientdescent adafactor optimizer
    lossscaleoptimizer
    """
)
_STATE_SCOPES: Final = _words(
    """
    moment1 moment2 moments accum stat exp_avg exp_avg_sq max_exp_avg_sq momentum_buffer step square_avg grad_avg acc_delta sum
    """
)
"""First parts of the names of optimizer states of a parameter."""
_NUMBERS_OF_TRAINING: Final = _words(
    """
    learning_rate momentum weight_decay global_step beta1_power beta2_power scale_sense current_iterator_step
    last_overflow_iterator_step
    """
)
"""MindSpore parameters that belong to no layer."""


class SeenTensor(Protocol):
    """An input or output, as a record or as a live tensor."""

    @property
    def io(self) -> IO: ...
    @property
    def slot(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def argument(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def statistics(self) -> Mapping[str, StatisticValue]: ...


class Role(NamedTuple):
    """The role of a tensor in the conditions. `weight` is its name if it is one, `moment` the point in the step."""

    targets: frozenset[Target]
    weight: str = ""
    moment: Moment = ""


_NONE: Final = Role(frozenset())
_TENSOR: Final = Role(frozenset({"tensor"}))


class Targets:
    """The roles of the tensors of one step, in execution order."""

    def __init__(self) -> None:
        self._read: set[str] = set()

    def end_step(self) -> None:
        """Start the next step."""
        self._read.clear()

    def role(self, op: OpRecord, io: IO, source: str, dtype: str, shape: tuple[int, ...], *, has_outputs: bool) -> Role:
        """The role of one tensor; each source that is not an operator is checked once per step."""
        if io == "input":
            return self._of_input(op, source, dtype, shape, has_outputs=has_outputs)
        if op.op_type == PARAMETER:
            is_weight = _is_float(dtype) and not _is_other(op.op_name)
            return Role(frozenset({"weight", "tensor"}), op.op_name, "end") if is_weight else _TENSOR
        if reads_variable(op.op_type):
            is_model = not (is_backward(op) or _is_of_optimizer(op.op_name) or op.op_name in self._read)
            is_weight = is_model and _is_float(dtype) and bool(shape)
            self._read.add(op.op_name)
            return Role(frozenset({"weight", "tensor"}), op.op_name, "read") if is_weight else _TENSOR
        if is_backward(op):
            return Role(frozenset({"gradient", "tensor"}))
        if op.phase != "optimizer" and _is_activation(op.op_type):
            return Role(frozenset({"activation", "tensor"}))
        return _TENSOR

    def _of_input(self, op: OpRecord, source: str, dtype: str, shape: tuple[int, ...], *, has_outputs: bool) -> Role:
        if not source:
            return _NONE if has_outputs else _TENSOR  # in a dump of only inputs
        if not source.startswith((_PREFIX, "data-")) or source in self._read:
            return _NONE
        name = source.removeprefix(_PREFIX)
        if source.startswith("data-") or is_root_input(source) or not shape:  # a number of the program is not a weight
            self._read.add(source)
            return _TENSOR
        if op.phase == "optimizer" or not _is_float(dtype) or _is_other(name):
            return _NONE  # optimizer state, or a weight whose layer did not run
        self._read.add(source)
        return Role(frozenset({"weight", "tensor"}), name, "read")


def is_backward(op: OpRecord) -> bool:
    """Whether an operator computes gradients, by its phase or, in TensorFlow graphs, by its scope."""
    if op.phase == "backward":
        return True
    return any(part.lower().startswith(_GRADIENT_SCOPES) for part in op.op_name.split("/")[:-1])


def _is_of_optimizer(op_name: str) -> bool:
    """Whether a TensorFlow operator reads optimizer state, by its scope: `adam/Sub_3/ReadVariableOp`, `training/Adam_1/...`."""
    parts = (part.lower().rstrip("_0123456789") for part in op_name.split("/")[:-1])
    return any(part in _OPTIMIZER_SCOPES for part in parts)


@lru_cache(maxsize=4096)
def _is_activation(op_type: str) -> bool:
    return any(row.concept in _ACTIVATIONS for row in rows_of(op_type))


def _is_other(name: str) -> bool:
    """Whether a parameter is optimizer state, or an input that the program passed to its network."""
    return is_root_input(name) or name in _NUMBERS_OF_TRAINING or name.partition(".")[0] in _STATE_SCOPES


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


# Checks operator by operator, step by step.

_Weight = tuple[OpRecord, SeenTensor, Measured, Role]
_NOT_READ: Final = Outcome((), NO_VALUE, "not checked: its value before the step is not in the dump")


class WatchpointChecker:
    """Collects `hits`, including those for tensors that could not be checked."""

    def __init__(self, watchpoints: Sequence[Watchpoint]) -> None:
        self._watchpoints: Final = watchpoints
        self.hits: list[WatchHit] = []
        self.looked: Counter[str] = Counter()
        """The tensors that each watchpoint, by its text, checked; for an overflow watchpoint, the overflows."""
        self._targets = Targets()
        self._read: dict[str, _Weight] = {}
        self._ended: dict[str, _Weight] = {}
        self._previous: dict[tuple[str, str], Measured] = {}
        self._previous_step: int | None = None
        self.has_history = any(each.condition.needs_history for each in watchpoints)

    def observe(self, op: OpRecord, tensors: Sequence[tuple[SeenTensor, Measured]]) -> None:
        """Process the next operator of the step, in execution order."""
        has_outputs = any(tensor.io == "output" for tensor, _ in tensors)
        for tensor, measured in tensors:
            role = self._targets.role(op, tensor.io, tensor.source, tensor.dtype, tensor.shape, has_outputs=has_outputs)
            if role.weight:
                kept = self._read if role.moment == "read" else self._ended
                kept[role.weight] = (op, tensor, measured, role)
            elif role.targets:
                self._check(op, tensor, measured, role)

    def overflowed(self, op: OpRecord, text: str) -> None:
        """Process an overflow of an operator, reported by a device or a dump of overflows."""
        for watchpoint in self._watchpoints:
            if watchpoint.condition.kind == "device overflow" and watchpoint.is_for(op, op.op_name):
                self.looked[watchpoint.text] += 1
                self.hits.append(_hit(watchpoint, op, None, Outcome(text=text)))

    def end_step(self, step: int) -> None:
        """Check the weights of the step: as it left them or, if unavailable, as it read them."""
        is_next = self._previous_step is not None and step == self._previous_step + 1
        now: dict[tuple[str, str], Measured] = {}
        for name in {**self._read, **self._ended}:
            op, tensor, measured, role = self._ended.get(name) or self._read[name]
            if self.has_history:
                measured.previous = self._previous.get((name, role.moment)) if is_next else None
                now[name, role.moment] = measured
            self._check(op, tensor, measured, role, initial=self._read.get(name))
            measured.previous = None
        self._read, self._ended, self._previous, self._previous_step = {}, {}, now, step
        self._targets.end_step()

    def _check(
        self, op: OpRecord, tensor: SeenTensor, measured: Measured, role: Role, initial: _Weight | None = None
    ) -> None:
        if not measured.count:
            return
        is_complex = tensor.dtype.startswith("complex")
        for watchpoint in self._watchpoints:
            condition = watchpoint.condition
            if condition.target not in role.targets or condition.kind == "device overflow":
                continue
            if not watchpoint.is_for(op, role.weight or op.op_name):
                continue
            if condition.first_step_only:
                if op.step != 0:
                    continue
                if condition.target == "weight" and initial is None:
                    self._add(watchpoint, op, tensor, _NOT_READ)
                    continue
                if initial is not None:  # its value before the step changed it
                    at, of, was, _ = initial
                    self._add(watchpoint, at, of, watchpoint.look(was, is_complex=is_complex))
                    continue
            self._add(watchpoint, op, tensor, watchpoint.look(measured, is_complex=is_complex))
        measured.release()
        if initial is not None:
            initial[2].release()

    def _add(self, watchpoint: Watchpoint, op: OpRecord, tensor: SeenTensor, outcome: Outcome) -> None:
        self.looked[watchpoint.text] += 1
        if outcome:
            self.hits.append(_hit(watchpoint, op, tensor, outcome))


def in_order_of_time(hits: Sequence[WatchHit]) -> list[WatchHit]:
    """The earliest first."""
    return sorted(hits, key=lambda each: (each.timestamp, each.rank or 0, each.order))


def _hit(watchpoint: Watchpoint, op: OpRecord, tensor: SeenTensor | None, outcome: Outcome) -> WatchHit:
    return WatchHit(
        condition=watchpoint.condition.id,
        watchpoint=watchpoint.text,
        text=outcome.text,
        error_code=outcome.error_code,
        parameters=outcome.satisfied,
        op_name=op.op_name,
        op_type=op.op_type,
        net_name=op.net_name,
        rank=op.rank_id,
        step=op.step,
        timestamp=op.timestamp,
        order=op.order,
        occurrence=op.occurrence,
        source=f"{op.stack[0].file}:{op.stack[0].line}" if op.stack else "",
        io=None if tensor is None else tensor.io,
        slot=None if tensor is None else tensor.slot,
        argument="" if tensor is None else tensor.argument,
        dtype="" if tensor is None else tensor.dtype,
        shape=() if tensor is None else tensor.shape,
    )
