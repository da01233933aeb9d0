"""A call of a function that XLA compiles: one operator of the function's name, with the arguments and the results of the call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.functions.library import Definition
from opdump.adapters.tensorflow.functions.probe import FunctionRun, live_tensors
from opdump.adapters.tensorflow.xla import LAUNCH, shown_name
from opdump.records import IO

_HANDLES: Final = (tf.resource, tf.variant)


def tell_compiled(
    capture: Capture, definition: Definition, inputs: Sequence[Any], outputs: Sequence[Any], run: FunctionRun
) -> None:
    """Hands a call that has ended to the recorder; `run` says where it stands."""
    eager_context.async_wait()
    signature = definition.signature
    op_name = shown_name(signature.name)
    selection = capture.selection(capture.filter_of(run.model), [op_name])
    skip = selection.skip_of(LAUNCH, op_name)
    capture.recorder.matched_kernels |= selection.matched_kernels
    reads, gives = capture.wants_inputs and _has_data(inputs), capture.wants_outputs and _has_data(outputs)
    if not skip and not (reads or gives):
        skip = "not observed"  # what it does, it does to variables

    def live(io: IO, tensors: Sequence[Any], arguments: Sequence[Any]) -> Any:
        names = [each.name for each in arguments] if len(arguments) == len(tensors) else ()
        excluded: Collection[int] = selection.excluded(op_name, LAUNCH, io)
        return live_tensors(tensors, names, excluded, lambda _: "")

    with capture.lock:
        record = capture.operator(
            run.model,
            LAUNCH,
            op_name,
            step=run.step,
            order=next(run.order),
            occurrence=run.told[op_name],
            stack=run.called_at,
            arguments={"function": signature.name},
            skip=skip,
        )
        run.told[op_name] += 1
        if skip:
            capture.emit_skipped(record)
            return
        capture.emit(
            record,
            live("input", inputs, signature.input_arg) if reads else (),
            live("output", outputs, signature.output_arg) if gives else (),
        )


def _has_data(tensors: Sequence[Any]) -> bool:
    return any(tensor.dtype not in _HANDLES for tensor in tensors)
