"""Finds sums whose order of summation depends on other references to their inputs.

AddN sums into the first of its inputs that has no other reference, and begins with it: `a + b + c` becomes `c + b + a` if `a` and `b` are
fetched, which may change the last bits of floating-point results. Inputs that it may sum into are therefore neither fetched nor watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import tensorflow as tf

from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph, Key
from opdump.adapters.tensorflow.graphs.walks import reachable
from opdump.adapters.tensorflow.operator_kinds import NEXT, is_stateful

LEAST_INPUTS: Final = 3
SHARES: Final = frozenset(
    {"BroadcastTo", "EnsureShape", "ExpandDims", "Pad", "PadV2", "Reshape", "Reverse", "ReverseV2", "Slice", "SplitV"}
    | {"StridedSlice", "Tile", "Transpose", "Unpack", "Bitcast", "Cast", "Max", "Mean", "Min", "Prod", "Squeeze", "Sum"}
    | {"CheckNumerics", "DebugGradientIdentity", "Identity", "PlaceholderWithDefault", "PreventGradient", "Snapshot"}
    | {"StopGradient", "RefIdentity", "Enter", "Exit", "NextIteration", "Switch"}
    | {"RefEnter", "RefExit", "RefNextIteration", "RefSwitch"}
)
"""They may return the buffer of their first input."""
_SHARES_ANY: Final = frozenset({"IdentityN", "Merge", "RefMerge", "Split", "Concat", "ConcatV2", "Pack", "_SwitchN"})
"""They may return the buffer of any input."""
_REDUCTIONS: Final = frozenset({"Max", "Mean", "Min", "Prod", "Sum"})
_SURELY_SHARED: Final = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"})
"""They return the same memory, whatever their attributes and shapes are."""
_WRITES: Final = frozenset({"InplaceAdd", "InplaceSub", "InplaceUpdate"})
"""They write into the memory of their first input."""
_HELD: Final = frozenset({"Const", "_Arg", "VariableV2", "Variable", "ReadVariableOp"})
"""Their results are referenced during the whole run."""


State = Literal["free", "held", "either"]
"""Whether the input of a sum has another reference when the sum is computed; `either`: this depends on timing."""


def left_alone(graph: ExecutedGraph) -> set[Key]:
    """The tensors into which sums of three or more may be computed, or other operators write, and those that may share their memory."""
    found: set[Key] = set()
    for node in graph.nodes.values():
        if node.op in _WRITES:
            found |= _buffer(graph.inputs(node)[0], graph, node.name, set())[0]
    for _, buffers in _sums(graph):
        for buffer, state in buffers:
            if state != "held":
                found |= buffer
            if state == "free":
                break
    return found


def left_to_chance(graph: ExecutedGraph) -> list[str]:
    """The sums whose order depends on timing, with or without a capture. Exchanging the first two summands changes nothing."""
    found = []
    for name, buffers in _sums(graph):
        beginnings = set()
        for place, (_, state) in enumerate(buffers):
            if state != "held":
                beginnings.add(place if place > 1 else 0)
            if state == "free":
                break
        else:
            beginnings.add(0)
        if len(beginnings) > 1:
            found.append(name)
    return found


def _sums(graph: ExecutedGraph) -> Iterator[tuple[str, list[tuple[set[Key], State]]]]:
    """Each sum, and for each of its summands the tensors that may share its memory, and whether it is referenced."""
    for node in graph.nodes.values():
        if node.op == "AddN" and _rounds(node) and len(graph.inputs(node)) >= LEAST_INPUTS:
            before = behind(node, graph)
            yield node.name, [_buffer(key, graph, node.name, before) for key in graph.inputs(node)]


def _rounds(node: Any) -> bool:
    dtype = tf.as_dtype(node.attr["T"].type)
    return bool(dtype.is_floating or dtype.is_complex)


def behind(node: Any, graph: ExecutedGraph) -> set[str]:
    """The nodes that have run when this one runs, without those of the previous iteration."""

    def before(name: str) -> Iterable[str]:
        current = graph.nodes.get(name)
        return () if current is None or current.op in NEXT else graph.before[name]

    return set(reachable(before(node.name), before))


def _buffer(key: Key, graph: ExecutedGraph, by: str, before: set[str]) -> tuple[set[Key], State]:
    found: set[Key] = set()
    waiting = [key]
    state: State = "free"
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        node = graph.nodes.get(current.rpartition(":")[0])
        if node is None:
            continue
        if node.op in _HELD:
            state = "held" if current == key else "either"
        shared = list(_shared(node, graph))
        if (is_stateful(node.op) or node.op in _SHARES_ANY or shared) and state == "free":
            state = "either" if node.op not in _SURELY_SHARED or is_stateful(node.op) else state
        waiting += shared
    if state != "held":
        state = _read_by_others(found, graph, by, before, state)
    return found, state


def _read_by_others(buffer: set[Key], graph: ExecutedGraph, by: str, before: set[str], state: State) -> State:
    for key in buffer:
        for reader in graph.readers.get(key, ()):
            node = graph.nodes[reader]
            if reader == by or any(f"{reader}:{slot}" in buffer for slot in range(2)):
                continue
            if node.op == "_Retval":
                return "held"
            if reader not in before:
                state = "either"
    return state


def _shared(node: Any, graph: ExecutedGraph) -> Iterator[Key]:
    """The inputs of a node whose memory it may return."""
    inputs = graph.inputs(node)
    if node.op in _REDUCTIONS:
        axes = graph.nodes.get(inputs[1].rpartition(":")[0])
        if axes is not None and axes.op == "Const" and tf.make_ndarray(axes.attr["value"].tensor).size:
            return  # its result is smaller
    if node.op in SHARES:
        yield from inputs[:1]
    elif node.op in _SHARES_ANY:
        yield from inputs
