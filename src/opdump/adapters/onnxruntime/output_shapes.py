"""Infers the shapes of the outputs of a model from those of its inputs, without a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import onnx
from onnx import ModelProto, TensorProto, helper

from opdump.adapters.onnxruntime.model_file import ModelFile
from opdump.errors import ModelFileError

_SMALL: Final = 1024
"""Maximum number of elements of an initialiser that may be a shape; larger ones are weights."""


def output_shapes(model: ModelFile, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of the outputs by name; -1 for a dimension that is only known in a run. Outputs of unknown rank are omitted.

    Raises ModelFileError for a graph that cannot have inputs of these shapes, as far as shape inference detects it.
    """
    proto = ModelProto(ir_version=max(model.proto.ir_version, 4))
    proto.opset_import.extend(model.proto.opset_import)
    proto.functions.extend(model.proto.functions)
    graph = model.proto.graph
    proto.graph.name = graph.name or "graph"
    proto.graph.node.extend(graph.node)
    proto.graph.output.extend(graph.output)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    fixed = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in fixed:
            element = value.type.tensor_type.elem_type
            proto.graph.input.append(helper.make_tensor_value_info(value.name, element, inputs.get(value.name)))
    for tensor in graph.initializer:
        _add(proto, tensor)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelFileError(f"{model.name}: inputs of {dict(inputs)} do not fit the graph: {error}") from error
    found = {}
    for output in inferred.graph.output:
        if output.type.tensor_type.HasField("shape"):
            dims = output.type.tensor_type.shape.dim
            found[output.name] = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)
    return found


def _add(proto: ModelProto, tensor: TensorProto) -> None:
    """Keep only the shapes of weights: copying them is unnecessary, and those in separate files cannot be read here."""
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > _SMALL:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    else:
        proto.graph.initializer.append(tensor)
