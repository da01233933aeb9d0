"""Describes the graph of a signature, for the file that says which model of a dump is the computational one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.operator_kinds import SKIPS
from opdump.adapters.tensorflow.sessions.subgraph import GraphOperator, Subgraph, subgraph_of
from opdump.layouts.graph_files.ge import COMPUTE_GRAPH, GeGraph, GeOperator, GeOrigin, GeTensor

DATA: Final = "Data"

_PLACEHOLDERS: Final = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})
_CONSTANTS: Final = frozenset({"Const", "HostConst"})

# Attributes that name the functions which an operator runs itself. Those that a tf.data pipeline runs on the host are no part of a graph.
_BODIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **dict.fromkeys(("If", "StatelessIf", "_If"), ("then_branch", "else_branch")),
        **dict.fromkeys(("While", "StatelessWhile", "_While"), ("cond", "body")),
        **dict.fromkeys(("Case", "StatelessCase"), ("branches",)),
        "For": ("body",),
        **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall", "RemoteCall"), ("f",)),
    }
)


def ge_graphs_of(
    model_name: str, subgraph: Subgraph, *, fetched: Iterable[Any] = (), is_computational: bool = False
) -> tuple[GeGraph, ...]:
    """The operators of a signature under their own names and types, then the bodies of its control operators as graphs.

    What is fed comes first: a placeholder as it is, any other tensor as an operator of type Data. An operator that waits for
    another has `{name}:-1` among its inputs. What leaves no data has `runs=False`. `fetched` are the outputs of the graph;
    without any, these are the outputs that no operator reads. `is_computational`: the caller knows that it is the graph of
    training or inference, and so says an attribute of it, for programs that have no iterator.
    """
    return _Builder().graphs(model_name, subgraph, fetched, is_computational=is_computational)


def ge_graphs_of_function(model_name: str, func_graph: Any, *, is_computational: bool = False) -> tuple[GeGraph, ...]:
    """The same of a `FuncGraph`, what a `tf.function` or a train function of Keras was traced to."""
    subgraph = subgraph_of(func_graph.get_operations(), ())
    return _Builder().graphs(
        model_name,
        subgraph,
        func_graph.outputs,
        inputs=[_source(tensor) for tensor in func_graph.inputs],
        is_computational=is_computational,
    )


class _Builder:
    """Collects the graph of a signature and those of its bodies, each body once."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._waiting: list[tuple[str, Any]] = []
        """Names and graphs of bodies that are not among the graphs yet."""
        self._root: Any = None

    def graphs(
        self,
        name: str,
        subgraph: Subgraph,
        fetched: Iterable[Any],
        *,
        inputs: Sequence[str] = (),
        is_computational: bool = False,
    ) -> tuple[GeGraph, ...]:
        self._root = subgraph.operators[0].operation.graph if subgraph.operators else None
        found = [self._graph(name, subgraph, fetched, inputs, is_computational=is_computational)]
        while self._waiting:
            body_name, body = self._waiting.pop(0)
            inner = subgraph_of(body.get_operations(), ())
            found.append(self._graph(body_name, inner, body.outputs, [_source(tensor) for tensor in body.inputs]))
        return tuple(found)

    def _graph(
        self,
        name: str,
        subgraph: Subgraph,
        fetched: Iterable[Any],
        inputs: Sequence[str],
        *,
        is_computational: bool = False,
    ) -> GeGraph:
        feeds = _feeds(subgraph)
        sources = {tensor_name: f"{feed.name}:0" for tensor_name, feed in feeds.items()}
        constants = {operator.name for operator in subgraph.operators if operator.op_type in _CONSTANTS}
        operators = [self._operator(operator, sources, constants) for operator in subgraph.operators]
        outputs = [
            sources.get(tensor.name, _source(tensor)) for tensor in fetched if not isinstance(tensor, tf.Operation)
        ]
        return GeGraph(
            name=name,
            inputs=(*inputs, *sources.values()),
            outputs=tuple(outputs or _unread(subgraph)),
            operators=(*feeds.values(), *operators),
            attributes={COMPUTE_GRAPH: True} if is_computational else {},
        )

    def _operator(self, operator: GraphOperator, sources: Mapping[str, str], constants: set[str]) -> GeOperator:
        operation = operator.operation
        tensors = [slot.tensor for slot in operator.inputs]
        read = [sources.get(tensor.name, _source(tensor)) for tensor in tensors]
        return GeOperator(
            name=operator.name,
            op_type=operator.op_type,
            inputs=(*read, *(f"{other.name}:-1" for other in operation.control_inputs)),
            input_tensors=tuple(_described(tensor) for tensor in tensors),
            input_names=tuple(slot.argument for slot in operator.inputs),
            constant_inputs=tuple(tensor.op.name in constants and tensor.name not in sources for tensor in tensors),
            outputs=tuple(_described(slot.tensor) for slot in operator.outputs),
            origins=tuple(GeOrigin(operator.name, slot.slot) for slot in operator.outputs),
            original_names=(operator.name,),
            attributes=_attributes(operator),
            subgraphs=self._bodies_of(operation),
            runs=operator.op_type not in SKIPS,
        )

    def _bodies_of(self, operation: Any) -> tuple[str, ...]:
        """The names of the functions that an operator runs; their graphs are to be added."""
        names = []
        for attribute in _BODIES.get(operation.type, ()):
            value = operation.node_def.attr[attribute]
            functions = value.list.func if value.WhichOneof("value") == "list" else [value.func]
            names += [function.name for function in functions]
        for name in names:
            if name in self._known:
                continue
            self._known.add(name)
            # The graph of a body that came as a message does not know the functions that it calls.
            body = _function_graph(operation.graph, name) or _function_graph(self._root, name)
            if body is not None:
                self._waiting.append((name, body))
        return tuple(names)


