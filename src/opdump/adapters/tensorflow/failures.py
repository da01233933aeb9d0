"""Files the operator of a session that failed, with what it had been given.

A run that fails returns nothing. What its operators read is computed once more: fed is what the program fed, and what the failed run
took from state (variables, iterators, random numbers) is fed as it was seen, by the runtime's debugger, while the run went on. So the
second run changes nothing and computes the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from opdump.adapters.graph_runtime import NamedOperator, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.sessions.subgraph import GraphOperator, Slot, Subgraph, dtype_of
from opdump.adapters.tensorflow.sessions.watches import ObservedValue
from opdump.recorder import LiveTensor

RunFunction = Callable[..., Any]

_EXPECTED: Final = (tf.errors.OutOfRangeError, tf.errors.CancelledError, tf.errors.AbortedError)
"""The end of the data, and what a session raises when somebody stops it: no operator did wrong."""

_NODE: Final = re.compile(r"\[\[(?:\{\{node )?([^\]}]+)")
"""A node in a message, as the runtime writes it."""


class FailureDump:
    """Files the operators of sessions that fail. `opened` makes the capture when it is first needed: no failure, no directory.

    `whole`: with their inputs; else what is known of them without: their names, types and the message.
    """

    def __init__(self, opened: Callable[[], Capture], *, whole: bool) -> None:
        self.whole = whole
        self._opened = opened
        self._capture: Capture | None = None

    def watched(self, subgraph: Subgraph) -> tuple[Any, ...]:
        """What of a signature is to be watched, so that a failure in it can be filed whole."""
        if not self.whole:
            return ()
        found = {}
        for op in subgraph.operators:
            for slot in op.outputs:
                access = subgraph.access(slot.tensor)
                if slot.tensor.name not in subgraph.fed and (
                    access == "watch" or (access == "fetch" and op.name in subgraph.with_effects)
                ):
                    found[slot.tensor.name] = slot.tensor
        return tuple(found.values())

    def record(
        self,
        error: BaseException,
        model: Model,
        step: int,
        subgraph: Subgraph,
        run: RunFunction,
        feed_dict: Mapping[Any, Any] | None,
        seen: Mapping[str, Sequence[ObservedValue]],
    ) -> None:
        """Files what failed; nothing where no operator did. `run` is the session's, without capture."""
        if isinstance(error, _EXPECTED) or not isinstance(error, tf.errors.OpError):
            return
        op = _failed(error, subgraph)
        if op is None:
            return
        if self._capture is None:
            self._capture = self._opened()
        capture = self._capture
        inputs = self._inputs(capture, op, subgraph, run, feed_dict, seen) if self.whole else _facts(op)
        stack = capture.stacks.of_operation(op.operation) or capture.stacks.of_call()
        operator = NamedOperator(op.op_type, op.name, op.place, arguments_of(op.operation.node_def), stack)
        with capture.lock:
            capture.run(model, step).fail(operator, _message_of(error), inputs)

    def _inputs(
        self,
        capture: Capture,
        op: GraphOperator,
        subgraph: Subgraph,
        run: RunFunction,
        feed_dict: Mapping[Any, Any] | None,
        seen: Mapping[str, Sequence[ObservedValue]],
    ) -> list[LiveTensor]:
        tensors = {slot.tensor.name: slot.tensor for slot in op.inputs if subgraph.access(slot.tensor) != "handle"}
        values = {name: seen[name][-1].array for name in tensors if seen.get(name)}
        wanted = [
            tensor for name, tensor in tensors.items() if name not in values and subgraph.access(tensor) == "fetch"
        ]
        state = {
            slot.tensor: seen[slot.tensor.name][-1].array
            for other in subgraph.operators
            for slot in other.outputs
            if seen.get(slot.tensor.name) and other.name in subgraph.with_effects
        }
        if wanted and _is_settled(wanted, subgraph, {tensor.name for tensor in state}):
            try:
                answers = run(wanted, {**dict(feed_dict or {}), **state}, None, None)
            except tf.errors.OpError as problem:  # the program gets its own failure
                capture.note(f"what {op.name} had been given cannot be computed again: {problem.message}")
            else:
                values.update(zip((tensor.name for tensor in wanted), map(np.asarray, answers), strict=True))
        return [
            live_tensor(slot.slot, slot.argument, HostTensor.of_array(values[slot.tensor.name]), slot.source)
            if slot.tensor.name in values
            else _fact(slot)
            for slot in op.inputs
        ]


def _failed(error: tf.errors.OpError, subgraph: Subgraph) -> GraphOperator | None:
    """The operator that failed; where that is one of a function, what ran the function: `[[{{node Log}}]] [[IteratorGetNext]]`."""
    named = {each.name: each for each in subgraph.operators}
    if error.op is not None:
        return named.get(error.op.name)
    return next((named[name] for name in reversed(_NODE.findall(error.message)) if name in named), None)


def _is_settled(wanted: Sequence[Any], subgraph: Subgraph, known: set[str]) -> bool:
    """Whether nothing behind these tensors reads or changes state, but for what is known."""
    made = {slot.tensor.name: op for op in subgraph.operators for slot in op.outputs}
    waiting, done = [tensor.name for tensor in wanted], set()
    while waiting:
        name = waiting.pop()
        if name in done or name in known or name in subgraph.fed:
            continue
        done.add(name)
        operation = made[name].operation
        if operation.name in subgraph.with_effects and subgraph.access(operation.outputs[0]) != "handle":
            return False
        waiting += [tensor.name for tensor in operation.inputs]
        waiting += [tensor.name for other in operation.control_inputs for tensor in other.outputs]
        if any(not other.outputs and other.name in subgraph.with_effects for other in operation.control_inputs):
            return False
    return True


def _facts(op: GraphOperator) -> list[LiveTensor]:
    return [_fact(slot) for slot in op.inputs]


def _fact(slot: Slot) -> LiveTensor:
    return live_tensor(slot.slot, slot.argument, dtype_of(slot), slot.source, "not executed")


def _message_of(error: tf.errors.OpError) -> Exception:
    """What the runtime said, as an exception of the same name whose text is that alone."""
    message = type(error.__class__.__name__, (Exception,), {})(error.message)
    assert isinstance(message, Exception)
    return message
