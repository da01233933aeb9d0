"""The watchpoints of MindSpore Insight, each against numbers from numpy: below, at and above its threshold, with NaN,
with infinities and without a previous step; from elements and from statistics only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.checks.watchpoints import OWN, WATCHPOINTS, Measured, WatchHit, Watchpoint, WatchpointChecker
from opdump.configs.watchpoints import watchpoints_of
from opdump.errors import ConfigError
from opdump.kernels import summarise
from opdump.records import HostPayload, OpRecord, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics

Array = npt.NDArray[Any]
NAN, INF = math.nan, math.inf
CONDITIONS = tuple(OWN)

NOW = np.array([0.5, -1.25, 3.0, 0.0, 2.0, -0.75, 0.0, 1.5], np.float32)
BEFORE = np.array([0.5, -1.0, 2.5, 0.1, 2.0, -0.5, 0.25, 1.0], np.float32)
RANGE = "range_start_inclusive=-0.75 range_end_inclusive=1.5"


@dataclass(frozen=True)
class Row:
    """A threshold, the number that is compared with it (computed by numpy), and the conditions that hold if both are equal."""

    condition: str
    parameter: str
    number: Callable[[Array, Array], float]
    beside: str = ""

    @property
    def operator(self) -> str:
        return self.parameter.rpartition("_")[2]


def ratio(now: Array, before: Array) -> float:
    return float(np.mean(np.abs(now - before)) / (np.mean(np.abs(before)) + 1e-9))


NUMBERS: Mapping[str, Callable[[Array, Array], float]] = {
    "abs_mean": lambda x, _p: float(np.abs(x).mean()),
    "mean": lambda x, _p: float(x.mean()),
    "max": lambda x, _p: float(np.amax(x)),
    "min": lambda x, _p: float(np.amin(x)),
    "max_min": lambda x, _p: float(np.ptp(x)),
    "zero_percentage": lambda x, _p: 100 * float(np.count_nonzero(x == 0)) / x.size,
    "range_percentage": lambda x, _p: 100 * float(np.logical_and(x >= -0.75, x <= 1.5).sum()) / x.size,
    "abs_mean_update_ratio": ratio,
}
LARGE = ("abs_mean_gt", "max_gt", "min_gt", "mean_gt")
SMALL = ("abs_mean_lt", "max_lt", "min_lt", "mean_lt")
RANGES = ("range_percentage_lt", "range_percentage_gt", "max_min_lt", "max_min_gt")
THRESHOLDS: Mapping[str, tuple[str, ...]] = {
    "weight_initialization": ("zero_percentage_ge", "max_gt", "min_lt"),
    "weight_too_large": LARGE,
    "weight_too_small": SMALL,
    "weight_change_too_large": ("abs_mean_update_ratio_gt",),
    "weight_change_too_small": ("abs_mean_update_ratio_lt",),
    "gradient_vanishing": SMALL,
    "gradient_too_large": LARGE,
    "activation_range": RANGES,
    "tensor_initialization": ("zero_percentage_ge", "max_gt", "min_lt"),
    "tensor_too_large": LARGE,
    "tensor_too_small": SMALL,
    "tensor_all_zero": ("zero_percentage_ge",),
    "tensor_range": RANGES,
}
ROWS = [
    Row(
        condition,
        parameter,
        NUMBERS[parameter.rpartition("_")[0]],
        RANGE if parameter.startswith("range_percentage") else "",
    )
    for condition, parameters in THRESHOLDS.items()
    for parameter in parameters
]
OVERFLOWS = ("weight_overflow", "gradient_exploding", "tensor_overflow")
HISTORY = ("weight_not_changed", "weight_change_too_large", "weight_change_too_small")
DEFAULTS = {
    "weight_too_large": "max_gt=0",
    "weight_too_small": "max_lt=100",
    "gradient_vanishing": "max_lt=100",
    "gradient_too_large": "max_gt=0",
    "activation_range": "max_min_gt=0",
    "tensor_too_large": "max_gt=0",
    "tensor_too_small": "max_lt=100",
    "tensor_range": "max_min_gt=0",
    "weight_change_too_large": "abs_mean_update_ratio_gt=0",
    "weight_change_too_small": "abs_mean_update_ratio_lt=100",
    "weight_not_changed": "rtol=100",
    "weight_initialization": "max_gt=0",
    "tensor_initialization": "max_gt=0",
    "tensor_all_zero": "zero_percentage_ge=0",
}
"""An ordinary tensor is a hit with these."""


def operator(condition: str, step: int) -> OpRecord:
    """An operator whose output has the kind that the condition checks."""
    target = WATCHPOINTS.load(condition).target
    if target == "weight":
        return OpRecord("Parameter", "fc.weight", 100 + step, step=step, phase="optimizer")
    if target == "gradient":
        return OpRecord("mm", "Gradients/Default/mm-op7", 100 + step, step=step, phase="backward")
    return OpRecord("relu" if target == "activation" else "mm", "Default/x-op3", 100 + step, step=step)


def record(op: OpRecord, array: Array, *, statistics: Mapping[str, StatisticValue] | None = None) -> TensorRecord:
    statistics = SummaryStatistics(summarise(array)) if statistics is None else statistics
    return TensorRecord(
        op, "output", 0, array.dtype.name, array.shape, payload=HostPayload(array), statistics=statistics
    )


def measured(record: TensorRecord, *, elements: bool) -> Measured:
    return Measured(math.prod(record.shape), record.statistics, record.numpy if elements else None)


def hits(
    watch: str | Watchpoint, now: Array, before: Array | None = None, *, elements: bool = True, step: int | None = None
) -> list[WatchHit]:
    """The hits for a tensor in a step, and the previous step if given."""
    (watchpoint,) = watchpoints_of([watch]) if isinstance(watch, str) else (watch,)
    condition = watchpoint.condition
    checker = WatchpointChecker([watchpoint])
    step = (0 if condition.first_step_only else 1) if step is None else step
    for number, array in ((step - 1, before), (step, now)):
        if array is None:
            continue
        op = operator(condition.id, number)
        if condition.first_step_only and condition.target == "weight":
            reader = OpRecord("mm", "Default/mm-op0", 50 + number, step=number)
            read = replace(record(reader, array), io="input", slot=1, source="Parameter.fc.weight")
            checker.observe(reader, [(read, measured(read, elements=elements))])
        taken = record(op, array)
        checker.observe(op, [(taken, measured(taken, elements=elements))])
        checker.end_step(number)
    return [hit for hit in checker.hits if hit.step == step]


def test_the_conditions_are_the_eighteen_of_mindspore_insight() -> None:
    assert len(CONDITIONS) == 18
    assert set(CONDITIONS) == {*THRESHOLDS, *OVERFLOWS, "weight_not_changed", "operator_overflow"}
    assert {each for each in CONDITIONS if OWN[each].needs_history} == set(HISTORY)


@pytest.mark.parametrize("where", [-1, 0, 1])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.condition}-{row.parameter}")
def test_a_threshold_is_passed_as_its_name_says_below_at_and_above_the_number(row: Row, where: int) -> None:
    number = row.number(NOW.astype(np.float64), BEFORE.astype(np.float64))
    threshold = number if where == 0 else np.nextafter(number, INF * where)
    expected = bool({"gt": number > threshold, "lt": number < threshold, "ge": number >= threshold}[row.operator])
    found = hits(f"{row.condition} {row.beside} {row.parameter}={float(threshold)!r}", NOW, BEFORE)
    assert bool(found) is expected
    for hit in found:
        assert hit.error_code == 0
        (satisfied,) = hit.parameters
        assert (satisfied.name, satisfied.preset, satisfied.actual) == (row.parameter, threshold, number)
        assert satisfied.bound == ""


@pytest.mark.parametrize("condition", OVERFLOWS)
@pytest.mark.parametrize(
    ("bad", "text"), [((), ""), ((NAN,), "1 NaN"), ((INF, -INF), "2 inf"), ((NAN, INF), "1 NaN, 1 inf")]
)
def test_an_overflow_is_any_nan_or_infinity_and_no_error(condition: str, bad: tuple[float, ...], text: str) -> None:
    found = hits(condition, np.array([1, *bad], np.float32))
    assert [(hit.text, hit.error_code) for hit in found] == ([(text, 0)] if text else [])


@pytest.mark.parametrize(("bad", "code"), [((NAN,), 1), ((INF,), 2), ((-INF, NAN), 3)])
@pytest.mark.parametrize("condition", DEFAULTS)
def test_nan_and_infinities_are_errors_of_every_other_condition(
    condition: str, bad: tuple[float, ...], code: int
) -> None:
    now = np.concatenate([NOW[:-2], np.array([*bad, 1, 1][:2], np.float32)])
    (hit,) = hits(f"{condition} {DEFAULTS[condition]}", now, BEFORE)
    assert (hit.error_code, hit.parameters) == (code, ())
    assert hit.text.startswith(("not checked: NaN", "not checked: infinities"))


@pytest.mark.parametrize("condition", DEFAULTS)
def test_the_same_tensor_without_them_is_a_hit(condition: str) -> None:
    (hit,) = hits(f"{condition} {DEFAULTS[condition]}", NOW, BEFORE)
    assert (hit.error_code, len(hit.parameters)) == (0, 1)


@pytest.mark.parametrize("condition", HISTORY)
def test_a_condition_of_two_steps_is_an_error_without_the_step_before(condition: str) -> None:
    watch = f"{condition} {DEFAULTS[condition]}"
    assert [hit.error_code for hit in hits(watch, NOW)] == [4]
    assert [hit.error_code for hit in hits(watch, np.array([NAN, INF, 1], np.float32))] == [7]
    (hit,) = hits(watch, NOW, BEFORE)
    assert hit.error_code == 0


@pytest.mark.parametrize("condition", HISTORY)
@pytest.mark.parametrize(
    "before",
    [BEFORE[:-1], *(np.array([bad, *BEFORE[1:]], np.float32) for bad in (NAN, INF, -INF))],
    ids=["size", "nan", "inf", "-inf"],
)
def test_a_step_before_of_another_size_or_with_nan_differs_in_no_number(condition: str, before: Array) -> None:
    assert hits(f"{condition} {DEFAULTS[condition]}", NOW, before) == []


@pytest.mark.parametrize(
    ("condition", "is_hit"), [("weight_change_too_large", True), ("weight_change_too_small", False)]
)
def test_epsilon_stands_for_a_weight_that_was_zero(condition: str, *, is_hit: bool) -> None:
    found = hits(f"{condition} epsilon=0.5", NOW, np.zeros_like(BEFORE))
    assert [hit.parameters[0].actual for hit in found] == ([np.abs(NOW).mean(dtype=np.float64) / 0.5] if is_hit else [])


def test_a_step_that_was_not_dumped_is_no_step_before() -> None:
    (watchpoint,) = watchpoints_of(["weight_not_changed"])
    checker = WatchpointChecker([watchpoint])
    for step in (0, 2):
        op = operator("weight_not_changed", step)
        taken = record(op, NOW)
        checker.observe(op, [(taken, measured(taken, elements=True))])
        checker.end_step(step)
    assert [(hit.step, hit.error_code) for hit in checker.hits] == [(0, 4), (2, 4)]


@pytest.mark.parametrize(
    ("change", "rtol", "atol"),
    [(0.0, 1e-5, 1e-8), (9e-6, 1e-5, 0.0), (1.1e-5, 1e-5, 0.0), (1e-3, 0.0, 1e-3), (1e-3, 0.0, 9.99e-4), (0.5, 0.5, 0)],
)
def test_a_weight_is_not_changed_where_numpy_calls_it_close(change: float, rtol: float, atol: float) -> None:
    before = np.array([1.0, -2.0, 0.0, 4.0])
    now = before.copy()
    now[0] += change
    expected = bool(np.allclose(now, before, rtol=rtol, atol=atol))
    found = hits(f"weight_not_changed rtol={rtol} atol={atol}", now, before)
    assert bool(found) is expected
    if expected:
        assert found[0].parameters[0].actual == pytest.approx(change)


def test_one_satisfied_parameter_is_enough_and_only_those_are_reported() -> None:
    (hit,) = hits("tensor_too_large max_gt=2 min_gt=5 mean_gt=0.1", NOW)
    assert [each.name for each in hit.parameters] == ["max_gt", "mean_gt"]
    assert hit.text == "max 3 > 2, mean 0.625 > 0.1"


def test_a_condition_of_the_first_step_looks_at_no_other() -> None:
    for condition in ("weight_initialization", "tensor_initialization"):
        assert hits(f"{condition} max_gt=0", NOW, step=0)
        assert hits(f"{condition} max_gt=0", NOW, step=3) == []


def test_defaults_count_where_no_threshold_is_given() -> None:
    assert hits("tensor_all_zero", np.zeros(4, np.float32))
    assert hits("tensor_all_zero", NOW) == []
    (watchpoint,) = watchpoints_of(["weight_change_too_large"])
    assert dict(watchpoint.values) == {"abs_mean_update_ratio_gt": 0.1, "epsilon": 1e-9}
    (watchpoint,) = watchpoints_of(["weight_not_changed"])
    assert dict(watchpoint.values) == {"rtol": 1e-5, "atol": 1e-8, "equal_nan": 0.0}


# From statistics only.


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.condition}-{row.parameter}")
def test_statistics_alone_say_the_same_or_that_elements_are_needed(row: Row) -> None:
    generator = np.random.default_rng(0)
    decided = 0
    for _ in range(40):
        scale = 10.0 ** generator.integers(-12, 4)
        now = (generator.normal(size=16) * scale).astype(np.float32)
        before = (now + generator.normal(size=16) * scale * generator.choice([0, 0.1, 50])).astype(np.float32)
        number = row.number(now.astype(np.float64), before.astype(np.float64))
        threshold = float(number * generator.choice([0.001, 0.5, 0.99, 1.01, 2, 1000]))
        if row.parameter.startswith(("range", "zero")):
            threshold = float(np.clip(threshold, 0, 100))
        watch = f"{row.condition} {row.beside} {row.parameter}={threshold!r}"
        truth, told = hits(watch, now, before), hits(watch, now, before, elements=False)
        if [hit.error_code for hit in told] == [32]:
            assert "needs values; record them with --full" in told[0].text
            continue
        decided += 1
        assert bool(told) is bool(truth)
        for hit in told:
            (satisfied,), (true,) = hit.parameters, truth[0].parameters
            if satisfied.bound == "at most":
                assert satisfied.actual >= true.actual
            elif satisfied.bound == "at least":
                assert satisfied.actual <= true.actual
            else:
                assert satisfied.actual == pytest.approx(true.actual, rel=1e-12)
    assert decided > (5 if "ratio" in row.parameter or "range" in row.parameter else 15)


def test_a_small_gradient_is_found_in_its_statistics_with_the_bound_that_they_give() -> None:
    gradient = np.array([1e-12, -2e-12, 3e-12], np.float32)
    (hit,) = hits("gradient_vanishing abs_mean_lt=1e-9", gradient, elements=False)
    assert hit.text.startswith("abs_mean at most ")
    assert hits("gradient_vanishing abs_mean_lt=1e-9", NOW, elements=False) == []


@pytest.mark.parametrize(
    ("statistics", "watch", "found"),
    [
        ({"max": 2.0, "min": 1.0}, "tensor_too_large max_gt=1.5", "max 2 > 1.5"),
        ({"max": 2.0, "min": 1.0}, "tensor_range max_min_gt=0.5", "max_min 1 > 0.5"),
        ({"max": 2.0, "min": 1.0}, "tensor_too_large mean_gt=0.5", "mean at least 1 > 0.5"),
        ({"max": 0.0, "min": 0.0}, "tensor_all_zero", "zero_percentage 100 >= 100"),
        ({"l2norm": 0.0}, "tensor_all_zero", "zero_percentage 100 >= 100"),
        ({"l2norm": 3.0}, "tensor_all_zero", ""),
        ({"max": NAN, "min": NAN}, "tensor_overflow", "some NaN"),
        ({"max": INF, "min": 0.0}, "tensor_all_zero", "not checked: infinities"),
        (
            {"max": 2.0, "min": 1.0},
            f"tensor_range {RANGE} range_percentage_gt=50",
            "not checked: needs values; record them with --full",
        ),
        ({"max": 1.0, "min": 0.0}, f"tensor_range {RANGE} range_percentage_gt=50", "range_percentage 100 > 50"),
        ({"max": 9.0, "min": 8.0}, f"tensor_range {RANGE} range_percentage_lt=50", "range_percentage 0 < 50"),
        (
            {"max": 9.0, "min": -0.5, "positive zero count": 1},
            "tensor_range range_start_inclusive=-1 range_end_inclusive=0 range_percentage_gt=70",
            "range_percentage 75 > 70",
        ),
        (
            {"max": 9.0, "min": -2.0, "positive zero count": 1},
            "tensor_range range_start_inclusive=-1 range_end_inclusive=0 range_percentage_gt=75",
            "",
        ),
        ({"md5": "00"}, "tensor_overflow", "not checked: needs values; record them with --full"),
    ],
)
def test_whichever_statistics_there_are_are_used(statistics: dict[str, StatisticValue], watch: str, found: str) -> None:
    (watchpoint,) = watchpoints_of([watch])
    checker = WatchpointChecker([watchpoint])
    op = operator(watchpoint.condition.id, 1)
    taken = TensorRecord(op, "output", 0, "float32", (4,), statistics=statistics)
    checker.observe(op, [(taken, Measured(4, statistics))])
    assert [hit.text for hit in checker.hits] == ([found] if found else [])


def test_equal_digests_say_that_a_weight_is_what_it_was() -> None:
    (watchpoint,) = watchpoints_of(["weight_not_changed"])
    checker = WatchpointChecker([watchpoint])
    for step in range(2):
        op = operator("weight_not_changed", step)
        taken = TensorRecord(op, "output", 0, "float32", (4,), statistics={"md5": "ab"})
        checker.observe(op, [(taken, Measured(4, taken.statistics))])
        checker.end_step(step)
    assert [(hit.step, hit.error_code, hit.text) for hit in checker.hits][1:] == [(1, 0, "largest change 0")]


# Selection of tensors.


def looked_at(target: str, op: OpRecord, *tensors: TensorRecord) -> list[tuple[str | None, int | None]]:
    watch = {"weight": "weight_too_large", "gradient": "gradient_too_large", "activation": "activation_range"}
    parameter = "max_min_gt=-1" if target == "activation" else "max_gt=-100"
    checker = WatchpointChecker(watchpoints_of([f"{watch.get(target, 'tensor_too_large')} {parameter}"]))
    checker.observe(op, [(each, Measured(4, each.statistics)) for each in tensors])
    checker.end_step(op.step)
    return [(hit.io, hit.slot) for hit in checker.hits]


def tensor(op: OpRecord, io: Any = "output", slot: int = 0, source: str = "", dtype: str = "float32") -> TensorRecord:
    return TensorRecord(op, io, slot, dtype, (4,), source=source, statistics={"max": 1.0, "min": 0.0})


@pytest.mark.parametrize(
    ("op", "targets"),
    [
        (OpRecord("mm", "Gradients/Default/mm-op1", 1, phase="backward"), {"gradient"}),
        (OpRecord("MatMul", "gradient_tape/dense/MatMul/MatMul_1", 1), {"gradient"}),
        (OpRecord("Mul", "gradients/loss_grad/Mul", 1), {"gradient"}),
        (OpRecord("MatMul", "gradients", 1), set[str]()),
        (OpRecord("relu", "Default/relu-op1", 1), {"activation"}),
        (OpRecord("relu_", "Default/relu_-op1", 1), {"activation"}),
        (OpRecord("Relu", "relu", 1), {"activation"}),
        (OpRecord("LogSoftmax", "Default/LogSoftmax-op1", 1), {"activation"}),
        (OpRecord("tanh_backward", "Gradients/Default/tanh_backward-op1", 1, phase="backward"), {"gradient"}),
        (OpRecord("conv2d", "Default/conv-op1", 1), set[str]()),
        (OpRecord("Parameter", "fc.weight", 1), {"weight"}),
        (OpRecord("Parameter", "inputs0", 1), set[str]()),
        (OpRecord("Parameter", "moments.fc.weight", 1), set[str]()),
        (OpRecord("ReadVariableOp", "dense/MatMul/ReadVariableOp", 1), {"weight"}),
        (OpRecord("ReadVariableOp", "adam/Sub_3/ReadVariableOp", 1), set[str]()),
        (OpRecord("ReadVariableOp", "training/Adam_1/mul/ReadVariableOp", 1), set[str]()),
    ],
)
def test_outputs_are_weights_gradients_or_activations_by_their_operator(op: OpRecord, targets: set[str]) -> None:
    found = {each for each in ("weight", "gradient", "activation", "tensor") if looked_at(each, op, tensor(op))}
    assert found == {*targets, "tensor"}


def test_a_parameter_that_is_read_is_a_weight_once_and_the_state_of_an_optimizer_is_none() -> None:
    mm = OpRecord("mm", "Default/mm-op1", 1)
    weight = tensor(mm, "input", 1, "Parameter.fc.weight")
    assert looked_at("weight", mm, weight, tensor(mm)) == [("input", 1)]
    assert looked_at("weight", mm, weight, tensor(mm, "input", 2, "Parameter.fc.weight"), tensor(mm)) == [("input", 1)]
    assert looked_at("weight", mm, tensor(mm, "input", 1, "Parameter.shape", dtype="int64"), tensor(mm)) == []
    adam = OpRecord("lerp_", "Default/optimizer-Adam/lerp_-op1", 1, phase="optimizer")
    assert looked_at("weight", adam, tensor(adam, "input", 0, "Parameter.exp_avg.fc.weight"), tensor(adam)) == []


def test_inputs_are_tensors_where_no_output_stands_for_them() -> None:
    mm = OpRecord("mm", "Default/mm-op1", 1)
    data, made = tensor(mm, "input", 0, "data-0"), tensor(mm, "input", 1, "Default/x-op0:0")
    assert looked_at("tensor", mm, data, made, tensor(mm)) == [("input", 0), ("output", 0)]
    assert looked_at("tensor", mm, tensor(mm, "input", 0), tensor(mm, "input", 1)) == [("input", 0), ("input", 1)]


@pytest.mark.parametrize(
    ("operators", "count"),
    [("relu", 1), ("ReLU", 1), ("Relu", 1), ("relu-op3", 1), ("Default/relu-op3", 1), ("tanh", 0), ("elu", 0)],
)
def test_a_watchpoint_may_be_for_some_operators_alone(operators: str, count: int) -> None:
    op = OpRecord("relu", "Default/relu-op3", 1)
    checker = WatchpointChecker(watchpoints_of([f"tensor_too_large op={operators} max_gt=0"]))
    taken = tensor(op)
    checker.observe(op, [(taken, Measured(4, taken.statistics))])
    assert len(checker.hits) == count


# User input.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing; expected a condition"),
        ("gradient_vanish", "unknown condition 'gradient_vanish'; nearest: 'gradient_vanishing'"),
        ("xyz", "unknown condition 'xyz'; the conditions are weight_initialization, "),
        ("gradient_vanishing", "needs at least one of abs_mean_lt, max_lt, min_lt, mean_lt"),
        ("gradient_vanishing abs_mean_le=1", "no parameter 'abs_mean_le'.*nearest: 'abs_mean_lt'"),
        ("tensor_overflow max_gt=1", "no parameter 'max_gt'"),
        ("gradient_vanishing abs_mean_lt", "found 'abs_mean_lt'; expected PARAMETER=VALUE"),
        ("gradient_vanishing abs_mean_lt=1 abs_mean_lt=2", "abs_mean_lt is given twice"),
        ("gradient_vanishing abs_mean_lt=one", "abs_mean_lt is 'one'; expected a finite number, 0 or more"),
        ("gradient_vanishing abs_mean_lt=-1", "abs_mean_lt is -1; expected a finite number, 0 or more"),
        ("gradient_vanishing max_lt=inf", "max_lt is inf; expected a finite number"),
        ("gradient_vanishing max_lt=nan", "max_lt is nan; expected a finite number"),
        ("tensor_all_zero zero_percentage_ge=101", "zero_percentage_ge is 101; expected a percentage from 0 to 100"),
        ("tensor_all_zero zero_percentage_ge=-1", "zero_percentage_ge is -1; expected a percentage"),
        ("weight_not_changed equal_nan=perhaps", "equal_nan is 'perhaps'; expected true or false"),
        ("tensor_range range_percentage_lt=1", "needs range_start_inclusive and range_end_inclusive too"),
        ("tensor_range range_percentage_lt=1 range_end_inclusive=1", "needs range_start_inclusive too"),
        ("tensor_range range_start_inclusive=1 range_end_inclusive=2", "needs at least one of range_percentage_lt"),
        ("tensor_range range_start_inclusive=3 range_end_inclusive=2 max_min_lt=1", "the range is from 3 to 2"),
    ],
)
def test_what_cannot_be_used_is_reported_with_what_can(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        watchpoints_of([text])


def test_the_recommended_set_is_nine_watchpoints_and_a_repetition_counts_once() -> None:
    found = watchpoints_of(["recommended", "tensor_overflow", "recommended"])
    assert [each.condition.id for each in found] == [
        "weight_initialization",
        "weight_change_too_large",
        "gradient_vanishing",
        "operator_overflow",
        "tensor_overflow",
        "tensor_all_zero",
        *["activation_range"] * 3,
    ]
    assert [each.operators for each in found[-3:]] == ["Tanh", "Sigmoid", "ReLU"]


@pytest.mark.parametrize(
    ("op_type", "good", "bad"),
    [("tanh", [0.5, -0.2], [1.0, -1.0]), ("sigmoid", [0.5, 0.9], [1.0, 0.0]), ("relu", [0.5, 0.0], [0.0, 0.0])],
)
def test_a_saturated_or_dead_activation_is_in_the_recommended_set(
    op_type: str, good: list[float], bad: list[float]
) -> None:
    for values, count in ((good, 0), (bad, 1)):
        checker = WatchpointChecker(watchpoints_of(["recommended"])[-3:])
        op = OpRecord(op_type, f"Default/{op_type}-op0", 1)
        taken = record(op, np.array(values, np.float32))
        checker.observe(op, [(taken, measured(taken, elements=True))])
        assert len(checker.hits) == count


def test_an_operator_that_overflowed_is_a_hit_of_its_own_condition_alone() -> None:
    checker = WatchpointChecker(watchpoints_of(["operator_overflow", "tensor_overflow"]))
    checker.overflowed(OpRecord("MatMul", "mm", 5), "0x8 overflow")
    assert [(hit.condition, hit.text, hit.io) for hit in checker.hits] == [("operator_overflow", "0x8 overflow", None)]