def _feeds(subgraph: Subgraph) -> dict[str, GeOperator]:
    """For each fed tensor that is read the operator that stands for it."""
    read = {
        slot.tensor.name: slot.tensor
        for operator in subgraph.operators
        for slot in operator.inputs
        if slot.tensor.name in subgraph.fed
    }
    taken = {operator.name for operator in subgraph.operators}
    feeds = {}
    for tensor_name, tensor in read.items():
        is_placeholder = tensor.op.type in _PLACEHOLDERS
        name = str(tensor.op.name)
        while name in taken:  # another output of the operator is computed, or fed too
            name = f"{name}_{tensor.value_index}"
        taken.add(name)
        feeds[tensor_name] = GeOperator(
            name=name,
            op_type=str(tensor.op.type) if is_placeholder else DATA,
            outputs=(_described(tensor),),
            origins=(GeOrigin(str(tensor.op.name), tensor.value_index),),
            original_names=(str(tensor.op.name),),
            runs=False,
        )
    return feeds


def _unread(subgraph: Subgraph) -> list[str]:
    read = {slot.tensor.name for operator in subgraph.operators for slot in operator.inputs}
    return [
        _source(slot.tensor)
        for operator in subgraph.operators
        for slot in operator.outputs
        if slot.tensor.name not in read
    ]


def _function_graph(graph: Any, name: str) -> Any:
    """The graph of a function that `graph` knows, None of another; one that came as a message is made a graph."""
    function = graph._get_function(name)  # the functions of a graph have no public name
    if function is None:
        return None
    found = getattr(function, "graph", None)
    if found is not None:
        return found
    with graph.as_default():
        return function_def_to_graph.function_def_to_graph(function.definition)


def _attributes(operator: GraphOperator) -> Mapping[str, Any]:
    if operator.op_type in _CONSTANTS:
        return {"dtype": operator.outputs[0].tensor.dtype.name}  # its message holds the value, however large
    return arguments_of(operator.operation.node_def)


def _described(tensor: Any) -> GeTensor:
    shape = tensor.shape
    known = None if shape.rank is None else tuple(-1 if dim is None else int(dim) for dim in shape.as_list())
    return GeTensor(tensor.dtype.base_dtype.name, known)


def _source(tensor: Any) -> str:
    return f"{tensor.op.name}:{tensor.value_index}"
