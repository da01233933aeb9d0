"""Emits operators from within the instrumented copy of a function: a probe is an operator that passes tensors of others to the recorder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tensorflow as tf

from opdump.adapters.graph_runtime import (
    ArrayBlock,
    BlockOperator,
    GraphRun,
    NamedOperator,
    OperatorSelection,
    live_tensor,
)
from opdump.adapters.host import host_tensor
from opdump.adapters.tensorflow.capture import Capture
from opdump.recorder import LiveTensor
from opdump.records import IO

_HANDLES: Final = (tf.resource, tf.variant)
_NOTHING: Final[list[Any]] = []
"""The result of a probe in the graph."""


@dataclass(slots=True)
class DumpedCall:
    """One dumped call of a function. Errors in probes are raised at the end of the call, so that the graph finishes."""

    capture: Capture
    run: GraphRun
    bodies: Counter[int] = field(default_factory=Counter)
    """The number of runs of each body, by its number."""
    error: Exception | None = None


@dataclass(slots=True)
class CurrentCall:
    """The call for which the probes of one function emit; None if it is not dumped."""

    call: DumpedCall | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by a dumped call, so that calls of one function are dumped one after the other."""


class Probe:
    """Called with the values of the inputs and outputs of some operators after they have run.

    Slots refer to the arrays by position, followed by `texts`; `bodies` are the numbers of the bodies that ran when it is called.
    """

    def __init__(
        self, current: CurrentCall, operators: Sequence[BlockOperator], texts: Sequence[str], bodies: Sequence[int]
    ) -> None:
        self._current = current
        self._operators = ArrayBlock(operators, texts) if operators else None
        self._bodies = bodies

    def __call__(self, *arrays: Any) -> list[Any]:
        call = self._current.call
        if call is None or call.error is not None or call.capture.is_over:
            return _NOTHING
        try:
            with call.capture.lock:
                call.bodies.update(self._bodies)
                if self._operators is not None:
                    # For one element the runtime passes a numpy scalar, whose memory is only valid while it is used.
                    held = [*map(np.asarray, arrays)]
                    self._operators.emit(call.run, held, lambda number: host_tensor(held[number]))
        except Exception as error:  # noqa: BLE001  any error is raised when the call has ended
            call.error = error
        return _NOTHING


def has_data(tensors: Iterable[Any]) -> bool:
    """Whether any of these tensors of the eager program is not a handle."""
    return any(tensor.dtype not in _HANDLES for tensor in tensors)


def live_tensors(
    selection: OperatorSelection,
    operator: NamedOperator,
    io: IO,
    tensors: Sequence[Any],
    arguments: Sequence[Any],
    source_of: Callable[[Any], str] = lambda _: "",
) -> list[LiveTensor]:
    """The selected tensors of the eager program for the recorder, without handles; `arguments` are the definitions of the slots."""
    lives: list[LiveTensor] = []
    if not selection.wants(io):
        return lives
    excluded = selection.excluded(operator.op_name, operator.op_type, io)
    has_names = len(arguments) == len(tensors)
    for slot, tensor in enumerate(tensors):
        if tensor.dtype in _HANDLES or slot in excluded:
            continue
        # Without a copy if the runtime's memory is on the host: it is read before the program continues.
        value = "string" if tensor.dtype == tf.string else host_tensor(tensor._numpy())
        lives.append(live_tensor(slot, arguments[slot].name if has_names else "", value, source_of(tensor)))
    return lives
