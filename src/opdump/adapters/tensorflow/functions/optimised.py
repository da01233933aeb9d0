"""Has the runtime optimise a function, and gives what came of it: the graphs that are executed, on each device. Nothing of the function runs.

The runtime optimises a function when it is called for the first time: inlines what it runs, rewrites and fuses operators, places them. So a
copy of it is called with one argument more, and that of another type than it takes: the runtime prepares the copy first and looks at its arguments then.
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
"""Where other threads have functions optimised at the same time, whose graphs come mixed with ours."""
_COLLECTING: Final = threading.Lock()
"""Graphs are collected for the whole process."""


def with_argument(definition: Definition, name: str) -> Definition:
    """A copy of a function that takes a number more, and whose results have names of their own: graphs that the runtime makes of it are known by both."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name = name
    number = next(_NUMBERS)
    copy.signature.input_arg.add(name=f"{_ARGUMENT}_{number}", type=tf.int32.as_datatype_enum)
    for result in copy.signature.output_arg:
        value = copy.ret.pop(result.name)
        result.name += f"{_RESULT}{number}"
        copy.ret[result.name] = value
    # One of several functions that the runtime may put in each other's place: the copy is to stay what it is.
    copy.attr.pop("api_implements", None)
    return copy


def standing_for(context: Any, dtype: int, device: str) -> Any:
    """A tensor for an argument of a function of which nothing is known but its type and device. Of a variable it says no shape."""
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
    """What a tensor in a function is in each call, as far as the runtime can say it beforehand: by constants, and by shapes that are known."""
    graph = function_def_to_graph.function_def_to_graph(definition)
    return smart_cond.smart_constant_value(graph.get_tensor_by_name(key))


def function_graphs(
    context: Any, definition: Definition, inputs: Sequence[Any], config: bytes, *, is_programs: bool = False
) -> Any | None:
    """What the runtime made of a function that it knows by this definition, whose last argument is that of `with_argument`.

    A `RunMetadata.FunctionGraphs`: the graph before and after its optimisation, and the parts of it that devices execute. `config` is the
    ConfigProto that it is optimised by. None where it cannot be had: the runtime refuses the function. A program that collects graphs
    (`tf.summary.trace_on`) is given those of a function of its own (`is_programs`).
    """
    name, argument = definition.signature.name, definition.signature.input_arg[-1].name
    executor = context.function_call_options.executor_type or ""
    arguments = [*inputs, tf.constant(0.0)]  # the last one is of another type
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
    """The same ConfigProto, but that the runtime has made nothing by it in an attempt before."""
    made = config_pb2.ConfigProto.FromString(config)
    made.placement_period += attempt  # of sessions in several processes: nothing here looks at it
    return config if attempt == 0 else made.SerializeToString()


def _is_of_one_function(graphs: Any, definition: Definition) -> bool:
    """Whether the graphs after the optimisation are of that function, too, and not of one that another thread had optimised meanwhile."""
    given = {node.name for node in graphs.pre_optimization_graph.node if node.op == "_Arg"}
    results = {f"{each.name}_RetVal" for each in definition.signature.output_arg}
    executed = [node for part in graphs.partition_graphs for node in part.node]
    for nodes in (graphs.post_optimization_graph.node, executed):
        # Arguments that nothing reads may be left out, results never.
        if not given.issuperset(node.name for node in nodes if node.op == "_Arg"):
            return False
        if not results.issubset(node.name for node in nodes if node.op == "_Retval"):
            return False
    return True


def _with_plain_results(graphs: Any) -> None:
    """Gives the results the names that they have in the program's function."""
    for graph in (graphs.pre_optimization_graph, graphs.post_optimization_graph, *graphs.partition_graphs):
        for node in graph.node:
            if node.op == "_Retval":
                node.name = _MARKED_RESULT.sub("_RetVal", node.name)


def _collected(
    context: Any, name: str, result_count: int, arguments: Sequence[Any], attributes: tuple[Any, ...]
) -> Any:
    """The graphs of all functions that were optimised while this one was called, which does not run."""

    def hand_on() -> None:  # whatever runs next hands on what was collected
        execute.quick_execute("Identity", 1, arguments[-1:], ("T", tf.float32.as_datatype_enum), context)

    hand_on()  # the runtime has it then, and collects nothing of it
    context.enable_graph_collection()
    try:
        execute.quick_execute(name, result_count, arguments, attributes, context)
    except tf.errors.OpError:
        pass  # as it must
    else:
        raise AssertionError(f"{name} ran with an argument of another type")
    finally:
        hand_on()
        metadata = context.export_run_metadata()
        context.disable_graph_collection()
    return metadata


@contextmanager
def _programs_own(context: Any) -> Iterator[Any | None]:
    """What the program itself collects (`tf.summary.trace_on`), put aside until it asks for it; None where it collects nothing."""
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
    """A ConfigProto by which functions are executed as they are."""
    made = config_pb2.ConfigProto.FromString(config)
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    options = made.graph_options.optimizer_options
    options.opt_level = config_pb2.OptimizerOptions.L0
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return bytes(made.SerializeToString())


@contextmanager
def rewriting_off(context: Any) -> Iterator[None]:
    """While open, functions that this thread calls are executed as they are."""
    usual = context.function_call_options
    config = config_pb2.ConfigProto.FromString(without_rewriting(usual.config_proto_serialized))
    context.function_call_options = eager_context.FunctionCallOptions(
        executor_type=usual.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        context.function_call_options = usual
