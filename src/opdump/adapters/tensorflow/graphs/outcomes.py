"""Determines the outcome of the program's operators in the graph that the runtime executes.

An operator *ran* if the graph has a node of its name; the type of that node is its actual form (`_FusedConv2D` for a Relu). An operator
without a node was folded into a constant, equals its input, was computed within another operator that ran, or was not needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import tensorflow as tf

from opdump.adapters.program_stacks import Stack
from opdump.adapters.tensorflow.graphs.library import (
    LOOPS,
    ExecutedGraph,
    Key,
    Library,
    Slot,
    base_type,
    device_of,
    fused_activation,
    fused_types,
    is_call,
    is_own_kernel,
    is_plumbing,
    output_count,
    outputs_of,
)
from opdump.adapters.tensorflow.graphs.operator_kinds import (
    CONSTANTS,
    ENTERS,
    EXITS,
    MERGES,
    PASSES_ON,
    SKIPS,
    SWITCHES,
)
from opdump.adapters.tensorflow.graphs.program import Program, ProgramOperator
from opdump.adapters.tensorflow.graphs.trials import ShapeOf, Trial, UntriedError, agree
from opdump.records import SkipReason

Outcome = Literal["ran", "folded", "passed", "within", "removed", "hidden"]
"""`within`: in another operator. `passed`: it has no node because it returns its input. `hidden`: it may have run where it cannot be observed."""

_CONTROL: Final = "control flow"
_MOST_TRIED: Final = 64
"""Maximum number of operators in a trial."""
_DEPTH: Final = 16
"""Maximum number of operators before one that are examined to find out whether two are equal."""


class Outcomes:
    """The outcome of each operator by name, and the places of its tensors in the executed graph."""

    def __init__(
        self,
        program: Program,
        executed: ExecutedGraph,
        *,
        fed: Collection[Key],
        asked: Collection[Key] = (),
        unread: Mapping[Key, Key] = MappingProxyType({}),
        shape_of: ShapeOf = lambda _: None,
    ) -> None:
        """`shape_of` has the shapes of the program's tensors, as far as they are known. `fed` and `asked` are the feeds and fetches of the program; `unread` must not be read, with the equal tensors to use instead."""
        self._program = program
        self._executed = executed
        self._fed = fed
        self._asked = {_node(key) for key in asked}
        self._operators = {op.name: op for op in program.operators}
        self.callers = {op.caller for op in program.operators if op.caller}
        """Operators that run functions."""
        self._read = {slot.key for op in program.operators if op.is_needed for slot in op.inputs}
        self._read |= program.results.keys() | set(asked)
        named = {path: name for name, path in executed.paths.items()} | {name: name for name in executed.nodes}
        self.nodes = {name: named[name] for name in self._operators if name in named}
        """Operator -> its node."""
        self._shape_of = shape_of
        self._names = {node: name for name, node in self.nodes.items()}
        self._changed: set[str] = set()
        """The nodes with other results than the operators of their names."""
        self._unread = unread
        self.same: dict[Key, Key] = {**program.behind, **unread}
        """Tensor -> the equal tensor."""
        self.of: dict[str, Outcome] = {}
        self.inside: dict[str, str] = {}
        """For an operator within another one, that one."""
        self._find_loops()
        self._find_ran()
        self._find_others()

    def node_of(self, op_name: str) -> Any | None:
        """The node of an operator that ran or was folded."""
        return self._executed.nodes.get(self.nodes.get(op_name, ""))

    def executed_key(self, key: Key) -> Key | None:
        """The place of a tensor in the executed graph; None if it is not there."""
        if key in self._unread:
            return None
        name, _, slot = key.rpartition(":")
        node = self.nodes.get(name)
        if node is not None and self.of.get(name) == "ran":
            count = output_count(self._executed.nodes[node])
            if name in self.callers:
                given = self.given_outputs(self._operators[name])
                return f"{node}:{given.index(int(slot))}" if int(slot) in given else None
            return f"{node}:{slot}" if int(slot) < count else None
        if name in self._operators or name not in self._executed.nodes:
            return None
        return key  # a node of the rewriting

    def given_outputs(self, op: ProgramOperator) -> list[int]:
        """The slots of a call that its node has, in order: slots without readers may be missing. Empty if they are unknown."""
        count = output_count(self._executed.nodes[self.nodes[op.name]])
        read = [slot.slot for slot in op.outputs if slot.key in self._read or count == len(op.outputs)]
        return read if len(read) == count else []

    def constant_arguments(self, op: ProgramOperator) -> list[int] | None:
        """The slots of a call that its node does not read because they are constants; None if they are unknown."""
        reads = [*self._executed.inputs(self._executed.nodes[self.nodes[op.name]])]
        if len(reads) == len(op.inputs):
            return []
        found = []
        for slot in op.inputs:
            if reads and self.executed_key(self.resolved(slot.key)) == reads[0]:
                del reads[0]
            else:
                found.append(slot.slot)
        return None if reads else found

    def reason(self, op: ProgramOperator, *, may_not_run: bool) -> SkipReason:
        """Why an operator is skipped, by its outcome; empty if it is not."""
        outcome = self.of[op.name]
        if op.name in self.callers and outcome != "ran" and op.is_needed:
            return "control flow"
        if outcome == "folded" and may_not_run:
            return "constant"
        if outcome == "removed" or (outcome == "passed" and may_not_run):
            return "not executed"
        return "not observed" if outcome == "hidden" else ""

    def facts(self, op: ProgramOperator) -> dict[str, str]:
        """How an operator ran, if not as its type: for its arguments in records."""
        outcome = self.of[op.name]
        if outcome == "within":
            return {"source": "computed apart", "inside": self.inside[op.name]}
        if outcome == "folded":
            return {"source": "constant"}
        node = self.node_of(op.name) if outcome == "ran" else None
        if node is None:
            return {}
        is_changed = base_type(node) != op.op_type or fused_types(node) or self._reads_otherwise(op, node)
        return {**({"executed_as": str(node.op)} if is_changed else {}), **device_of(node.device)}

    def _reads_otherwise(self, op: ProgramOperator, node: Any, depth: int = _DEPTH) -> bool:
        """Whether a node with an operator's own type has other inputs than the operator, because the rewriting moved a factor or a summand."""
        left = [*self._executed.inputs(node)]
        if len(left) != len(op.inputs):
            return True
        for slot in op.inputs:
            keys = left if op.op_type in COMMUTATIVE else left[:1]
            found = next(
                (key for key in keys if _node(key) not in self._changed and self._is_read(slot, key, depth)), None
            )
            if found is None:
                return True
            left.remove(found)
        return False

    def _computes_otherwise(self, op: ProgramOperator) -> bool:
        """Whether the rewriting moved a factor or a summand into the node with an operator's name, or out of it.

        Then the node's result does not follow from the operator's inputs, even without rounding, and the operator is computed apart. Only
        operators that run as often as the whole are examined.
        """
        node = self.node_of(op.name)
        assert node is not None, op.name
        if not self._program.bodies[op.body].is_sure or not op.is_pure or not op.inputs or not op.outputs:
            return False
        if op.name in self._asked | self.callers or op.op_type in SKIPS or op.op_type in FORWARDS:
            return False
        if base_type(node) == op.op_type and not fused_types(node) and not self._reads_otherwise(op, node):
            return False
        trial = Trial(self._shape_of)
        try:
            return not agree(self._tried(f"{op.name}:0", trial, {}), self._tried_node(f"{node.name}:0", trial, {}))
        except (UntriedError, RecursionError):
            return False

    def _tried(self, key: Key, trial: Trial, known: dict[Key, Sequence[Any]]) -> Any:
        """The value of a tensor of the program in a trial. Raises UntriedError if it cannot be computed."""
        resolved = self.resolved(key)
        constant = self.constant_node(resolved)
        if constant is not None:
            return trial.constant(constant)
        name, _, slot = resolved.rpartition(":")
        op = self._operators.get(name)
        if known and op is not None and self.of.get(name) == "ran":
            return trial.shared(resolved, op.outputs[int(slot)].dtype)
        if op is None or not op.is_pure or len(known) > _MOST_TRIED:
            raise UntriedError
        if name not in known:
            known[name] = ()
            known[name] = trial.run(op.node, [self._tried(each.key, trial, known) for each in op.inputs])
        if not known[name]:
            raise UntriedError
        return known[name][int(slot)]

    def _tried_node(self, key: Key, trial: Trial, known: dict[Key, Sequence[Any]]) -> Any:
        """The same for a tensor of the executed graph."""
        name, _, slot = key.rpartition(":")
        node = self._executed.nodes[name]
        if node.op in CONSTANTS:
            return trial.constant(node)
        op = self._operators.get(self._names.get(name, ""))
        if known and op is not None and name not in self._changed and self.of.get(op.name) == "ran":
            if int(slot) >= len(op.outputs):
                raise UntriedError  # a workspace, which the node of oneDNN has and the operator has not
            return trial.shared(f"{op.name}:{slot}", op.outputs[int(slot)].dtype)
        if is_plumbing(node) or len(known) > _MOST_TRIED or (op is not None and not op.is_pure):
            raise UntriedError
        if name not in known:
            known[name] = ()
            known[name] = trial.run(
                node, [self._tried_node(each, trial, known) for each in self._executed.inputs(node)]
            )
        if not known[name]:
            raise UntriedError
        return known[name][int(slot)]

    def _is_read(self, slot: Slot, key: Key, depth: int) -> bool:
        """Whether a tensor of the executed graph equals the program's input in a slot; an equal constant or result of an equal operator counts."""
        wanted = self.resolved(slot.key)
        if key in (wanted, self.executed_key(wanted)) or key in self._names_of(slot.key):
            return True
        constant, node = self.constant_node(wanted), self._executed.nodes.get(_node(key))
        if node is None or wanted in self._fed:
            return node is not None and is_plumbing(node)
        if constant is not None:
            values = (tf.make_ndarray(each.attr["value"].tensor) for each in (constant, node) if each.op == "Const")
            return node.op == "Const" and bool(np.array_equal(*values))
        maker = self._operators.get(_node(wanted))
        is_alike = maker is not None and base_type(node) == maker.op_type and not fused_types(node)
        return maker is not None and is_alike and depth > 0 and not self._reads_otherwise(maker, node, depth - 1)

    def constant(self, key: Key) -> Any | None:
        """The value of a tensor that is a constant of the program, or of a folded operator; None for others."""
        node = self.constant_node(key)
        return None if node is None else tf.make_ndarray(node.attr["value"].tensor)

    def constant_node(self, key: Key) -> Any | None:
        """The node with that value."""
        name, _, slot = key.rpartition(":")
        op = self._operators.get(name)
        node = op.node if op is not None and op.op_type == "Const" else None
        if node is None and op is not None and self.of.get(name) == "folded":
            folded = self._executed.folded.get(name, {})
            node = folded.get(int(slot)) if len(folded) == len(op.outputs) else self.node_of(name)
        elif op is None:
            node = self._executed.nodes.get(name)
        return node if node is not None and node.op == "Const" else None

    def resolved(self, key: Key) -> Key:
        """The first equal tensor that is in the executed graph, was fed, or is computed."""
        seen = set()
        while key in self.same and key not in self._fed and self.executed_key(key) is None and key not in seen:
            seen.add(key)
            key = self.same[key]
        return key

    def _find_loops(self) -> None:
        """The equal tensors for arguments and results of loops that were functions: the runtime numbers the nodes that it makes of one consecutively."""
        loops = {f"{op.name}/LoopCond": op for op in self._program.operators if op.op_type in LOOPS}
        executed = self._executed
        for name, node in executed.nodes.items():
            path, _, number = executed.paths.get(name, name).rpartition("/_")
            op = loops.get(path) if node.op == "LoopCond" else None
            if op is None:
                continue
            # A handle of a variable enters a loop and never changes.
            moving = [slot.slot for slot in op.inputs if slot.dtype != tf.resource.as_datatype_enum]
            numbered = {f"_{place}": slot for place, slot in enumerate(moving, int(number) + 1)}
            for switch in executed.readers.get(f"{name}:0", ()):
                place = numbered.get(switch.rpartition("/")[2])
                if place is None or executed.nodes[switch].op not in SWITCHES:
                    continue
                self.same.setdefault(
                    self._program.arguments[op.name, "cond"][place], executed.inputs(executed.nodes[switch])[0]
                )
                self.same.setdefault(self._program.arguments[op.name, "body"][place], f"{switch}:1")
                for reader in executed.readers.get(f"{switch}:0", ()):
                    if executed.nodes[reader].op == "Exit":
                        self.same.setdefault(f"{op.name}:{place}", f"{reader}:0")

    def _find_ran(self) -> None:
        for op in self._program.operators:
            outcome, node = self._outcome(op), self.node_of(op.name)
            if outcome is not None:
                self.of[op.name] = outcome
            elif node is not None and node.op in CONSTANTS:
                self._changed.add(node.name)  # a factor that the rewriting collected
        for op in reversed(self._program.operators):
            if self.of.get(op.name) == "ran":
                self._align(op, self.node_of(op.name))
        self._find_activations()
        changed = [op for op in self._program.operators if self.of.get(op.name) == "ran" and not self._is_faithful(op)]
        for op in changed:
            self._leave(op)
        for op in self._program.operators:  # makers come before their readers
            if self.of.get(op.name) == "ran" and self._computes_otherwise(op):
                self._leave(op)

    def _find_activations(self) -> None:
        """Find the activations that were fused into batch norms. Such a node has the name of the norm and the result of the activation."""
        kinds = {name: fused_activation(self._executed.nodes[node]) for name, node in self.nodes.items()}
        for op in self._program.operators:
            kind = kinds.get(op.name)
            if not kind or self.of.get(op.name) != "ran":
                continue
            self._leave(op)
            for reader in self._program.operators:
                own = self.node_of(reader.name)  # what is left of the activation, if anything
                is_left = own is None or own.op == "Identity"
                if reader.op_type == kind and is_left and reader.inputs[0].key == f"{op.name}:0":
                    self.nodes[reader.name] = self.nodes[op.name]
                    self.of[reader.name] = "ran"

    def _leave(self, op: ProgramOperator) -> None:
        """Note that the node with an operator's name has other results than the operator."""
        self._changed.add(self.nodes[op.name])
        del self.of[op.name]

    def _may_be_constant(self, op: ProgramOperator) -> bool:
        """Whether the results of an operator are independent of the inputs of the run; a node of its name may contain another constant."""
        if op.op_type in MADE_OF_SHAPES:
            return True
        for slot in op.inputs:
            maker = self._operators.get(_node(slot.key))
            if slot.key in self._fed or maker is None:
                return False
            if maker.op_type in CONSTANTS:
                continue
            node = self.node_of(maker.name)
            gone = node is None and (
                maker.op_type in MADE_OF_SHAPES or (maker.is_pure and maker is not op and self._may_be_constant(maker))
            )
            if not gone and (node is None or node.op not in CONSTANTS):
                return False
        return True

    def _outcome(self, op: ProgramOperator) -> Outcome | None:
        """The outcome of an operator by the node of its name; None if that node does not show it."""
        node = self.node_of(op.name)
        if node is None or is_plumbing(node):
            return "folded" if op.name in self._executed.folded and op.op_type not in CONSTANTS else None
        if node.op in CONSTANTS and op.op_type not in CONSTANTS:
            return "folded" if self._may_be_constant(op) else None
        return None if node.op == "NoOp" and op.op_type != "NoOp" else "ran"

    def _align(self, op: ProgramOperator, node: Any) -> None:
        """Find the equal tensors for inputs that no other operator of the program makes: arguments and results of functions."""
        inputs = self._executed.inputs(node)
        slots: Sequence[Slot] = op.inputs
        if len(inputs) != len(slots) or fused_types(node):
            slots = self._before_fusion(op)
        if len(inputs) != len(slots):
            return
        pairs = list(zip(slots, inputs, strict=True))
        if base_type(node) in COMMUTATIVE:  # the runtime sorts their inputs
            pairs = self._unnamed_pair(slots, inputs)
        for slot, key in pairs:
            root = self._root(slot.key)
            maker = self._operators.get(_node(root))
            if maker is not None and maker.name not in self.nodes and self._stands_for(key, maker):
                self.nodes[maker.name] = _node(key)
                self.of[maker.name] = "ran"
            elif root != key and (maker is None or self._is_caller(maker)) and root not in self._fed:
                self.same.setdefault(root, key)

    def _unnamed_pair(self, slots: Sequence[Slot], inputs: Sequence[Key]) -> list[tuple[Slot, Key]]:
        """The only slot that is not an input of the node by name, with the only input that is not a slot by name; otherwise none."""
        named = {key for slot in slots for key in self._names_of(slot.key)}
        left = [key for key in inputs if key not in named and self._executed.nodes[_node(key)].op not in CONSTANTS]
        unnamed = [slot for slot in slots if self._names_of(slot.key).isdisjoint(inputs)]
        unknown = [slot for slot in unnamed if not self._is_constant(slot.key)]
        return [(unknown[0], left[0])] if len(unknown) == len(left) == 1 else []

    def _stands_for(self, key: Key, op: ProgramOperator) -> bool:
        """Whether a tensor is read instead of an operator's result: by the name of its node, or because two operators with the same inputs were merged."""
        name = _node(key)
        return _is_named_for(name, op.name) or (
            not op.is_pure and not self._is_caller(op) and base_type(self._executed.nodes[name]) == op.op_type
        )

    def _is_constant(self, key: Key) -> bool:
        maker = self._operators.get(_node(key))
        return maker is not None and maker.op_type in CONSTANTS

    def _root(self, key: Key) -> Key:
        """The equal tensor, through operators without a node that return their input."""
        while True:
            name, _, slot = key.rpartition(":")
            maker = self._operators.get(name)
            if maker is None or name in self.nodes or maker.op_type not in FORWARDS or int(slot) >= len(maker.inputs):
                return key
            key = maker.inputs[int(slot)].key

    def _is_caller(self, op: ProgramOperator) -> bool:
        """Whether an operator runs functions, whose bodies may replace it."""
        return SKIPS.get(op.op_type) == _CONTROL or op.name in self.callers

    def _before_fusion(self, op: ProgramOperator) -> list[Slot]:
        """The inputs of operators that were fused: all of the first, and those of the others that are not made on the way."""
        chain, current = [op], op
        while True:
            makers = [self._operators.get(_node(slot.key)) for slot in current.inputs]
            gone = [
                each
                for each in makers
                if each is not None and each.name not in self.nodes and each.op_type not in FORWARDS
            ]
            if not gone or gone[0] in chain:
                break
            current = gone[0]
            chain.append(current)
        made = {slot.key for each in chain for slot in each.outputs}
        return [slot for each in reversed(chain) for slot in each.inputs if slot.key not in made]

    def _is_faithful(self, op: ProgramOperator) -> bool:
        """Whether the node with an operator's name has the operator's results: the rewriting may have reordered sums and products."""
        node = self.node_of(op.name)
        assert node is not None, op.name
        if op.name in self._asked | self.callers or op.op_type in SKIPS or fused_types(node) or is_own_kernel(node):
            return True  # fused operators have the name of the last one
        if base_type(node) != op.op_type:
            return node.op in GIVE_THE_SAME or (op.op_type, node.op) in WRITTEN_AS
        reads = self._executed.inputs(node)
        for slot in op.inputs:
            wanted = self.resolved(slot.key)
            maker = self._operators.get(_node(wanted))
            if maker is None or wanted in self._fed or self.of.get(maker.name) != "ran":
                continue
            if self._names_of(slot.key).isdisjoint(reads) and any(self._is_of_program(each) for each in reads):
                return self._has_equal(maker, reads)
        return True

    def _names_of(self, key: Key) -> set[Key]:
        """The places of a tensor, and of its equal tensors, in the executed graph."""
        found: set[Key] = set()
        while key not in found:
            name, _, slot = key.rpartition(":")
            found.update((key, f"{self.nodes.get(name, name)}:{slot}"))
            key = self.same.get(key, key)
        return found

    def _is_of_program(self, key: Key) -> bool:
        name = _node(key)
        node = self._executed.nodes.get(name)
        return node is not None and node.op not in CONSTANTS and self._executed.paths.get(name, name) in self._operators

    def _has_equal(self, maker: ProgramOperator, reads: Iterable[Key]) -> bool:
        """Whether an operator that does the same is among these: the runtime keeps one of two equal operators."""
        node, others = self.node_of(maker.name), map(self._executed.nodes.get, map(_node, reads))
        return node is not None and any(other is not None and other.op == node.op for other in others)

    def _find_others(self) -> None:
        needed, folded = self._needed()
        for op in self._program.operators:
            name = op.name
            if name in self.of:
                continue
            call = self.call_around(op) if op.body else ""
            if call and (not op.is_pure or self._is_caller(op) or not is_call(self._operators[call].op_type)):
                self.of[name] = "hidden"
            elif call:
                self.of[name] = "within"
                self.inside[name] = call
            elif name not in needed:
                self.of[name] = "folded" if name in folded else "removed"
            elif op.op_type in FORWARDS and len(op.inputs) >= len(op.outputs):
                self.of[name] = "passed"
                self.same.update((out.key, given.key) for out, given in zip(op.outputs, op.inputs, strict=False))
            else:
                self.of[name] = "within"
                self.inside[name] = needed[name]

    def call_around(self, op: ProgramOperator) -> str:
        """The operator that calls the function whose body contains one, if the body is not part of the executed graph; otherwise empty."""
        caller = self._operators.get(op.caller)
        while caller is not None:
            node = self.node_of(caller.name)
            if (
                node is not None
                and SKIPS.get(caller.op_type, _CONTROL) == _CONTROL
                and node.op not in ("NoOp", "Identity", "IdentityN")
            ):
                return caller.name
            caller = self._operators.get(caller.caller)
        return ""

    def _needed(self) -> tuple[dict[str, str], set[str]]:
        """The operators without a node that results or operators that ran depend on, with their readers; and the operators behind folded ones."""
        needed: dict[str, str] = {}
        folded: set[str] = set()
        for op in reversed(self._program.operators):  # the nearest one contains it
            is_control = op.name not in self.of and SKIPS.get(op.op_type) == _CONTROL and op.is_needed
            if self.of.get(op.name) == "ran" or is_control:
                self._walk((slot.key for slot in op.inputs), op.name, needed)
        behind: dict[str, str] = {}
        for op in self._program.operators:
            if self.of.get(op.name) == "folded":
                self._walk((slot.key for slot in op.inputs), op.name, behind)
        live = self._live_bodies()
        for key, caller in self._program.results.items():
            maker = self._operators.get(_node(key))
            if maker is not None and maker.body in live and maker.name not in behind:
                self._walk([key], caller or maker.name, needed)
        folded.update(behind.keys() - needed.keys())
        return needed, folded

    def _live_bodies(self) -> set[int]:
        """Operators of which a part is executed, and the operators around them."""
        found = {0}
        for op in self._program.operators:
            body = op.body if op.name in self.nodes else 0
            while body not in found:
                found.add(body)
                body = self._program.bodies[body].around
        return found

    def _walk(self, keys: Iterable[Key], by: str, found: dict[str, str]) -> None:
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            if key in self._fed:
                continue
            maker = self._operators.get(_node(key))
            if maker is None:
                if key in self.same:
                    waiting.append(self.same[key])
                continue
            if maker.name in self.of or maker.name in found:
                continue
            found[maker.name] = by
            waiting += [slot.key for slot in maker.inputs]


