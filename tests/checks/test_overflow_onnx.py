"""The status bits of ONNX nodes, evaluated by the reference implementation of the onnx package."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from opdump.checks import InspectedTensor, overflow_status
from opdump.kernels import DTYPE_CODES, summarise

INF = float("inf")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `domain` belongs to its type; `opset` is the ONNX version."""

    name: str
    op_type: str
    inputs: tuple[Array, ...]
    status: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 20


def _a(*values: float, dtype: Any = np.float32) -> Array:
    return np.array(values, dtype)


def _full(shape: tuple[int, ...], value: float, dtype: Any = np.float32) -> Array:
    return np.full(shape, value, dtype)


NODES = (
    Node("addition", "Add", (_a(3e38), _a(3e38)), 0x20),
    Node("division by zero", "Div", (_a(1), _a(0)), 0x20),
    Node("logarithm of zero", "Log", (_a(0),), 0x20),
    Node("exponential", "Exp", (_a(1000),), 0x20),
    Node("mean of nothing", "ReduceMean", (_full((0, 3), 0), _a(0, dtype=np.int64)), attributes={"keepdims": 1}),
    Node("matmul", "MatMul", (_full((2, 4), 200, np.float16), _full((4, 2), 200, np.float16)), 0x400),
    Node("gemm", "Gemm", (_full((2, 4), 1e38), _full((4, 2), 10), _a(0, 0)), 0x400),
    Node("convolution", "Conv", (_full((1, 1, 3, 3), 3e38), _full((1, 1, 2, 2), 2)), 0x400),
    Node("einsum", "Einsum", (_full((2, 4), 1e38), _full((4, 2), 10)), 0x400, {"equation": "ij,jk->ik"}),
    Node("cast to float16", "Cast", (_a(1e6, INF),), 0x100, {"to": TensorProto.FLOAT16}),
    Node("cast of int32 to float16", "Cast", (_a(70000, dtype=np.int32),), 0x100, {"to": TensorProto.FLOAT16}),
    Node("cast to float32", "Cast", (_a(1e300, dtype=np.float64),), 0x20, {"to": TensorProto.FLOAT}),
    Node("cast of a negative number to uint8", "Cast", (_a(-1),), 0x80, {"to": TensorProto.UINT8}),
    Node("cast like another", "CastLike", (_a(1e6), _a(1, dtype=np.float16)), 0x100),
    Node("addition of int8", "Add", (_a(100, dtype=np.int8), _a(100, dtype=np.int8)), 0x10),
    Node("subtraction of uint8", "Sub", (_a(1, dtype=np.uint8), _a(2, dtype=np.uint8)), 0x10),
    Node("multiplication of int32", "Mul", (_a(2**16, dtype=np.int32), _a(2**15, dtype=np.int32)), 0x10),
    Node("power of int32", "Pow", (_a(2, dtype=np.int32), _a(31, dtype=np.int32)), 0x10),
    Node(
        "reduced sum of int32",
        "ReduceSum",
        (_full((2, 2), 2**30, np.int32), _a(1, dtype=np.int64)),
        0x10,
        {"keepdims": 0},
    ),
    Node("running sum of int32", "CumSum", (_full((3,), 2**30, np.int32), np.array(0, np.int64)), 0x10),
    Node(
        "running sum of int32, the last left out",
        "CumSum",
        (_full((2,), 2**30, np.int32), np.array(0, np.int64)),
        0,
        {"exclusive": 1},
    ),
    Node("matmul of int32", "MatMul", (_full((1, 2), 2**16, np.int32), _full((2, 1), 2**14, np.int32)), 0x10),
    Node("negation of the smallest int8", "Neg", (_a(-128, dtype=np.int8),), 0x8),
    Node("absolute value of the smallest int32", "Abs", (_a(-(2**31), dtype=np.int32),), 0x8),
    Node("inf that comes in", "Exp", (_a(INF),)),
    Node("nan that comes in", "Mul", (_a(np.nan), _a(1))),
    Node("softmax over -inf", "Softmax", (_full((1, 3), -INF),)),
    Node("where with -inf", "Where", (np.array([True, False]), _a(1, 1), _a(-INF, -INF))),
    Node("clip to inf", "Clip", (_a(1, 2), np.float32(-INF).reshape(()), np.float32(INF).reshape(()))),
    Node("padding with -inf", "Pad", (_a(1, 2), np.array([1, 1]), np.float32(-INF).reshape(()))),
    Node("max pooling", "MaxPool", (_full((1, 1, 3, 3), -1),), 0, {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
    Node("inf cast to float16", "Cast", (_a(INF, -INF, 65504),), 0, {"to": TensorProto.FLOAT16}),
    Node("negative number cast to int8", "Cast", (_a(-5),), 0, {"to": TensorProto.INT8}),
    Node("scatter", "ScatterElements", (_a(0, 0), np.array([1]), _a(INF))),
    Node("scattered sum", "ScatterElements", (_a(3e38, 0), np.array([0]), _a(3e38)), 0x20, {"reduction": "add"}),
    Node("sum of int8 that fits", "Add", (_a(100, -100, dtype=np.int8), _a(27, -28, dtype=np.int8))),
    Node(
        "sum along one axis that fits",
        "ReduceSum",
        (_a(2**30, 2**30, -5, 7, dtype=np.int32).reshape(2, 2), _a(0, dtype=np.int64)),
        0,
        {"keepdims": 0},
    ),
    Node(
        "quantisation that saturates",
        "QuantizeLinear",
        (_a(1e6, -1e6), np.float32(0.1).reshape(()), np.uint8(3).reshape(())),
    ),
    Node(
        "constant",
        "ConstantOfShape",
        (np.array([2]),),
        0,
        {"value": helper.make_tensor("v", TensorProto.FLOAT, [1], [INF])},
    ),
)


def _seen(array: Any, argument: str = "") -> InspectedTensor:
    array = np.asarray(array)
    summary = summarise(array) if array.dtype.name in DTYPE_CODES else None
    return InspectedTensor(array.dtype.name, array.shape, argument, summary, lambda: array)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy warns about the overflows that are made here
@pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)
def test_a_node_gets_its_status(node: Node) -> None:
    names = [f"x{place}" for place in range(len(node.inputs))]
    proto = helper.make_node(node.op_type, names, ["y"], **node.attributes)
    types = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, node.inputs, strict=True)
    ]
    graph = helper.make_graph([proto], "g", types, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)])
    (output,) = ReferenceEvaluator(model).run(None, dict(zip(names, node.inputs, strict=True)))
    inputs = [_seen(array, name) for array, name in zip(node.inputs, names, strict=True)]
    arguments = {name: value for name, value in node.attributes.items() if name != "value"}
    assert overflow_status(node.op_type, "", arguments, inputs, [_seen(output)]) == node.status
