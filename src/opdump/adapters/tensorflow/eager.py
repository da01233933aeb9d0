"""Operators that the program runs one by one: a callback of the runtime tells each when it has run.

They have no names, so an operator is called `{scope}{type}_{n}`, where n counts within the step. Callbacks belong to a thread:
operators are told of the thread that began the capture.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import op_callbacks, op_def_registry

from opdump.recorder import LiveTensor
from opdump.records import IO, SkipReason

from .capture import Capture
from .functions_probe import host_tensor
from .functions_steps import ProgramSteps
from .selection import Selection

_HANDLES: Final = (tf.resource, tf.variant)


class EagerCapture:
    """Captures single operators of the thread that opens it, on dumped steps."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._model = capture.new_model()
        self._selection = Selection(capture.plan, capture.filter_of(self._model))
        self._steps: ProgramSteps | None = None
        self._on = False
        self._thread = 0
        self._names: Counter[str] = Counter()
        self._made: dict[int, str] = {}
        """Identity of a tensor -> who made it in this step."""

    def open(self, steps: ProgramSteps) -> None:
        self._steps = steps
        self._thread = threading.get_ident()
        self.step_changed()

    def close(self) -> None:
        self._switch(False)
        self._capture.recorder.matched_kernels |= self._selection.matched_kernels

    def step_changed(self) -> None:
        """The program came into another step."""
        self._names.clear()
        self._made.clear()
        if self._steps is not None and self._thread == threading.get_ident():
            self._switch(self._steps.wants(self._steps.step) and not self._selection.is_empty)

    def _switch(self, on: bool) -> None:
        if on == self._on:
            return
        self._on = on
        with tf.init_scope():
            (op_callbacks.add_op_callback if on else op_callbacks.remove_op_callback)(self._ran)

    def _ran(
        self,
        op_type: str | bytes,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        """The runtime calls it after an operator, also where one is traced and where a function was run."""
        steps = self._steps
        if graph is not None or steps is None:
            return
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        op_def = op_def_registry.get(name)
        if op_def is None:
            return  # a traced function
        with self._capture.lock:
            self._tell(name, op_def, inputs, attrs, outputs or (), steps)

    def _tell(
        self,
        op_type: str,
        op_def: Any,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        steps: ProgramSteps,
    ) -> None:
        capture = self._capture
        scoped = f"{eager_context.context().scope_name}{op_type}"
        op_name = f"{scoped}_{self._names[scoped]}"
        self._names[scoped] += 1
        skip = self._skip_of(op_type, op_name, inputs, outputs)
        record = capture.operator(
            self._model,
            op_type,
            op_name,
            step=steps.step,
            order=next(steps.order(steps.step)),
            task_id=self._names.total() - 1,
            skip=skip,
            arguments=_arguments(attrs, op_def),
        )
        for slot, tensor in enumerate(outputs):
            self._made[tensor._id] = f"{op_name}:{slot}"
        if skip:
            capture.tell_skipped(record)
            return
        capture.tell(
            record,
            self._live(record.op_name, op_type, inputs, op_def.input_arg, "input") if capture.wants_inputs else (),
            self._live(record.op_name, op_type, outputs, op_def.output_arg, "output") if capture.wants_outputs else (),
        )

    def _skip_of(self, op_type: str, op_name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> SkipReason:
        reason = self._selection.skip_of(op_type, op_name)
        if reason or not outputs or any(tensor.dtype not in _HANDLES for tensor in outputs):
            return reason
        reads = self._capture.wants_inputs and any(tensor.dtype not in _HANDLES for tensor in inputs)
        return "" if reads else "handle"

    def _live(
        self, op_name: str, op_type: str, tensors: Sequence[Any], arguments: Sequence[Any], io: IO
    ) -> list[LiveTensor]:
        excluded = self._selection.excluded(op_name, op_type, io)
        named = len(arguments) == len(tensors)
        lives: list[LiveTensor] = []
        for slot, tensor in enumerate(tensors):
            if tensor.dtype in _HANDLES or slot in excluded:
                continue
            argument = arguments[slot].name if named else ""
            source = self._made.get(tensor._id, "") if io == "input" else ""
            if tensor.dtype == tf.string:
                lives.append((slot, argument, "string", source, "opaque"))
                continue
            # Over the runtime's own memory where that is the host's: it is read before the program goes on.
            host = host_tensor(tensor._numpy())
            lives.append((slot, argument, host, source, "opaque" if isinstance(host, str) else ""))
        return lives


def _arguments(attrs: Sequence[Any], op_def: Any) -> dict[str, Any]:
    """Attributes as JSON values: names and values alternate, dtypes are numbers."""
    kinds = {attribute.name: attribute.type for attribute in op_def.attr}
    found: dict[str, Any] = {}
    for name, value in zip(attrs[::2], attrs[1::2], strict=True):
        if name.startswith("_"):
            continue
        if isinstance(value, bytes):
            found[name] = value.decode("utf-8", "replace")
        elif isinstance(value, tf.dtypes.DType):
            found[name] = value.name
        elif isinstance(value, bool | int | float | str):
            found[name] = tf.dtypes.as_dtype(value).name if kinds.get(name) == "type" else value
    return found
