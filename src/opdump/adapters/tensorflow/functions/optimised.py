"""Lets the runtime optimise a function, and returns the result: the executed graphs on each device. The function does not run.

The runtime optimises a function in its first call: it inlines functions, rewrites and fuses operators, and places them. A copy of the function
is therefore called with an additional argument of the wrong type: the runtime first prepares the copy, and then rejects its arguments.
Source: TensorFlow's execute.cc (`AddOrExecuteNode`), process_function_library_runtime.cc (`InstantiateMultiDevice`).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import function_def_to_graph, smart_cond
from tensorflow.python.ops import summary_ops_v2

from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.library import Definition

_ARGUMENT: Final = "opdump_argument"
_RESULT: Final = "_opdump_result_"
_MARKED_RESULT: Final = re.compile(f"{_RESULT}[0-9]+_RetVal$")
_NUMBERS: Final = itertools.count()
_ATTEMPTS: Final = 5
"""Maximum number of attempts while other threads let functions be optimised, whose graphs are mixed with the requested ones."""
_COLLECTING: Final = threading.Lock()
"""Graphs are collected for the whole process."""


def with_argument(definition: Definition, name: str) -> Definition:
    """A copy of a function with an additional argument, a number, and unique names of results: both identify the graphs that the runtime makes of it."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name = name
    number = next(_NUMBERS)
    copy.signature.input_arg.add(name=f"{_ARGUMENT}_{number}", type=tf.int32.as_datatype_enum)
    for result in copy.signature.output_arg:
        value = copy.ret.pop(result.name)
        result.name += f"{_RESULT}{number}"
        copy.ret[result.name] = value
    # It is one of several functions that the runtime may exchange for each other; the copy must not be.
    copy.attr.pop("api_implements", None)
    return copy


def standing_for(context: Any, dtype: int, device: str) -> Any:
    """A tensor for an argument of a function of which only type and device are known. The handle of a variable has no shape."""
    attributes: tuple[Any, ...]
    with context.device(device):
        if dtype == tf.resource.as_datatype_enum:
            attributes = ("container", "", "shared_name", "opdump", "dtype", tf.float32.as_datatype_enum, "shape", None)
            return execute.quick_execute("VarHandleOp", 1, [], attributes, context)[0]
        if dtype == tf.variant.as_datatype_enum:
            attributes = ("element_dtype", tf.float32.as_datatype_enum, "shape_type", tf.int32.as_datatype_enum)
            return execute.quick_execute("EmptyTensorList", 1, [tf.constant(-1), tf.constant(-1)], attributes, context)[
                0
            ]
        return tf.constant("" if dtype == tf.string.as_datatype_enum else 0, tf.as_dtype(dtype))


def constant_value(definition: Definition, key: Key) -> Any | None:
    """The value of a tensor in a function, if the runtime knows it before a call: from constants and known shapes."""
    graph = function_def_to_graph.function_def_to_graph(definition)
    return smart_cond.smart_constant_value(graph.get_tensor_by_name(key))


def function_graphs(
    context: Any, definition: Definition, inputs: Sequence[Any], config: bytes, *, is_programs: bool = False
) -> Any | None:
    """The runtime's optimisation of a function with this definition, whose last argument is that of `with_argument`.

    A `RunMetadata.FunctionGraphs`: the graph before and after its optimisation, and the parts that devices execute. `config` is the
    ConfigProto for the optimisation. None if the runtime rejects the function. If the program collects graphs itself
    (`tf.summary.trace_on`), it gets those of a function of its own (`is_programs`).
    """
    name, argument = definition.signature.name, definition.signature.input_arg[-1].name
    executor = context.function_call_options.executor_type or ""
    arguments = [*inputs, tf.constant(0.0)]  # the last one has another type
    for attempt in range(_ATTEMPTS):
        attributes = ("executor_type", executor, "config_proto", _not_made_before(config, attempt))
        with _COLLECTING, _programs_own(context) as programs:
            metadata = _collected(context, name, len(definition.signature.output_arg), arguments, attributes)
            if is_programs and programs is not None:
                programs.MergeFrom(metadata)
        for graphs in metadata.function_graphs:
            found = [node.name for node in graphs.pre_optimization_graph.node if node.op == "_Arg"]
            is_ours = argument in found and len(found) == len(definition.signature.input_arg)
            if is_ours and _is_of_one_function(graphs, definition):
                _with_plain_results(graphs)
                return graphs
    return None


