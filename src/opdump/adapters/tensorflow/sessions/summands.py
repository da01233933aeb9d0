"""Sums whose order of summation depends on who else holds what they read.

AddN sums into the first of its inputs that nobody else holds, and begins with it: `a + b + c` becomes `c + b + a` where `a` and `b` are
fetched, which for floating-point numbers may have other last bits. So what it may be made in is left alone: nobody fetches or watches it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import tensorflow as tf

from opdump.adapters.tensorflow.operator_kinds import is_stateful
from opdump.adapters.tensorflow.sessions.executed import ExecutedGraph, Key

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
_HELD: Final = frozenset({"Const", "_Arg", "VariableV2", "Variable", "ReadVariableOp"})
"""Somebody holds what these give for as long as a run lasts."""


def left_alone(graph: ExecutedGraph) -> set[Key]:
    """The tensors that sums of three and more may be made in, and what may share their memory."""
    found: set[Key] = set()
    for node in graph.nodes.values():
        if node.op != "AddN" or not _rounds(node):
            continue
        inputs = graph.inputs(node)
        if len(inputs) >= LEAST_INPUTS:
            for key in inputs:
                buffer, is_held = _buffer(key, graph)
                if is_held:
                    continue
                found |= buffer
                if _is_free(buffer, graph, node.name):
                    break
    return found


def _rounds(node: Any) -> bool:
    dtype = tf.as_dtype(node.attr["T"].type)
    return bool(dtype.is_floating or dtype.is_complex)


def _buffer(key: Key, graph: ExecutedGraph) -> tuple[set[Key], bool]:
    """The tensors that may lie in the memory of one, itself among them; whether somebody holds that anyway."""
    found: set[Key] = set()
    waiting, is_held = [key], False
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        node = graph.nodes.get(current.rpartition(":")[0])
        if node is None:
            continue
        is_held = is_held or (node.op in _HELD and current == key)
        waiting += _shared(node, graph)
    return found, is_held


def _shared(node: Any, graph: ExecutedGraph) -> Iterator[Key]:
    inputs = graph.inputs(node)
    if node.op in SHARES:
        yield from inputs[:1]
    elif node.op in _SHARES_ANY:
        yield from inputs


def _is_free(buffer: set[Key], graph: ExecutedGraph, by: str) -> bool:
    """Whether nobody but the sum reads what lies in a buffer, so that the sum is made in it."""
    for key in buffer:
        maker = graph.nodes.get(key.rpartition(":")[0])
        if maker is None or is_stateful(maker.op) or maker.op in _SHARES_ANY:
            return False
        readers = graph.readers.get(key, [])
        if sum(reader != by and graph.nodes[reader].op not in SHARES for reader in readers):
            return False
    return len(buffer) == 1 or all(len(graph.readers.get(key, [])) == 1 for key in buffer)
