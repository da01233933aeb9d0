"""What in a model makes a second run, or a run with more outputs, give other numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from .model_graph import ModelNode, bodies_of

_RANDOM_OPERATORS: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
)
_HALF: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Attributes that ask for an element type.
_TYPE_ATTRIBUTES: Final = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"}
)


def has_random_operators(model: ModelProto) -> bool:
    """Whether a second run may give something else, in the graph, its bodies or its functions.

    A Dropout counts, whether it is in training or not: that is decided while it runs.
    """
    return any(_is_random(node) for node in _nodes_of_model(model))


def has_half_precision(model: ModelProto) -> bool:
    """Whether some value may be float16 or bfloat16: such a type enters a model by what is fed, written or asked for in it.

    Where a device lacks a kernel of such a type, ONNX Runtime computes in float32 between two operators, and rounds only what
    is an output of the model. So numbers depend on which values are outputs.
    """
    graph = model.graph
    return _has_half_values(graph) or any(_has_half_attributes(node) for node in _nodes_of_model(model))


def is_random(node: ModelNode) -> bool:
    """Whether a second run of a node, or of what is in its bodies, may give something else."""
    return any(each.op_type in _RANDOM_OPERATORS for each in node.with_bodies)


def _nodes_of_model(model: ModelProto) -> Iterable[NodeProto]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def _is_random(node: NodeProto) -> bool:
    return node.op_type in _RANDOM_OPERATORS or any(
        _is_random(inner) for body in bodies_of(node) for inner in body.node
    )


def _has_half_values(graph: GraphProto) -> bool:
    values = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(_is_half(value.type) for value in values)
        or any(tensor.data_type in _HALF for tensor in graph.initializer)
        or any(tensor.values.data_type in _HALF for tensor in graph.sparse_initializer)
    )


def _is_half(kind: TypeProto) -> bool:
    held = kind.WhichOneof("value")
    if held in ("tensor_type", "sparse_tensor_type"):
        return getattr(kind, held).elem_type in _HALF
    if held in ("sequence_type", "optional_type"):
        return _is_half(getattr(kind, held).elem_type)
    return held == "map_type" and _is_half(kind.map_type.value_type)


def _has_half_attributes(node: NodeProto) -> bool:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in _TYPE_ATTRIBUTES and attribute.i in _HALF:
            return True
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in _HALF:
            return True
    return any(
        _has_half_values(body) or any(_has_half_attributes(inner) for inner in body.node) for body in bodies_of(node)
    )