def _not_made_before(config: bytes, attempt: int) -> bytes:
    """An equal ConfigProto for which the runtime has no result from an earlier attempt."""
    made = config_pb2.ConfigProto.FromString(config)
    made.placement_period += attempt  # for sessions in several processes; not used here
    return config if attempt == 0 else made.SerializeToString()


def _is_of_one_function(graphs: Any, definition: Definition) -> bool:
    """Whether the graphs after the optimisation belong to that function, not to one that another thread optimised at the same time."""
    given = {node.name for node in graphs.pre_optimization_graph.node if node.op == "_Arg"}
    results = {f"{each.name}_RetVal" for each in definition.signature.output_arg}
    executed = [node for part in graphs.partition_graphs for node in part.node]
    for nodes in (graphs.post_optimization_graph.node, executed):
        # Arguments without readers may be missing, results never.
        if not given.issuperset(node.name for node in nodes if node.op == "_Arg"):
            return False
        if not results.issubset(node.name for node in nodes if node.op == "_Retval"):
            return False
    return True


def _with_plain_results(graphs: Any) -> None:
    """Give the results the names that they have in the program's function."""
    for graph in (graphs.pre_optimization_graph, graphs.post_optimization_graph, *graphs.partition_graphs):
        for node in graph.node:
            if node.op == "_Retval":
                node.name = _MARKED_RESULT.sub("_RetVal", node.name)


def _collected(
    context: Any, name: str, result_count: int, arguments: Sequence[Any], attributes: tuple[Any, ...]
) -> Any:
    """The graphs of all functions that were optimised during this call, which does not run."""

    def hand_on() -> None:  # the next run returns the collected graphs
        execute.quick_execute("Identity", 1, arguments[-1:], ("T", tf.float32.as_datatype_enum), context)

    hand_on()  # the runtime already has it, and collects nothing
    context.enable_graph_collection()
    try:
        execute.quick_execute(name, result_count, arguments, attributes, context)
    except tf.errors.OpError:
        pass  # as expected
    else:
        raise AssertionError(f"{name} ran with an argument of another type")
    finally:
        hand_on()
        metadata = context.export_run_metadata()
        context.disable_graph_collection()
    return metadata


@contextmanager
def _programs_own(context: Any) -> Iterator[Any | None]:
    """The graphs that the program itself collects (`tf.summary.trace_on`), kept until it requests them; None if it collects none."""
    trace = summary_ops_v2._current_trace_context
    if trace is None:
        yield None
        return
    collected = context.export_run_metadata()
    yield collected
    if trace.profiler:
        context.enable_run_metadata()
    elif trace.graph:
        context.enable_graph_collection()
    own = context.export_run_metadata

    def export_run_metadata() -> Any:
        context.export_run_metadata = own
        collected.MergeFrom(own())
        return collected

    context.export_run_metadata = export_run_metadata


def without_rewriting(config: bytes) -> bytes:
    """A ConfigProto with which functions are executed unchanged."""
    made = config_pb2.ConfigProto.FromString(config)
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    options = made.graph_options.optimizer_options
    options.opt_level = config_pb2.OptimizerOptions.L0
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return bytes(made.SerializeToString())


@contextmanager
def rewriting_off(context: Any) -> Iterator[None]:
    """While open, functions that this thread calls are executed unchanged."""
    usual = context.function_call_options
    config = config_pb2.ConfigProto.FromString(without_rewriting(usual.config_proto_serialized))
    context.function_call_options = eager_context.FunctionCallOptions(
        executor_type=usual.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        context.function_call_options = usual
