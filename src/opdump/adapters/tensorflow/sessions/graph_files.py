"""The graph files of signatures, which identify the computational models of a dump."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tensorflow.python.framework import function_def_to_graph

from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.graphs.library import BODIES, argument_names, arguments_of, callees_of, functions_of
from opdump.adapters.tensorflow.graphs.operator_kinds import CONSTANTS, SKIPS
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, op_type_of, subgraph_of
from opdump.configs.plan_fields import graph_directory, graph_warnings
from opdump.errors import DumpPathError
from opdump.layouts.graph_files.ge import (
    COMPUTE_GRAPH,
    NOTES_NAME,
    GeGraph,
    GeOperator,
    GeOrigin,
    GeTensor,
    note_graph,
    update_of,
    write_new_ge_graph,
)
from opdump.layouts.graph_files.ge import is_computational as rule_of
from opdump.recorder import Recorder

# Describes the graph of a signature, for the file that identifies the computational model of a dump.

DATA: Final = "Data"

_PLACEHOLDERS: Final = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})

_RUN_FUNCTIONS: Final = frozenset({*BODIES, "For", "RemoteCall"})
"""Types that run functions as part of the graph, unlike a tf.data pipeline, which runs them on the host."""


def ge_graphs_of(model_name: str, computed: Any, *, is_computational: bool = False) -> tuple[GeGraph, ...]:
    """The operators of a signature under their own names and types, then the bodies of its control operators as graphs.

    `computed` is a `Subgraph`, or a `FuncGraph`, the result of tracing a `tf.function` or a train function of Keras.
    Feeds come first: a placeholder unchanged, any other tensor as an operator of type Data. An operator that waits for
    another has `{name}:-1` among its inputs. Operators without data have `runs=False`. The outputs of a graph are those of the function or,
    for a `Subgraph`, all tensors without readers. `is_computational`: the caller knows that it is the graph of training or inference, which
    an attribute records for programs without an iterator.
    """
    of_session = isinstance(computed, Subgraph) and computed.operations
    bodies = _Bodies(computed.operations[0].graph if of_session else computed)
    attributes = {COMPUTE_GRAPH: True} if is_computational else {}
    graphs = [_graph(model_name, computed, bodies, attributes)]
    while bodies.waiting:
        graphs.append(_graph(*bodies.waiting.pop(0), bodies, {}))
    return tuple(graphs)


def _graph(name: str, computed: Any, bodies: _Bodies, attributes: dict[str, Any]) -> GeGraph:
    is_function = not isinstance(computed, Subgraph)
    subgraph = subgraph_of(computed.get_operations(), ()) if is_function else computed
    inputs, results = (computed.inputs, computed.outputs) if is_function else ((), ())
    feeds = _feeds(subgraph)
    sources = {tensor_name: f"{feed.name}:0" for tensor_name, feed in feeds.items()}
    constants = {operation.name for operation in subgraph.operations if operation.type in CONSTANTS}
    operators = [bodies.operator(operation, sources, constants) for operation in subgraph.operations]
    outputs = [sources.get(tensor.name, _source(tensor)) for tensor in results]
    return GeGraph(
        name=name,
        inputs=(*map(_source, inputs), *sources.values()),
        outputs=tuple(outputs or _unread(subgraph)),
        operators=(*feeds.values(), *operators),
        attributes=attributes,
    )


class _Bodies:
    """The functions that operators run, each once. `root` contains all of them."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: set[str] = set()
        self.waiting: list[tuple[str, Any]] = []
        """Names and graphs of bodies that are not yet among the graphs."""

    def operator(self, operation: Any, sources: Mapping[str, str], constants: set[str]) -> GeOperator:
        read = [sources.get(tensor.name, _source(tensor)) for tensor in operation.inputs]
        node, op_type = operation.node_def, op_type_of(operation)
        # The message of a constant contains its value, however large.
        attributes = {"dtype": operation.outputs[0].dtype.name} if op_type in CONSTANTS else arguments_of(node)
        return GeOperator(
            name=operation.name,
            op_type=op_type,
            inputs=(*read, *(f"{other.name}:-1" for other in operation.control_inputs)),
            input_tensors=tuple(_described(tensor) for tensor in operation.inputs),
            input_names=tuple(argument_names(operation.op_def.input_arg, operation.op_def, node)),
            constant_inputs=tuple(
                tensor.op.name in constants and tensor.name not in sources for tensor in operation.inputs
            ),
            outputs=tuple(map(_described, operation.outputs)),
            origins=tuple(GeOrigin(operation.name, slot) for slot in range(len(operation.outputs))),
            original_names=(operation.name,),
            attributes=attributes,
            subgraphs=self._bodies_of(operation),
            runs=op_type not in SKIPS,
        )

    def _bodies_of(self, operation: Any) -> tuple[str, ...]:
        """The names of the functions that an operator runs. Their graphs are queued."""
        if operation.type not in _RUN_FUNCTIONS:
            return ()
        node = operation.node_def
        names = [callee.function for callee in callees_of(node)] or functions_of(node)
        for name in names:
            if name in self._known:
                continue
            self._known.add(name)
            # The graph of a body that is only a message does not contain the functions that it calls.
            body = _function_graph(operation.graph, name) or _function_graph(self._root, name)
            if body is not None:
                self.waiting.append((name, body))
        return tuple(names)


