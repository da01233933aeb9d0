"""What runs inside the instrumented copy of a function: an operator that hands the tensors of another one to the recorder."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from opdump.adapters.host import BY_DTYPE, HostTensor
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.stacks import Stack
from opdump.recorder import LiveTensor
from opdump.records import SkipReason

_HANDLES: Final = (tf.resource, tf.variant)
_NOTHING: Final[list[Any]] = []
"""What a probe gives the graph."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Named:
    """An operator of a model: what stands in its records."""

    op_type: str
    op_name: str
    task_id: int
    arguments: Mapping[str, Any]
    stack: Stack
    """Where it was traced; empty where it was loaded."""
    skip: SkipReason = ""


@dataclass(frozen=True, slots=True)
class ProbedSlot:
    """A slot that a probe tells. `place` is that among the arrays it is called with; None where there is no array: `text` then is the type."""

    slot: int
    argument: str
    place: int | None
    source: str = ""
    text: str = ""
    skip: SkipReason = ""


@dataclass(slots=True)
class FunctionRun:
    """One dumped call of a function. What goes wrong in a probe waits here for the end of the call: the graph is to finish."""

    capture: Capture
    model: Model
    step: int
    order: Iterator[int]
    told: Counter[str]
    """How often each operator was told in the step."""
    called_at: Stack
    """The lines that called the function."""
    bodies: Counter[int] = field(default_factory=Counter)
    """How often each body ran, by its number."""
    error: Exception | None = None


class Switchboard:
    """Says to the probes of one function for which call they tell; for none where that is not dumped."""

    def __init__(self) -> None:
        self.run: FunctionRun | None = None
        self.lock = threading.Lock()
        """Held by a dumped call, so that calls of one function are dumped one after the other."""


class OperatorProbe:
    """Called with the elements of an operator's slots once it has run."""

    def __init__(
        self, board: Switchboard, operator: Named, inputs: Sequence[ProbedSlot], outputs: Sequence[ProbedSlot]
    ) -> None:
        self._board = board
        self._operator = operator
        self._inputs = tuple(inputs)
        self._outputs = tuple(outputs)

    def __call__(self, *arrays: Any) -> list[Any]:
        run = self._board.run
        if run is None or run.error is not None or run.capture.is_over:
            return _NOTHING
        try:
            self._tell(run, arrays)
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised when the call has ended
            run.error = error
        return _NOTHING

    def _tell(self, run: FunctionRun, arrays: Sequence[Any]) -> None:
        operator = self._operator
        capture = run.capture
        with capture.lock:
            record = capture.operator(
                run.model,
                operator.op_type,
                operator.op_name,
                step=run.step,
                order=next(run.order),
                task_id=operator.task_id,
                occurrence=run.told[operator.op_name],
                stack=operator.stack or run.called_at,
                arguments=operator.arguments,
            )
            run.told[operator.op_name] += 1
            capture.emit(record, _live(self._inputs, arrays), _live(self._outputs, arrays))


class BodyProbe:
    """Called each time that a body of a branch, a loop or an inner function runs."""

    def __init__(self, board: Switchboard, number: int) -> None:
        self._board = board
        self._number = number

    def __call__(self) -> list[Any]:
        run = self._board.run
        if run is not None:
            with run.capture.lock:
                run.bodies[self._number] += 1
        return _NOTHING


def host_tensor(array: Any) -> HostTensor | str:
    """An array for the reader; the name of its type where no array stands for elements of it."""
    array = np.asarray(array)
    name = str(array.dtype.name)
    element = BY_DTYPE.get(name)
    # Of elements below 8 bits numpy keeps one in each byte, and a HostTensor packs them.
    if element is None or element.bits < 8:
        return name
    return HostTensor.of_array(array, element)


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
            lives.append((slot, argument, "string", source_of(tensor), "opaque"))
            continue
        # Over the runtime's own memory where that is the host's: it is read before the program goes on.
        host = host_tensor(tensor._numpy())
        lives.append((slot, argument, host, source_of(tensor), "opaque" if isinstance(host, str) else ""))
    return lives


def _live(slots: Sequence[ProbedSlot], arrays: Sequence[Any]) -> list[LiveTensor]:
    lives: list[LiveTensor] = []
    for slot in slots:
        tensor: HostTensor | str = slot.text if slot.place is None else host_tensor(arrays[slot.place])
        skip: SkipReason = slot.skip or ("opaque" if isinstance(tensor, str) else "")
        lives.append((slot.slot, slot.argument, tensor, slot.source, skip))
    return lives