def _node(key: Key) -> str:
    return key.rpartition(":")[0]


def _is_named_for(node: str, op_name: str) -> bool:
    """Whether a node has a name that the runtime gives to a replacement of an operator: `ArithmeticOptimizer/..._{operator}`."""
    if node == f"{op_name}/unary_ops_composition":
        return True
    scope, _, name = op_name.rpartition("/")
    return "Optimizer/" in node and node.startswith(scope) and node.endswith(f"_{name}")


# The runtime's rewrites of operators, by type.

FORWARDS: Final = frozenset({"Identity", "RefIdentity", "StopGradient", "PreventGradient", "IdentityN", "Snapshot"})
"""They return their inputs, slot by slot."""
MADE_OF_SHAPES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank", "BroadcastGradientArgs", "ZerosLike", "OnesLike"})
"""Their results may be known before a run, whatever the inputs are."""
GIVE_THE_SAME: Final = FORWARDS | {"Reshape", "BroadcastTo", "Squeeze", "ExpandDims", "Neg", "Cast", "NoOp"}
"""They replace operators that need no computation and return their results: products with one, sums over nothing."""
WRITTEN_AS: Final = frozenset(
    {("RealDiv", "Mul"), ("Div", "Mul"), ("Mul", "Square"), ("Log", "Log1p"), ("Log", "LogSoftmax"), ("Exp", "Expm1")}
    | {("Pow", other) for other in ("Identity", "Inv", "Mul", "Reciprocal", "Rsqrt", "Sqrt", "Square")}
    | {(one, other) for one in ("Add", "AddV2", "BiasAdd") for other in ("Add", "AddV2", "AddN", "BiasAdd")}
)
"""The types with which the runtime computes an operator, under its name. A square root that becomes a reciprocal one keeps the name, and
is not included.
"""
COMMUTATIVE: Final = frozenset(
    {"Add", "AddV2", "AddN", "Mul", "Maximum", "Minimum", "SquaredDifference", "Equal", "NotEqual"}
    | {"LogicalAnd", "LogicalOr", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "AccumulateNV2"}
)


