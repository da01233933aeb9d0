"""Makes a model of one operator from the description in a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, helper

from opdump.adapters.host.element_types import BY_DTYPE
from opdump.adapters.onnxruntime.model_file import load_model
from opdump.errors import ModelFileError

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""Element type and shape of each tensor; -1 for an unknown dimension."""


def one_node_model(op_type: str, inputs: Signature, outputs: Signature, attributes: Mapping[str, Any]) -> ModelProto:
    """A model whose only node is that operator of ONNX; the type is also its name.

    Raises ModelFileError for an operator that ONNX does not have, and for attributes, numbers of tensors and types that it does
    not accept.
    """
    if not onnx.defs.has(op_type):
        raise ModelFileError(
            f"{op_type}: ONNX has no operator of that type; expected one such as Add, MatMul or Softmax"
        )
    named_inputs = [f"x{slot}" for slot in range(len(inputs))]
    named_outputs = [f"y{slot}" for slot in range(len(outputs))]
    node = helper.make_node(op_type, named_inputs, named_outputs, name=op_type, **attributes)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = _ir_version()
    context.opset_imports = {"": _newest_opset()}
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise ModelFileError(f"{op_type}: does not match ONNX's definition: {error}") from error
    return helper.make_model(
        helper.make_graph(
            [node],
            op_type,
            [_value_info(name, *kind) for name, kind in zip(named_inputs, inputs, strict=True)],
            [_value_info(name, dtype, None) for name, (dtype, _) in zip(named_outputs, outputs, strict=True)],
        ),
        opset_imports=[helper.make_opsetid("", _newest_opset())],
        ir_version=_ir_version(),
    )


def load_one_node_model(source: Path | bytes) -> tuple[str, ModelProto]:
    """Type and model of an operator from a file or its bytes. Raises ModelFileError for a model with more than one node."""
    proto = load_model(source).proto
    if len(proto.graph.node) != 1:
        where = source if isinstance(source, Path) else "the bytes given"
        raise ModelFileError(f"{where}: a model with {len(proto.graph.node)} nodes, expected a single operator")
    return proto.graph.node[0].op_type, proto


def takes(model: ModelProto, inputs: Signature) -> bool:
    """Whether the inputs of a model have these types, and compatible shapes."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    wanted = [value.type.tensor_type for value in model.graph.input if value.name not in fixed]
    if len(wanted) != len(inputs):
        return False
    for kind, (dtype, dims) in zip(wanted, inputs, strict=True):
        element = BY_DTYPE.get(dtype)
        if element is None or element.number != kind.elem_type:
            return False
        if kind.HasField("shape") and not _fits(kind.shape.dim, dims):
            return False
    return True


def _fits(wanted: Sequence[Any], dims: tuple[int, ...]) -> bool:
    if len(wanted) != len(dims):
        return False
    return all(
        not dim.HasField("dim_value") or given in (-1, dim.dim_value) for dim, given in zip(wanted, dims, strict=True)
    )


def _value_info(name: str, dtype: str, dims: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    element = BY_DTYPE.get(dtype)
    if element is None:
        raise ModelFileError(f"{name}: ONNX has no element type {dtype!r}")
    shape = None if dims is None else [None if dim < 0 else dim for dim in dims]
    return helper.make_tensor_value_info(name, element.number, shape)


# The runtime may only accept versions older than those that onnx writes; its own operators are complete up to these.
def _newest_opset() -> int:
    return min(onnx.defs.onnx_opset_version(), 21)


def _ir_version() -> int:
    return min(onnx.IR_VERSION, 10)
