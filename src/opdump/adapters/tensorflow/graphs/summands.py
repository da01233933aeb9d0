"""Sums whose order of summation depends on who else holds what they read.

AddN sums into the first of its inputs that nobody else holds, and begins with it: `a + b + c` becomes `c + b + a` where `a` and `b` are
fetched, which for floating-point numbers may have other last bits. So what it may be made in is left alone: nobody fetches or watches it.
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
"""May give the buffer of their first input."""
_SHARES_ANY: Final = frozenset({"IdentityN", "Merge", "RefMerge", "Split", "Concat", "ConcatV2", "Pack", "_SwitchN"})
"""May give that of any input."""
_REDUCTIONS: Final = frozenset({"Max", "Mean", "Min", "Prod", "Sum"})
_SURELY_SHARED: Final = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"})
"""Give the memory itself, whatever their attributes and shapes."""
_WRITES: Final = frozenset({"InplaceAdd", "InplaceSub", "InplaceUpdate"})
"""Write into the memory of their first input."""
_HELD: Final = frozenset({"Const", "_Arg", "VariableV2", "Variable", "ReadVariableOp"})
"""Somebody holds what these give for as long as a run lasts."""


State = Literal["free", "held", "either"]
"""Whether somebody else holds what a sum reads when it is made; `either`: the timing decides."""


def left_alone(graph: ExecutedGraph) -> set[Key]:
    """The tensors that sums of three and more may be made in, or that are written into, and what may share their memory."""
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
    """The sums whose order the timing decides, with or without a capture. The first two summands may change places without that."""
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
    """Each sum, and for each of its summands the tensors that may lie in the same memory, and who holds that."""
    for node in graph.nodes.values():
        if node.op == "AddN" and _rounds(node) and len(graph.inputs(node)) >= LEAST_INPUTS:
            before = behind(node, graph)
            yield node.name, [_buffer(key, graph, node.name, before) for key in graph.inputs(node)]


def _rounds(node: Any) -> bool:
    dtype = tf.as_dtype(node.attr["T"].type)
    return bool(dtype.is_floating or dtype.is_complex)


def behind(node: Any, graph: ExecutedGraph) -> set[str]:
    """The nodes that have run when this one runs; not through what comes round a loop."""

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
    """What a node reads whose memory it may hand on."""
    inputs = graph.inputs(node)
    if node.op in _REDUCTIONS:
        axes = graph.nodes.get(inputs[1].rpartition(":")[0])
        if axes is not None and axes.op == "Const" and tf.make_ndarray(axes.attr["value"].tensor).size:
            return  # it makes a smaller one
    if node.op in SHARES:
        yield from inputs[:1]
    elif node.op in _SHARES_ANY:
        yield from inputs