# Finds the operators that the runtime inserted into a graph when it rewrote it.


def rewritten_operators(
    program: Program, executed: ExecutedGraph, nodes: Mapping[str, str], library: Library
) -> Iterator[ProgramOperator]:
    """The operators that are not the program's; `nodes` are the nodes of its own operators.

    Nodes that only pass values on, such as the switches of a loop that was a function, are not included. Tensors have the names of the executed graph.
    """
    operators = {op.name: op for op in program.operators}
    known = {node: operators[name] for name, node in nodes.items()}
    made = {name: outputs_of(node, library) or () for name, node in executed.nodes.items()}
    for name, node in executed.nodes.items():
        shown = executed.paths.get(name, name)
        if name in known or shown in operators or node.op in SKIPS or node.op in PASSES_ON or is_plumbing(node):
            continue
        inputs = []
        for place, key in enumerate(executed.inputs(node)):
            maker, _, slot = key.rpartition(":")
            found = made.get(maker, ())
            dtype = found[int(slot)].dtype if int(slot) < len(found) else 0
            inputs.append(Slot(place, "", key, dtype, f"{executed.paths.get(maker, maker)}:{slot}"))
        outputs = tuple(Slot(slot.slot, slot.argument, f"{name}:{slot.slot}", slot.dtype) for slot in made[name])
        yield ProgramOperator(shown, base_type(node), node, _stack_of(name, known, executed), tuple(inputs), outputs)


