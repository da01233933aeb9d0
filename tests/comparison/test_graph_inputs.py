"""Inputs in dumps of compiled MindSpore code, and arguments that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdump.comparison.arguments import told_of
from opdump.comparison.trace import as_read
from opdump.records import HostPayload, OpRecord, TensorRecord


def op(op_type: str) -> OpRecord:
    return OpRecord(op_type, f"Default/{op_type}-op0", timestamp=1, arguments={"format": "NCHW"})


def read(of: OpRecord, slot: int, array: Any, source: str, *, with_elements: bool = True) -> TensorRecord:
    values = np.asarray(array)
    statistics = {} if with_elements else {"max": float(values.max())}
    payload = HostPayload(values) if with_elements else None
    return TensorRecord(
        op=of,
        io="input",
        slot=slot,
        dtype=values.dtype.name,
        shape=values.shape,
        source=source,
        payload=payload,
        statistics=statistics,
    )


def test_numbers_of_the_graph_are_arguments() -> None:
    matmul = op("MatMul")
    inputs = {
        0: read(matmul, 0, np.ones((2, 3), np.float32), "Default/ReLU-op0:0"),
        1: read(matmul, 1, np.ones((3, 4), np.float32), "Parameter.weight"),
        2: read(matmul, 2, np.bool_(False), "data-1"),
        3: read(matmul, 3, np.array([0, 2], np.int64), "data-2"),
        4: read(matmul, 4, np.int64(7), "data-3", with_elements=False),
    }
    found, kept = as_read(matmul, inputs)
    assert list(kept) == [0, 1]
    assert found.arguments == {"format": "NCHW", "2": False, "3": [0, 2], "4": 7}


def test_a_constant_of_the_program_stays_an_input() -> None:
    add = op("Add")
    inputs = {0: read(add, 0, np.ones(3, np.float32), "data-1"), 1: read(add, 1, np.arange(20), "data-2")}
    assert as_read(add, inputs) == (add, inputs)


def test_a_parameter_after_its_update_was_not_read_and_its_value_before_is_unknown() -> None:
    momentum = op("ApplyMomentum")
    weight = np.ones((2, 3), np.float32)
    inputs = {
        0: read(momentum, 0, weight, "Parameter.weight"),
        1: read(momentum, 1, weight, "Parameter.moments.weight"),
        2: read(momentum, 2, np.float32(0.1), "Parameter.learning_rate"),
        3: read(momentum, 3, weight, "Gradients/Default/MatMul-op0:0"),
    }
    _, kept = as_read(momentum, inputs)
    assert list(kept) == [0, 2, 3]
    assert kept[0].payload is None
    assert not kept[0].statistics


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (["mul 0.5", "erf", "add"], ["mul 0.5", "tanh", "add"], "erf in A, tanh in B"),
        (["mul", "add"], ["mul", "tanh", "add"], "nothing in A, tanh in B"),
        (["mul"], ["mul", "mul"], "nothing in A, mul in B"),
        ([1, 2], [1, 3], "[1, 2] in A, [1, 3] in B"),
        (None, ["mul"], "None in A, ['mul'] in B"),
    ],
)
def test_of_equations_the_part_that_differs_is_reported(one: object, other: object, told: str) -> None:
    assert told_of({"equations": (one, other)}) == f"equations: {told}"
