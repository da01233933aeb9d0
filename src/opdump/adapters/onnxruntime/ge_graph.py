"""The graph of a loaded model, for the file that stands beside its dump."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import onnx
from onnx import ModelProto, TypeProto

from opdump.layouts.ge_graph import GeGraph, GeOperator, GeOrigin, GeTensor

from .element_types import BY_NUMBER
from .model_graph import ModelNode, nodes_of
from .session import OnnxSession

DATA: Final = "Data"
CONST: Final = "Const"
NET_OUTPUT: Final = "NetOutput"
_OUTPUT_NODE: Final = "Node_Output"


def ge_graph_of(session: OnnxSession) -> GeGraph:
    """The nodes that run, after the inputs (type Data) and the initialisers (Const) of the model, whose names are their own.

    An operator that an optimiser made tells the names of those that it stands for, and each of its outputs that of the
    operator which made it in the original model; where nothing was optimised these are its own. Shapes are those that ONNX
    infers from the model; what it cannot infer is -1.
    """
    return _Builder(session).graph()


class _Builder:
    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self._model = session.ran.proto
        self._values = _value_types(self._model)
        self._makers: dict[str, str] = {}
        self._origins: Mapping[str, GeOrigin] = {}
        self._fusions: Mapping[str, tuple[str, ...]] = {}
        self._taken = {node.name for top in session.nodes for node in top.with_bodies}
        self._constants: set[str] = set()

    def graph(self) -> GeGraph:
        proto = self._model.graph
        initializers = {tensor.name for tensor in proto.initializer}
        fed = [value.name for value in proto.input if value.name not in initializers]
        operators = [self._outside(name, DATA) for name in fed]
        inputs = tuple(self._makers[name] for name in fed)
        operators += [self._outside(name, CONST) for name in sorted(initializers)]
        self._constants |= initializers
        for node in self._session.nodes:
            self._makers.update((value, f"{node.name}:{slot}") for slot, value in enumerate(node.outputs) if value)
        if self._session.ran is not self._session.model:
            originals = nodes_of(self._session.model.proto)
            self._origins = _origins(originals)
            self._fusions = fusions(originals, self._session.nodes, set(self._makers))
        operators += [self._operator(node) for node in self._session.nodes]
        given = [value.name for value in self._session.model.proto.graph.output]
        operators.append(
            GeOperator(
                name=self._free_name(_OUTPUT_NODE),
                op_type=NET_OUTPUT,
                inputs=tuple(self._makers.get(name, "") for name in given),
                input_tensors=tuple(self._values.get(name, GeTensor()) for name in given),
                input_names=tuple(given),
                constant_inputs=tuple(name in self._constants for name in given),
                runs=False,
            )
        )
        return GeGraph(
            name=self._session.model.name,
            inputs=inputs,
            outputs=tuple(self._makers.get(name, "") for name in given),
            operators=tuple(operators),
        )

    def _outside(self, value: str, op_type: str) -> GeOperator:
        name = self._free_name(value)
        self._makers[value] = f"{name}:0"
        return GeOperator(
            name=name,
            op_type=op_type,
            outputs=(self._values.get(value, GeTensor()),),
            origins=(GeOrigin(value, 0),),
            original_names=(value,),
            runs=False,
        )

    def _operator(self, node: ModelNode) -> GeOperator:
        if node.skip == "constant":
            self._constants.update(node.outputs)
        return GeOperator(
            name=node.name,
            op_type=node.op_type,
            inputs=tuple(self._makers.get(value, "") for value in node.inputs),
            input_tensors=tuple(self._values.get(value, GeTensor()) for value in node.inputs),
            input_names=node.input_arguments,
            constant_inputs=tuple(value in self._constants for value in node.inputs),
            outputs=tuple(self._values.get(value, GeTensor()) for value in node.outputs),
            origins=tuple(
                self._origins.get(value, GeOrigin(node.name, slot)) if value else None
                for slot, value in enumerate(node.outputs)
            ),
            original_names=self._fusions.get(node.name, (node.name,)),
            attributes=node.arguments,
            runs=not node.skip,
        )

    def _free_name(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def fusions(
    originals: Sequence[ModelNode], nodes: Sequence[ModelNode], values: Collection[str]
) -> Mapping[str, tuple[str, ...]]:
    """For each node of an optimised model, the nodes of the original one that it does the work of, in their order.

    These are those that make its outputs, and whatever leads to them from `values`, which the optimised model has too, but for
    constants. A node
    that an optimiser added, to change the order of elements, names the one whose output it passes on.
    """
    makers = {value: node for node in originals if node.skip != "constant" for value in node.outputs if value}
    named = {node.name: node for node in originals}
    claims = {name: node.name for node in nodes for name in node.original_names}
    order = {node.name: place for place, node in enumerate(originals)}
    found = {}
    for node in nodes:
        waiting = [makers[value] for value in node.outputs if value in makers]
        waiting += [named[name] for name in node.original_names if name in named]
        done: set[str] = set()
        while waiting:
            original = waiting.pop()
            if original.name in done:
                continue
            done.add(original.name)
            for value in original.reads:
                maker = makers.get(value)
                if maker is not None and value not in values and claims.get(maker.name, node.name) == node.name:
                    waiting.append(maker)
        found[node.name] = tuple(sorted(done, key=order.__getitem__)) or (node.name,)
    return found


def _origins(originals: Sequence[ModelNode]) -> Mapping[str, GeOrigin]:
    """For each value of the original model, who makes it there."""
    return {value: GeOrigin(node.name, slot) for node in originals for slot, value in enumerate(node.outputs) if value}


def _value_types(model: ModelProto) -> dict[str, GeTensor]:
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        graph = model.graph  # it has operators that ONNX does not know: what is written in it has to do
    found = {tensor.name: GeTensor(_dtype(tensor.data_type), tuple(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        found[value.name] = _tensor_of(value.type)
    return found


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
