"""Finds the parts of a model for which a second run, or a run with more outputs, changes numbers or repeats an effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from opdump.adapters.onnxruntime.model_graph import ModelNode, bodies_of

RANDOM_OPERATORS: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
    | {"BiasDropout", "BitmaskDropout", "BitmaskBiasDropout"}
)
# Operators of these domains compute their outputs from their inputs. The effects of other operators are unknown.
_WITHOUT_EFFECTS: Final = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft"}
    | {"com.microsoft.nchwc", "com.microsoft.experimental", "com.microsoft.dml", "com.ms.internal.nhwc"}
)
# Domains of ONNX Runtime itself whose operators call Python.
_CALLS_PYTHON: Final = frozenset({("com.microsoft", "PythonOp"), ("com.microsoft", "PythonOpGrad")})
_HALF: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Attributes with an element type.
_TYPE_ATTRIBUTES: Final = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"}
)


def has_random_operators(model: ModelProto) -> bool:
    """Whether a second run may have other results, because of the graph, its bodies or its functions.

    A Dropout counts, in training or not, because that is decided while it runs.
    """
    return any(_is_random(node) for node in _nodes_of_model(model))


def has_half_precision(model: ModelProto) -> bool:
    """Whether a value may be float16 or bfloat16: such a type comes from inputs, stored values or attributes.

    If a device lacks a kernel for such a type, ONNX Runtime computes in float32 between two operators, and rounds only the outputs of the
    model. Numbers therefore depend on which values are outputs.
    """
    graph = model.graph
    return _has_half_values(graph) or any(_has_half_attributes(node) for node in _nodes_of_model(model))


def is_random(node: ModelNode) -> bool:
    """Whether a second run of a node, or of its bodies, may have other results."""
    return any(each.op_type in RANDOM_OPERATORS for each in node.with_bodies)


def operators_of_program(model: ModelProto, nodes: Iterable[ModelNode]) -> dict[str, str]:
    """The nodes of the model's own graph that run an operator of the program, by name, with that operator (`domain::type`).

    The domain of such an operator belongs neither to ONNX nor to ONNX Runtime, and the operator is not a function of the model: it is a
    library that the program registered, or its Python. It may count, write or communicate, so it must not run more often than the program
    requested. A node that contains such an operator in a body or a function counts, too.
    """
    functions = {(function.domain, function.name): function.node for function in model.functions}
    known: dict[tuple[str, str], str] = dict.fromkeys(functions, "")

    def found_in(node: NodeProto) -> str:
        kind = (node.domain, node.op_type)
        if kind in functions:
            return known[kind]
        if node.domain not in _WITHOUT_EFFECTS or kind in _CALLS_PYTHON:
            return f"{node.domain}::{node.op_type}"
        return next((found for body in bodies_of(node) for inner in body.node if (found := found_in(inner))), "")

    # A function may call another one; each round finds those one call further away.
    for _ in functions:
        known.update((kind, next(filter(None, map(found_in, body)), "")) for kind, body in functions.items())
    written = model.graph.node
    return {node.name: found for node in nodes if (found := found_in(written[node.position]))}


def _nodes_of_model(model: ModelProto) -> Iterable[NodeProto]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def _is_random(node: NodeProto) -> bool:
    return node.op_type in RANDOM_OPERATORS or any(_is_random(inner) for body in bodies_of(node) for inner in body.node)


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
