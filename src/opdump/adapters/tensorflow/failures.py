"""Records the failed operator of a session, with its inputs.

A failed run returns nothing, so the inputs of its operators are computed again. The second run is fed with the inputs of the program, and
with everything that the failed run took from state (variables, iterators, random numbers), as the runtime's debugger saw it during that
run. It therefore changes nothing and computes the same values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from opdump.adapters.graph_runtime import live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.tensorflow.capture import Capture, FailedRun
from opdump.adapters.tensorflow.graphs.library import Slot
from opdump.adapters.tensorflow.graphs.walks import reachable
from opdump.adapters.tensorflow.sessions.graph_program import operator_of
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph
from opdump.recorder import LiveTensor

_EXPECTED: Final = (tf.errors.OutOfRangeError, tf.errors.CancelledError, tf.errors.AbortedError)
"""The end of the data, and the error of a session that was stopped: not failures of an operator."""

_NODE: Final = re.compile(r"\[\[(?:\{\{node )?([^\]}]+)")
"""A node in a message of the runtime."""


class FailureDump:
    """Records the failed operators of sessions. `opened` creates the capture on first use: without a failure there is no directory.

    `whole`: with the inputs; otherwise only names, types and the message.
    """

    def __init__(self, opened: Callable[[], Capture], *, whole: bool) -> None:
        self.whole = whole
        self._opened = opened
        self._capture: Capture | None = None

    def watched(self, subgraph: Subgraph) -> tuple[Any, ...]:
        """The tensors of a signature to watch, so that a failure in it can be recorded completely."""
        if not self.whole:
            return ()

        def is_watched(tensor: Any) -> bool:
            access = subgraph.access(tensor)
            return access == "watch" or (access == "fetch" and tensor.op.name in subgraph.with_effects)

        tensors = (tensor for op in subgraph.operations for tensor in op.outputs if tensor.name not in subgraph.fed)
        return tuple(filter(is_watched, tensors))

    def record(self, error: BaseException, failed: FailedRun) -> None:
        """Record a failure; do nothing if no operator failed."""
        if isinstance(error, _EXPECTED) or not isinstance(error, tf.errors.OpError):
            return
        subgraph = failed.subgraph
        op = _failed(error, subgraph)
        if op is None:
            return
        if self._capture is None:
            self._capture = self._opened()
        capture = self._capture
        values = self._values(capture, op, failed) if self.whole else {}
        own, run_at = operator_of(op, subgraph, capture.stacks), capture.stacks.of_call()
        operator = own.named(subgraph.operations.index(op))
        inputs = [_live(slot, values) for slot in own.inputs]
        with capture.lock:
            capture.run(failed.model, failed.step, called_at=run_at).fail(operator, _message_of(error), inputs)

    def _values(self, capture: Capture, op: Any, failed: FailedRun) -> dict[str, npt.NDArray[Any]]:
        """The inputs of the operator by tensor name, as far as they are available."""
        subgraph, seen = failed.subgraph, failed.seen
        tensors = {tensor.name: tensor for tensor in op.inputs if subgraph.access(tensor) != "handle"}
        values = {name: seen[name][-1].array for name in tensors if seen.get(name)}
        wanted = [
            tensor for name, tensor in tensors.items() if name not in values and subgraph.access(tensor) == "fetch"
        ]
        state = {
            tensor: seen[tensor.name][-1].array
            for other in subgraph.operations
            for tensor in other.outputs
            if seen.get(tensor.name) and other.name in subgraph.with_effects
        }
        if wanted and _is_settled(wanted, subgraph, {tensor.name for tensor in state}):
            try:
                answers = failed.run(wanted, {**dict(failed.feed_dict or {}), **state}, None, None)
            except tf.errors.OpError as problem:  # the program gets the original error
                capture.note(f"the inputs of {op.name} cannot be recomputed: {problem.message}")
            else:
                values.update(zip((tensor.name for tensor in wanted), map(np.asarray, answers), strict=True))
        return values


def _failed(error: tf.errors.OpError, subgraph: Subgraph) -> Any | None:
    """The operator that failed; for one in a function, the operator that ran the function: `[[{{node Log}}]] [[IteratorGetNext]]`."""
    named = {each.name: each for each in subgraph.operations}
    if error.op is not None:
        return named.get(error.op.name)
    return next((named[name] for name in reversed(_NODE.findall(error.message)) if name in named), None)


def _is_settled(wanted: Sequence[Any], subgraph: Subgraph, known: set[str]) -> bool:
    """Whether the computation of these tensors reads or changes no state except the known values."""
    settled = known | subgraph.fed

    def before(operation: Any) -> Iterator[Any]:
        yield from (tensor.op for tensor in operation.inputs if tensor.name not in settled)
        for other in operation.control_inputs:
            if not other.outputs or not settled.issuperset(tensor.name for tensor in other.outputs):
                yield other

    def is_settled(operation: Any) -> bool:
        gives_handle = bool(operation.outputs) and subgraph.access(operation.outputs[0]) == "handle"
        return operation.name not in subgraph.with_effects or gives_handle

    first = [tensor.op for tensor in wanted if tensor.name not in settled]
    return all(map(is_settled, reachable(first, before)))


def _live(slot: Slot, values: Mapping[str, npt.NDArray[Any]]) -> LiveTensor:
    if slot.key in values:
        return live_tensor(slot.slot, slot.argument, HostTensor.of_array(values[slot.key]), slot.source)
    return live_tensor(slot.slot, slot.argument, slot.dtype_name, slot.source, "not executed")


def _message_of(error: tf.errors.OpError) -> Exception:
    """An exception with the class name of the runtime's error, whose text is only its message."""
    message: Exception = type(error.__class__.__name__, (Exception,), {})(error.message)
    return message
