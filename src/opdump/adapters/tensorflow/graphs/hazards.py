"""Finds what an observation of a graph may change: sums whose order depends on other readers, and state that a copy does not share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import tensorflow as tf

from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph, Key
from opdump.adapters.tensorflow.graphs.library import LOOPS, reachable
from opdump.adapters.tensorflow.graphs.program import Program
from opdump.adapters.tensorflow.operator_kinds import NEXT, is_stateful

# Finds sums whose order of summation depends on other references to their inputs.
#
# AddN sums into the first of its inputs that has no other reference, and begins with it: `a + b + c` becomes `c + b + a` if `a` and `b` are
# fetched, which may change the last bits of floating-point results. Inputs that it may sum into are therefore neither fetched nor watched.

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


# Finds the state that belongs to a graph and starts anew in a copy: random numbers within functions, callbacks that are folded.
#
# An operator such as RandomUniform counts its results. In the graph of a session there is one counter, whatever the session fetches. In
# the body of a function (`tf.function`, the branches and loops of control flow 2, `Defun`), each set of fetches, and each copy of the function,
# has its own. A Python callback that is declared as stateless and depends on no input runs once for each of them, when the
# runtime folds constants. Such a graph is therefore instrumented in all its steps or in none.

_FOLDED: Final = "PyFuncStateless"
_SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank"})
"""The runtime may know their results before it knows their inputs."""


def draws_seeded_numbers(nodes: Iterable[Any]) -> bool:
    """Whether one of these nodes continues a sequence of random numbers. Without seeds the numbers differ from run to run anyway."""
    return any(
        is_stateful(node.op) and any(name in node.attr and node.attr[name].i for name in ("seed", "seed2"))
        for node in nodes
    )


def may_fold_callbacks(nodes: Iterable[Any]) -> bool:
    """Whether the runtime runs a callback among these nodes itself because nothing that it depends on is an input."""
    return any(node.op == _FOLDED for node in nodes)


def folds_callbacks(program: Program) -> bool:
    """Whether the runtime itself runs a callback of the program, once for each copy of a graph."""
    same = dict(program.behind)
    fixed: set[Key] = set()
    for op in program.operators:
        reads = []
        for slot in op.inputs:
            key = slot.key
            while key in same:
                key = same[key]
            reads.append(key)
        if op.op_type in LOOPS:  # the initial value of a loop may also be its next one
            for label in ("cond", "body"):
                same.update(zip(program.arguments.get((op.name, label), ()), reads, strict=False))
        depends = is_stateful(op.op_type) or op.op_type.startswith("Placeholder") or not fixed.issuperset(reads)
        if op.op_type in _SHAPES or not depends:
            fixed.update(slot.key for slot in op.outputs)
            if op.op_type == _FOLDED:
                return True
    return False
