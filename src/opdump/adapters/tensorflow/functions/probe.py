"""Emits from within the instrumented copy of a function: a probe is an operator that hands the tensors of another one to the recorder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy.typing as npt
import tensorflow as tf

from opdump.adapters.graph_runtime import GraphRun, NamedOperator, live_tensor
from opdump.adapters.host import host_tensor
from opdump.adapters.tensorflow.capture import Capture
from opdump.recorder import LiveTensor

_HANDLES: Final = (tf.resource, tf.variant)
_NOTHING: Final[list[Any]] = []
"""What a probe gives the graph."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ProbedSlot:
    """A slot that a probe reads. `place` is that among the arrays it is called with; None where there is no array: `text` then is the type."""

    slot: int
    argument: str
    place: int | None
    source: str = ""
    text: str = ""


@dataclass(slots=True)
class DumpedCall:
    """One dumped call of a function. What goes wrong in a probe waits here for the end of the call: the graph is to finish."""

    capture: Capture
    run: GraphRun
    bodies: Counter[int] = field(default_factory=Counter)
    """How often each body ran, by its number."""
    error: Exception | None = None


class CurrentCall:
    """The call for which the probes of one function emit; none where that is not dumped."""

    def __init__(self) -> None:
        self.call: DumpedCall | None = None
        self.lock = threading.Lock()
        """Held by a dumped call, so that calls of one function are dumped one after the other."""


class OperatorProbe:
    """Called with the elements of an operator's slots once it has run."""

    def __init__(
        self, current: CurrentCall, operator: NamedOperator, inputs: Sequence[ProbedSlot], outputs: Sequence[ProbedSlot]
    ) -> None:
        self._current = current
        self._operator = operator
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def __call__(self, *arrays: Any) -> list[Any]:
        call = self._current.call
        if call is None or call.error is not None or call.capture.is_over:
            return _NOTHING
        try:
            with call.capture.lock:
                call.run.emit(self._operator, _live(self._inputs, arrays), _live(self._outputs, arrays))
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised when the call has ended
            call.error = error
        return _NOTHING


class BodyProbe:
    """Called each time that a body of a branch, a loop or an inner function runs."""

    def __init__(self, current: CurrentCall, number: int) -> None:
        self._current = current
        self._number = number

    def __call__(self) -> list[Any]:
        call = self._current.call
        if call is not None:
            with call.capture.lock:
                call.bodies[self._number] += 1
        return _NOTHING


def has_data(tensors: Iterable[Any]) -> bool:
    """Whether some of these tensors of the eager program are no handles."""
    return any(tensor.dtype not in _HANDLES for tensor in tensors)


def live_tensors(
    tensors: Sequence[Any], names: Sequence[str], excluded: Collection[int], source_of: Callable[[Any], str]
) -> list[LiveTensor]:
    """Tensors of the eager program for the recorder, without handles; `names` are those of the slots, empty where nobody knows them."""
    lives: list[LiveTensor] = []
    for slot, tensor in enumerate(tensors):
        if tensor.dtype in _HANDLES or slot in excluded:
            continue
        argument = names[slot] if names else ""
        if tensor.dtype == tf.string:
            lives.append(live_tensor(slot, argument, "string", source_of(tensor)))
            continue
        # Over the runtime's own memory where that is the host's: it is read before the program goes on.
        lives.append(live_tensor(slot, argument, host_tensor(tensor._numpy()), source_of(tensor)))
    return lives


def _live(slots: Sequence[ProbedSlot], arrays: Sequence[Any]) -> list[LiveTensor]:
    return [
        live_tensor(
            slot.slot,
            slot.argument,
            slot.text if slot.place is None else host_tensor(arrays[slot.place]),
            slot.source,
        )
        for slot in slots
    ]