def _stack_of(name: str, known: Mapping[str, ProgramOperator], executed: ExecutedGraph) -> Stack:
    """The program lines of the direct or indirect readers of a node, for which it was made."""
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop(0)
        if current in known:
            return known[current].stack
        for slot in range(output_count(executed.nodes[current])):
            readers = [each for each in executed.readers.get(f"{current}:{slot}", ()) if each not in seen]
            seen.update(readers)
            waiting += readers
    return ()


# The relative frequency of nodes of a graph: the loops, and the branches in them, in which they run.

Tensor = tuple[str, int]
"""A node, and the slot of its output."""
Control = tuple[tuple[str, ...], Tensor, int]
"""The loops around a branch, the deciding tensor, and the output of the Switch."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that run equally often: in the same loops (`frame`), in the same branches of them (`controls`)."""

    frame: tuple[str, ...]
    controls: frozenset[Control]

    def behind(self, decides: Tensor, output: int) -> Region:
        """The region of an output of a Switch in this region, for a deciding tensor."""
        return Region(self.frame, self.controls | {(self.frame, decides, output)})


ROOT: Final = Region((), frozenset())
"""Nodes that run as often as the graph."""


def region_of(op_type: str, read: Sequence[Region], waited: Sequence[Region], entered: str) -> Region:
    """The region of a node of this type, from the regions of its inputs (without the values of the previous iteration) and of the nodes
    that it waits for.

    `entered` is the loop that it enters, if any.
    """
    if op_type in MERGES:  # it also runs after a node in a branch, whether that runs or not
        return Region(read[0].frame, frozenset.intersection(*(each.controls for each in read))) if read else ROOT
    around = [*waited, *read]
    frame = max((each.frame for each in around), key=len, default=())
    controls = frozenset().union(*(each.controls for each in around))
    if op_type in ENTERS:
        return Region((*frame, entered), controls)
    if op_type in EXITS:
        return Region(frame[:-1], frozenset(each for each in controls if each[0] != frame))
    return Region(frame, controls)
