"""The origin of a NaN that the program wrote or that a TensorFlow variable has, and operators that pass on what a variable, data set or list holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from opdump.catalog.catalog import Execution
from opdump.checks import Checks, Thresholds
from opdump.checks.not_finite import Origins
from opdump.checks.operator_classes import class_of
from opdump.checks.tensor_checks import TensorStats, stats_of_summary
from opdump.kernels import summarise
from opdump.records import IO, OpRecord, TensorRecord

Values = dict[tuple[IO, int], tuple[float, str]]


def execution(op_type: str, op_name: str, step: int, values: Values) -> Execution:
    op = OpRecord(op_type=op_type, op_name=op_name, timestamp=1, step=step)
    tensors = []
    for (io, slot), (value, source) in values.items():
        statistics = {"max": value, "min": value}
        tensors.append(
            TensorRecord(op=op, io=io, slot=slot, dtype="float32", shape=(2,), source=source, statistics=statistics)
        )
    return Execution(op, tuple(tensors))


def read(step: int, value: float = math.nan, op_type: str = "ReadVariableOp") -> list[Execution]:
    """Read a variable, and add its value."""
    return [
        execution(op_type, "add/ReadVariableOp", step, {("output", 0): (value, "")}),
        execution("AddV2", "add", step, {("input", 0): (value, "add/ReadVariableOp:0"), ("output", 0): (value, "")}),
    ]


def told(*steps: list[Execution]) -> list[str]:
    origins, found = Origins(), []
    for number, step in enumerate(steps):
        for each in step:
            origins.observe(each.op, each.tensors)
        found.append(origins.origin()[1])
        origins.end_step(number)
    return found


@pytest.mark.parametrize("op_type", ["ReadVariableOp", "ResourceGather", "VariableV2"])
def test_a_variable_that_was_poisoned_before_the_dump_is_called_a_variable(op_type: str) -> None:
    assert told(read(0, op_type=op_type)) == ["a variable (read by add/ReadVariableOp)"]


@pytest.mark.parametrize("update", ["ResourceApplyAdam", "AssignSubVariableOp", "AssignVariableOp"])
def test_the_maker_of_an_earlier_step_is_named_in_every_step_that_reads_the_variable(update: str) -> None:
    poisoning = [
        *read(0, 1.0),
        execution("Log", "log", 0, {("input", 0): (-1.0, "add:0"), ("output", 0): (math.nan, "")}),
        execution(update, "update", 0, {("input", 1): (math.nan, "log:0")}),
    ]
    assert told(poisoning, read(1), read(2)) == ["log", "log (in step 0)", "log (in step 0)"]


def test_an_operator_that_makes_a_nan_of_finite_variables_is_the_origin() -> None:
    made = execution("Log", "log", 0, {("input", 0): (-1.0, "add:0"), ("output", 0): (math.nan, "")})
    assert told([*read(0, 1.0), made], read(1, 1.0)) == ["log", ""]


def update(
    name: str, step: int, shape: tuple[int, ...] = (2,), op_type: str = "ResourceApplyGradientDescent"
) -> Execution:
    made = execution(op_type, name, step, {("input", 1): (3e38, "scale:0"), ("input", 2): (50.0, "gradient:0")})
    return Execution(made.op, tuple(replace(each, shape=shape) for each in made.tensors))


def test_an_update_that_overflows_of_finite_numbers_is_named_where_the_variable_is_read() -> None:
    overflowed = [*read(0, 1.0), update("train/update", 0)]
    assert told(overflowed, read(1), read(2)) == ["", "train/update (in step 0)", "train/update (in step 0)"]


def test_the_update_that_overflowed_is_known_by_the_shape_of_the_variable() -> None:
    overflowed = [*read(0, 1.0), update("other", 0, shape=(7,)), update("train/update", 0)]
    assert told(overflowed, read(1)) == ["", "train/update (in step 0)"]


def test_of_several_updates_that_fit_none_is_blamed() -> None:
    overflowed = [*read(0, 1.0), update("a", 0), update("b", 0)]
    one_of = "one of 2 updates (in step 0) of the variable that add/ReadVariableOp reads"
    assert told(overflowed, read(1), read(2)) == ["", one_of, one_of]


def test_an_assignment_of_a_finite_number_is_no_overflow() -> None:
    assigned = [*read(0, 1.0), update("start", 0, op_type="AssignVariableOp")]
    assert told(assigned, read(1)) == ["", "a variable (read by add/ReadVariableOp)"]


def test_a_number_that_the_program_gives_to_a_variable_is_reported_in_the_steps_that_read_it() -> None:
    given = [execution("AssignVariableOp", "rate/AssignVariableOp", 0, {("input", 1): (math.inf, "")})]
    assert told(given, read(1)) == ["rate/AssignVariableOp", "rate/AssignVariableOp (in step 0)"]


def test_what_a_function_hands_on_is_no_origin_where_a_variable_was_read_before() -> None:
    poisoning = [
        *read(0, 1.0),
        execution("Log", "log", 0, {("input", 0): (-1.0, "add:0"), ("output", 0): (math.nan, "")}),
        execution("AssignSubVariableOp", "update", 0, {("input", 1): (math.nan, "log:0")}),
    ]
    handed_on = execution("Identity", "result", 1, {("input", 0): (math.nan, "call:0"), ("output", 0): (math.nan, "")})
    assert told(poisoning, [*read(1), handed_on]) == ["log", "log (in step 0)"]


def test_an_operator_that_made_a_nan_before_a_variable_is_read_stays_the_origin() -> None:
    made = execution("Log", "log", 1, {("input", 0): (-1.0, "x:0"), ("output", 0): (math.nan, "")})
    taken_in = execution("AssignAddVariableOp", "total", 1, {("input", 1): (math.nan, "log:0")})
    before = [*read(0, 1.0), update("train/update", 0)]
    assert told(before, [made, taken_in, *read(1)], read(2)) == ["", "log", "log (in step 1)"]


def test_a_variable_that_was_read_first_stays_the_origin_of_what_is_made_behind_it() -> None:
    made = execution("Log", "log", 1, {("input", 0): (-1.0, "x:0"), ("output", 0): (math.nan, "")})
    overflowed = [*read(0, 1.0), update("train/update", 0)]
    assert told(overflowed, [*read(1), made], read(2))[1:] == ["train/update (in step 0)"] * 2


HANDS_ON = (
    *(
        "ReadVariableOp",
        "ResourceGather",
        "VariableV2",
        "IteratorGetNext",
        "OptionalGetValue",
        "LookupTableFindV2",
        "QueueDequeueV2",
    ),
    *(
        "TensorArrayReadV3",
        "TensorListStack",
        "TensorListGetItem",
        "GatherV2",
        "IdentityN",
        "Switch",
        "Merge",
        "Enter",
        "RestoreV2",
    ),
    *("DynamicStitch", "EnsureShape", "StopGradient", "StackPopV2", "RaggedTensorToTensor"),
)


@pytest.mark.parametrize("op_type", HANDS_ON)
def test_a_nan_that_an_operator_hands_on_comes_from_elsewhere(op_type: str) -> None:
    checks = Checks(Thresholds())
    (read,) = checks.findings(*executed(op_type, math.nan))
    assert not read.origin
    (made,) = checks.findings(*executed("Log", math.nan))
    assert made.origin


@pytest.mark.parametrize(
    "op_type",
    [
        "MatMul",
        "Conv2D",
        "AddV2",
        "Log",
        "Softmax",
        "Sum",
        "Rsqrt",
        "AddN",
        "ResourceApplyAdam",
        "AssignAddVariableOp",
        "Mul",
    ],
)
def test_an_operator_that_computes_is_no_such_operator(op_type: str) -> None:
    assert class_of(op_type) in ("computes", "cube")


def executed(op_type: str, *values: float) -> tuple[OpRecord, list[tuple[TensorRecord, TensorStats]]]:
    op = OpRecord(op_type=op_type, op_name=op_type, timestamp=1)
    io: IO = "output"
    record = TensorRecord(op=op, io=io, slot=0, dtype="float32", shape=(len(values),))
    return op, [(record, stats_of_summary(summarise(np.array(values, "float32"))))]


@pytest.mark.parametrize(("computed", "kind"), [(math.nan, "made"), (0.5, "meant")])
def test_nan_that_the_program_writes_is_the_origin_only_if_something_is_computed_from_it(
    computed: float, kind: str
) -> None:
    origins = Origins()
    for each in (
        execution("SelectV2", "where", 0, {("input", 0): (1.0, ""), ("output", 0): (math.nan, "")}),
        execution("Reshape", "moved", 0, {("input", 0): (math.nan, "where:0"), ("output", 0): (math.nan, "")}),
        execution("Mean", "mean", 0, {("input", 0): (math.nan, "moved:0"), ("output", 0): (computed, "")}),
    ):
        origins.observe(each.op, each.tensors)
    assert origins.origin() == (kind, "where")
