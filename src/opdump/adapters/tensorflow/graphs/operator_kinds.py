"""Decides by type whether an operator is recorded, passes its input on, or updates a variable; and whether a plan selects it.

docs/compatibility.md#tensorflow-programs lists the skipped operators.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from opdump.adapters.graph_runtime import OperatorSelection
from opdump.adapters.tensorflow.graphs.library import LOOPS, ExecutedGraph, Key, reachable
from opdump.adapters.tensorflow.graphs.program import Program
from opdump.plan import DumpPlan
from opdump.plan.selection import ModelFilter
from opdump.plan.unmatched_names import ListMatches
from opdump.records import IO, Phase, SkipReason

if TYPE_CHECKING:
    from opdump.adapters.tensorflow.graphs.library import Slot
    from opdump.adapters.tensorflow.graphs.program import ProgramOperator

_WITHOUT_DATA: Final[Mapping[SkipReason, tuple[str, ...]]] = MappingProxyType(
    {
        "constant": ("Const", "HostConst"),
        "fed": ("Placeholder", "PlaceholderV2", "_Arg", "_DeviceArg"),
        "handle": (
            *("VarHandleOp", "VarHandlesOp", "_VarHandlesOp", "Iterator", "IteratorV2", "OneShotIterator"),
            *("AnonymousIterator", "AnonymousIteratorV2", "AnonymousIteratorV3", "MutableHashTable"),
            *("MutableHashTableV2", "HashTable", "HashTableV2", "FIFOQueueV2", "RandomShuffleQueueV2", "TensorArrayV3"),
            *("StackV2", "DummyIterationCounter", "AnonymousMultiDeviceIterator", "AnonymousSeedGenerator"),
        ),
        "control flow": (
            *("NoOp", "ControlTrigger", "Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge", "Enter", "RefEnter"),
            *("Exit", "RefExit", "NextIteration", "RefNextIteration", "LoopCond", "Abort"),
            *("If", "StatelessIf", "_If", "While", "StatelessWhile", "_While", "Case", "StatelessCase", "For"),
            *("PartitionedCall", "StatefulPartitionedCall", "RemoteCall", "SymbolicGradient", "_Retval"),
        ),
    }
)
SKIPS: Final[Mapping[str, SkipReason]] = MappingProxyType(
    {op_type: reason for reason, types in _WITHOUT_DATA.items() for op_type in types}
)
"""Operator type -> why operators of this type are skipped."""

DATA_TYPES: Final = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "IteratorGetNext", "Data"})
"""Data operators: dumped together with an operator of `dump_layer` that reads them."""

PASSES_ON: Final = frozenset(
    {"Identity", "RefIdentity", "Switch", "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "Exit", "RefExit"}
    | {"NextIteration", "RefNextIteration", "StopGradient", "PreventGradient", "Snapshot"}
)
"""They return one of their inputs unchanged."""

# Parts of loops and branches in a graph, and values that are the same in each run.
CONSTANTS: Final = frozenset({"Const", "HostConst"})
SWITCHES: Final = frozenset({"Switch", "RefSwitch", "_SwitchN"})
MERGES: Final = frozenset({"Merge", "RefMerge"})
ENTERS: Final = frozenset({"Enter", "RefEnter"})
EXITS: Final = frozenset({"Exit", "RefExit"})
NEXT: Final = frozenset({"NextIteration", "RefNextIteration"})

_UPDATES: Final = ("ResourceApply", "ResourceSparseApply", "SparseApply", "Apply", "AssignAdd", "AssignSub", "Scatter",
                   "ResourceScatter", "ResourceStridedSliceAssign")  # fmt: skip
_ASSIGNS: Final = frozenset({"Assign", "AssignVariableOp", "AssignVariableXlaConcatND"})
_GRADIENTS: Final = re.compile(r"(^|/)(gradient_tape|gradients(_\d+)?)/")
"""Names of the operators with which a function computes gradients."""
_SUMS: Final = re.compile(r"(^|/)AddN(_\d+)?$")
"""Names of the sums of gradients of one tensor, which are outside of that scope."""


def is_of_gradient(op_name: str) -> bool:
    """Whether an operator of a graph computes a gradient, according to its name."""
    return _GRADIENTS.search(op_name) is not None


def is_update(op_type: str) -> bool:
    """Whether an operator of this type changes a variable based on its old value, like an optimizer."""
    return op_type.startswith(_UPDATES) and not op_type.startswith("ScatterNd")


def is_assignment(op_type: str) -> bool:
    """Whether an operator of this type assigns a value to a variable regardless of its old value."""
    return op_type in _ASSIGNS


def writes_variable(op_type: str) -> bool:
    """Whether an operator of this type changes a variable in either way."""
    return is_update(op_type) or is_assignment(op_type)


VARIABLES: Final = frozenset({"VariableV2", "Variable"})
"""Reference variables: operators that return their own value."""
READS: Final = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
"""They read the value of a variable."""


def is_stateful(op_type: str) -> bool:
    """Whether operators of this type are stateful according to TensorFlow; False for an unknown type."""
    found = op_def_registry.get(op_type)
    return found is not None and bool(found.is_stateful)


class ModelSlots(OperatorSelection):
    """The selection of a plan in one model; `matches` collects the names in the `dump_list` that its operators have."""

    def __init__(
        self, plan: DumpPlan, model_filter: ModelFilter, held: frozenset[str] | None, matches: ListMatches
    ) -> None:
        super().__init__(plan, model_filter, held, matches)
        self._entries = model_filter.entries
        self._listed = matches
        self._names_layers = any(entry.layers is not None for entry in model_filter.entries)

    def skip_of(
        self, op_type: str, op_name: str, readers: Collection[str] = (), *, shown: str | None = None
    ) -> SkipReason:
        """Why an operator is skipped; empty if it is recorded.

        `readers` are the operators that read it: a data operator is dumped together with an operator that is selected by name. `shown`, the name
        in records, can also select it.
        """
        self._listed.operator(self._entries, op_name, (op_name,), op_type)
        if self._names_layers and op_type in DATA_TYPES and any(self.names(reader) for reader in readers):
            return ""
        others = () if shown in (None, op_name) else (str(shown),)
        return SKIPS.get(op_type, "") or ("" if self.selects(op_name, op_type, others) else "not selected")

    def taken(self, op: ProgramOperator, io: IO, name: str = "") -> tuple[Slot, ...]:
        """The selected inputs, or outputs, of an operator, without handles. `name` is its name in records."""
        if not self.wants(io):
            return ()
        excluded = self.excluded(name or op.name, op.op_type, io)
        slots = op.inputs if io == "input" else op.outputs
        return tuple(slot for slot in slots if slot.slot not in excluded and not slot.is_handle)


def phases_of(program: Program, *, is_gradient: bool = False, follow: Collection[Key] = ()) -> dict[str, Phase]:
    """The phase of each operator of a program, by name. The optimizer has what is computed from gradients, and from variables that it wrote,
    except the forward pass of a further gradient.

    `is_gradient`: the program is a gradient as a whole. `follow` are the arguments that were computed from gradients.
    """
    phases: dict[str, Phase] = {}
    differentiated = _differentiated(program)
    updated: set[Key] = set()
    """The handles of variables that the optimizer wrote."""

    def phase(op_name: str, key: Key) -> Phase:
        key = program.resolved(key)
        if key in updated and op_name not in differentiated:
            return "optimizer"
        return "backward" if key in follow else phases.get(key.rpartition(":")[0], "forward")

    for op in program.operators:
        if is_gradient or is_of_gradient(op.name):
            phases[op.name] = "backward"
        elif set(read := [phase(op.name, slot.key) for slot in op.inputs]) - {"forward"}:
            is_sum = _SUMS.search(op.name) is not None and set(read) == {"backward"}
            phases[op.name] = "backward" if is_sum else "optimizer"
            if writes_variable(op.op_type):
                updated.update(program.resolved(slot.key) for slot in op.inputs if slot.is_handle)
    return phases


def _differentiated(program: Program) -> set[str]:
    """The operators from which gradients are computed."""
    found: set[str] = set()
    for op in reversed(program.operators):
        if op.name in found or is_of_gradient(op.name):
            found.update(program.resolved(slot.key).rpartition(":")[0] for slot in op.inputs)
    return found


# Finds what an observation of a graph may change: sums whose order depends on other readers, and state that a copy does not share.

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
