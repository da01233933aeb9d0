"""Describes the graphs of a loaded model for the graph files of its dump, in the form of devices and of MindSpore."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

import onnx
from onnx import GraphProto, ModelProto, TypeProto

from opdump.adapters.host import BY_NUMBER
from opdump.adapters.onnxruntime.model_graph import ModelNode, bodies_of, fusions, nodes_of
from opdump.adapters.onnxruntime.session import OnnxSession
from opdump.graph import GraphBuilder, GraphInput, GraphNode, GraphOutput
from opdump.layouts.graph_files.ge import GeGraph, GeOperator, GeOrigin, GeTensor
from opdump.records import RUN_FACTS

DATA: Final = "Data"
CONST: Final = "Const"
NET_OUTPUT: Final = "NetOutput"
_OUTPUT_NODE: Final = "Node_Output"


def ge_graphs_of(session: OnnxSession) -> tuple[GeGraph, ...]:
    """The nodes that run, after the inputs (type Data) and the initialisers (Const) of the model, under their own names.

    The bodies of control operators are graphs that follow the main one; the outer values that they read are among their inputs.

    An operator made by an optimiser has the names of the operators that it replaces, and each output has the name of the operator
    that made it in the original model. Without optimisation, both are the operator's own name. ONNX infers the shapes from the
    model; unknown ones are -1.
    """
    return _Builder(session).graphs()


def enter_nodes(session: OnnxSession, builder: GraphBuilder) -> None:
    """Add the nodes that run to a graph for MindSpore's files, each control operator before those of its bodies.

    ONNX infers the shapes from the model; an unknown one is -1, or has no type. Inputs of the model have no source, because
    the program provides them.
    """
    values = _value_types(session.ran.proto)
    made = {name: f"Parameter.{name}" for name in session.ran.constants()}
    _enter(builder, session.nodes, values, made)


def _enter(
    builder: GraphBuilder, nodes: Sequence[ModelNode], values: Mapping[str, GeTensor], around: Mapping[str, str]
) -> None:
    sources = {**around, **_makers(nodes)}
    for node in nodes:
        read = [(sources.get(value, ""), values.get(value, GeTensor())) for value in node.inputs]
        builder.add_with_values(
            GraphNode(
                op_name=node.name,
                op_type=node.op_type,
                inputs=tuple(GraphInput(source, tensor.dtype, tensor.shape or ()) for source, tensor in read),
                outputs=tuple(
                    GraphOutput(tensor.dtype, tensor.shape or ())
                    for tensor in (values.get(value, GeTensor()) for value in node.outputs)
                ),
                attributes=node.operator.arguments,
                runs_kernel=not node.operator.skip,
            )
        )
        for body, own in zip(node.bodies, node.body_sources, strict=True):
            _enter(builder, body, values, {**sources, **own})


class _Builder:
    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self._values = _value_types(session.ran.proto)
        self._taken = {node.name for top in session.nodes for node in top.with_bodies}
        self._constants: set[str] = set()
        self._origins: Mapping[str, GeOrigin] = {}
        self._fusions: Mapping[str, tuple[str, ...]] = {}
        self._graphs: list[GeGraph] = []

    def graphs(self) -> tuple[GeGraph, ...]:
        session = self._session
        graph = session.ran.proto.graph
        if session.ran is not session.model:
            originals = nodes_of(session.model.proto)
            self._origins = _origins(originals)
            self._fusions = fusions(originals, session.nodes, graph)
        self._add(session.model.name, graph, session.nodes, [value.name for value in session.model.proto.graph.output])
        return tuple(self._graphs)

    def _add(self, name: str, graph: GraphProto, nodes: Sequence[ModelNode], outputs: Sequence[str]) -> None:
        """Add a graph, then those of its bodies."""
        initializers = sorted(tensor.name for tensor in graph.initializer)
        self._constants.update(initializers)
        fed = _fed_values(graph, nodes, outputs)
        makers: dict[str, str] = {}
        operators = [self._outside(value, DATA, makers) for value in fed]
        operators += [self._outside(value, CONST, makers) for value in initializers]
        makers |= _makers(nodes)
        bodies = [_bodies(node, graph) for node in nodes]
        for node, own in zip(nodes, bodies, strict=True):
            operators.append(self._operator(node, makers, tuple(body.name for body, _ in own)))
        operators.append(self._output(outputs, makers))
        self._graphs.append(
            GeGraph(
                name=name,
                inputs=tuple(makers[value] for value in fed),
                outputs=tuple(makers.get(value, "") for value in outputs),
                operators=tuple(operators),
            )
        )
        for body, inner in itertools.chain.from_iterable(bodies):
            self._add(body.name, body, inner, [value.name for value in body.output])

    def _outside(self, value: str, op_type: str, makers: dict[str, str]) -> GeOperator:
        name = self._free_name(value)
        makers[value] = f"{name}:0"
        return GeOperator(
            name=name,
            op_type=op_type,
            outputs=(self._values.get(value, GeTensor()),),
            origins=(GeOrigin(value, 0),),
            original_names=(value,),
            runs=False,
        )

    def _output(self, values: Sequence[str], makers: Mapping[str, str]) -> GeOperator:
        return GeOperator(
            name=self._free_name(_OUTPUT_NODE),
            op_type=NET_OUTPUT,
            inputs=tuple(makers.get(value, "") for value in values),
            input_tensors=tuple(self._values.get(value, GeTensor()) for value in values),
            input_names=tuple(values),
            constant_inputs=tuple(value in self._constants for value in values),
            runs=False,
        )

    def _operator(self, node: ModelNode, makers: Mapping[str, str], subgraphs: tuple[str, ...]) -> GeOperator:
        if node.operator.skip == "constant":
            self._constants.update(node.outputs)
        return GeOperator(
            name=node.name,
            op_type=node.op_type,
            inputs=tuple(makers.get(value, "") for value in node.inputs),
            input_tensors=tuple(self._values.get(value, GeTensor()) for value in node.inputs),
            input_names=node.input_arguments,
            constant_inputs=tuple(value in self._constants for value in node.inputs),
            outputs=tuple(self._values.get(value, GeTensor()) for value in node.outputs),
            origins=tuple(
                self._origins.get(value, GeOrigin(node.name, slot)) if value else None
                for slot, value in enumerate(node.outputs)
            ),
            original_names=self._fusions.get(node.name, (node.name,)),
            attributes={name: value for name, value in node.operator.arguments.items() if name not in RUN_FACTS},
            subgraphs=subgraphs,
            runs=not node.operator.skip,
        )

    def _free_name(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _bodies(node: ModelNode, graph: GraphProto) -> list[tuple[GraphProto, tuple[ModelNode, ...]]]:
    return list(zip(bodies_of(graph.node[node.position]), node.bodies, strict=True)) if node.bodies else []


def _makers(nodes: Sequence[ModelNode]) -> dict[str, str]:
    """The operator and slot that make each value, as `name:slot`."""
    return {value: f"{node.name}:{slot}" for node in nodes for slot, value in enumerate(node.outputs) if value}


def _fed_values(graph: GraphProto, nodes: Sequence[ModelNode], outputs: Sequence[str]) -> list[str]:
    """The inputs of a graph that are not initialisers, then the outer values that its nodes read and that it returns."""
    initializers = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in initializers]
    read = [*(value for node in nodes for value in sorted(node.reads)), *outputs]
    own = {"", *inputs, *initializers, *_makers(nodes)}
    return [*inputs, *(value for value in dict.fromkeys(read) if value not in own)]


def _origins(originals: Sequence[ModelNode]) -> Mapping[str, GeOrigin]:
    """The maker of each value of the original model."""
    return {value: GeOrigin(node.name, slot) for node in originals for slot, value in enumerate(node.outputs) if value}


def _value_types(model: ModelProto) -> dict[str, GeTensor]:
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        graph = model.graph  # the model has operators that ONNX does not know, so only the shapes in the file are used
    found: dict[str, GeTensor] = {}
    _add_value_types(graph, found)
    return found


def _add_value_types(graph: GraphProto, found: dict[str, GeTensor]) -> None:
    found.update((each.name, GeTensor(_dtype(each.data_type), tuple(each.dims))) for each in graph.initializer)
    for value in (*graph.input, *graph.value_info, *graph.output):
        found[value.name] = _tensor_of(value.type)
    for node in graph.node:
        for body in bodies_of(node):
            _add_value_types(body, found)


def _tensor_of(kind: TypeProto) -> GeTensor:
    if kind.WhichOneof("value") != "tensor_type":
        return GeTensor()
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return GeTensor(_dtype(tensor.elem_type))
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim)
    return GeTensor(_dtype(tensor.elem_type), shape)


def _dtype(number: int) -> str:
    return BY_NUMBER[number].dtype if number in BY_NUMBER else ""
