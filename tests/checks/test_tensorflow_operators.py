"""TensorFlow operators that pass on what a variable, data set or list contains are not the origin of a NaN, and do not
overflow.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from opdump.checks import Checks, Thresholds
from opdump.checks.operator_classes import class_of
from opdump.checks.tensor_checks import TensorStats, stats_of_summary
from opdump.kernels import summarise
from opdump.records import IO, OpRecord, TensorRecord

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
