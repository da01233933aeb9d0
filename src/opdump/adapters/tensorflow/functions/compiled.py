"""Emits a call of a function that XLA compiles: one operator of the function's name, with the arguments and the results of the call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tensorflow.python.eager import context as eager_context

from opdump.adapters.graph_runtime import GraphRun, NamedOperator
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.functions.library import Definition
from opdump.adapters.tensorflow.functions.probe import has_data, live_tensors
from opdump.adapters.tensorflow.xla import LAUNCH, shown_name
from opdump.records import IO


def emit_compiled(
    capture: Capture, model: Model, run: GraphRun, definition: Definition, inputs: Sequence[Any], outputs: Sequence[Any]
) -> None:
    """Hands a call that has ended to the recorder."""
    eager_context.async_wait()
    signature = definition.signature
    op_name = shown_name(signature.name)
    selection = capture.selection(capture.filter_of(model), [op_name])
    skip = selection.skip_of(LAUNCH, op_name)
    capture.recorder.matched_kernels |= selection.matched_kernels
    reads, gives = selection.wants_inputs and has_data(inputs), selection.wants_outputs and has_data(outputs)
    if not skip and not (reads or gives):
        skip = "not observed"  # what it does, it does to variables
    operator = NamedOperator(LAUNCH, op_name, arguments={"function": signature.name}, skip=skip)

    def live(io: IO, tensors: Sequence[Any], arguments: Sequence[Any]) -> Any:
        names = [each.name for each in arguments] if len(arguments) == len(tensors) else ()
        excluded: Collection[int] = selection.excluded(op_name, LAUNCH, io)
        return live_tensors(tensors, names, excluded, lambda _: "")

    with capture.lock:
        if skip:
            run.skip(operator)
            return
        run.emit(
            operator,
            live("input", inputs, signature.input_arg) if reads else (),
            live("output", outputs, signature.output_arg) if gives else (),
        )
