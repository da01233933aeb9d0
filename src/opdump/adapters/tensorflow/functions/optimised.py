"""Has the runtime optimise a function, and gives what came of it: the graphs that are executed, on each device. Nothing of the function runs.

The runtime optimises a function when it is called for the first time: inlines what it runs, rewrites and fuses operators, places them. So a
copy of it is called with one argument more, and that of another type than it takes: the runtime prepares the copy first and looks at its arguments then.
Source: TensorFlow's execute.cc (`AddOrExecuteNode`), process_function_library_runtime.cc (`InstantiateMultiDevice`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.ops import summary_ops_v2

from opdump.adapters.tensorflow.functions.library import Definition

_ARGUMENT: Final = "opdump_argument"
_NUMBERS: Final = itertools.count()
_COLLECTING: Final = threading.Lock()
"""Graphs are collected for the whole process."""


def with_argument(definition: Definition, name: str) -> Definition:
    """A copy of a function that takes a number more."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    copy.signature.name = name
    copy.signature.input_arg.add(name=f"{_ARGUMENT}_{next(_NUMBERS)}", type=tf.int32.as_datatype_enum)
    # One of several functions that the runtime may put in each other's place: the copy is to stay what it is.
    copy.attr.pop("api_implements", None)
    return copy


def given_argument() -> Any:
    """The number that such a copy takes."""
    return tf.constant(0)


def function_graphs(context: Any, definition: Definition, inputs: Sequence[Any]) -> Any | None:
    """What the runtime made of a function that it knows by this definition, whose last argument is that of `with_argument`.

    A `RunMetadata.FunctionGraphs`: the graph before and after its optimisation, and the parts of it that devices execute. None where it cannot
    be had: the program collects graphs itself, or the runtime refuses the function.
    """
    if summary_ops_v2._current_trace_context is not None:
        return None
    name, argument = definition.signature.name, definition.signature.input_arg[-1].name
    options = context.function_call_options
    attributes = ("executor_type", options.executor_type or "", "config_proto", options.config_proto_serialized)
    another_type = tf.constant(0.0)

    def hand_on() -> None:  # whatever runs next hands on what was collected
        execute.quick_execute("Identity", 1, [another_type], ("T", tf.float32.as_datatype_enum), context)

    with _COLLECTING:
        hand_on()  # the runtime has it then, and collects nothing of it
        context.enable_graph_collection()
        try:
            execute.quick_execute(
                name, len(definition.signature.output_arg), [*inputs, another_type], attributes, context
            )
        except tf.errors.OpError:
            pass  # as it must
        else:
            raise AssertionError(f"{name} ran with an argument of another type")
        finally:
            hand_on()
            metadata = context.export_run_metadata()
            context.disable_graph_collection()
    for graphs in metadata.function_graphs:
        arguments = [node.name for node in graphs.pre_optimization_graph.node if node.op == "_Arg"]
        if argument in arguments:
            # Else another thread had a function optimised too, and both are in one.
            return graphs if len(arguments) == len(definition.signature.input_arg) else None
    return None


@contextmanager
def rewriting_off(context: Any) -> Iterator[None]:
    """While open, functions that this thread calls are executed as they are."""
    usual = context.function_call_options
    config = config_pb2.ConfigProto.FromString(usual.config_proto_serialized)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    options = config.graph_options.optimizer_options
    options.opt_level = config_pb2.OptimizerOptions.L0
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    context.function_call_options = eager_context.FunctionCallOptions(
        executor_type=usual.executor_type, config_proto=config
    )
    try:
        yield
    finally:
        context.function_call_options = usual