def _feeds(subgraph: Subgraph) -> dict[str, GeOperator]:
    """For each fed tensor that is read, the operator that represents it."""
    read = {
        tensor.name: tensor
        for operation in subgraph.operations
        for tensor in operation.inputs
        if tensor.name in subgraph.fed
    }
    taken = {operation.name for operation in subgraph.operations}
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
    read = {tensor.name for operation in subgraph.operations for tensor in operation.inputs}
    return [
        _source(tensor) for operation in subgraph.operations for tensor in operation.outputs if tensor.name not in read
    ]


def _function_graph(graph: Any, name: str) -> Any:
    """The graph of a function in `graph`, None for others. A message is converted to a graph."""
    function = graph._get_function(name)  # the functions of a graph have no public name
    if function is None:
        return None
    found = getattr(function, "graph", None)
    if found is not None:
        return found
    with graph.as_default():
        return function_def_to_graph.function_def_to_graph(function.definition)


def _described(tensor: Any) -> GeTensor:
    shape = tensor.shape
    known = None if shape.rank is None else tuple(-1 if dim is None else int(dim) for dim in shape.as_list())
    return GeTensor(tensor.dtype.base_dtype.name, known)


def _source(tensor: Any) -> str:
    return f"{tensor.op.name}:{tensor.value_index}"


# Writes the graphs of signatures to the directory that the environment names, by default that of the program.
#
# See docs/tensorflow-graph.md#the-files.


class GraphFiles:
    """Writes a text and a JSON file for each model of a capture, and records their places in the dump."""

    def __init__(self, capture: Capture, environ: Mapping[str, str]) -> None:
        here = Path.cwd()
        configured = graph_directory(environ, pid=os.getpid(), device_id=capture.device_id, cwd=here)
        self._directories = [here] if configured in (None, here) else [configured, here]
        self._recorder: Recorder = capture.recorder
        self._capture = capture
        self._lock = threading.Lock()
        self._unwritten: list[tuple[Path, Model, str | None, str]] = []
        for text in graph_warnings(environ):
            capture.note(text)

    def __call__(self, model: Model, computed: Any, *, is_computational: bool) -> None:
        """Write the graph of a model, a `Subgraph` or the graph of a function.

        If a directory cannot be written, a note reports it and another directory is used. If none can be, the dump continues without the graph, or
        the error is raised, depending on the plan's `on_error`.
        """
        graphs = ge_graphs_of(model.name, computed, is_computational=is_computational)
        try:
            written = write_new_ge_graph(self._directories, model.number, graphs)
        except DumpPathError as error:
            if self._recorder.plan.on_error == "stop":
                raise
            self._capture.note(str(error))  # the dump continues without the graph
            return
        if written.warning:
            self._capture.note(written.warning)
        rule = rule_of(graphs) if is_computational else None
        with self._lock:
            self._unwritten.append((written.path, model, rule, update_of(graphs)))

    def note_files(self) -> None:
        """Record in the dump which graph files belong to it, once there is a dump."""
        writer = self._recorder.writer
        metadata = writer.metadata
        if metadata is None:
            return
        with self._lock:
            for path, model, rule, update in self._unwritten:
                note_graph(metadata, path, model.name, model.number, rule, update)
                # Graph files are usually elsewhere; those within the dump count towards its size.
                for file in (metadata / NOTES_NAME, path, path.with_name(f"{path.name}.json")):
                    writer.adopt(file)
            self._unwritten.clear()
