"""Plans how the values of a signature are obtained without a change in its answer, bit for bit.

The graph that the runtime executes is looked up first. A tensor of it is *fetched* in the same run if the graph stays the same, which is
looked up, too. Otherwise it is *watched* by the runtime's debugger, which inserts its nodes into the finished graph. Values that the graph
lacks, because operators were fused or rewritten, are computed *apart* from seen values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from opdump.adapters.graph_runtime import ArrayBlock, BlockOperator, BlockSlot, GraphRun, NamedOperator, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.program_stacks import Stack
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.graphs.library import LAUNCH, ExecutedGraph, Key, Slot, are_handles, note_of_call
from opdump.adapters.tensorflow.graphs.operator_kinds import (
    ENTERS,
    READS,
    SKIPS,
    VARIABLES,
    behind,
    is_assignment,
    left_alone,
    left_to_chance,
    phases_of,
    writes_variable,
)
from opdump.adapters.tensorflow.graphs.outcomes import FORWARDS, Outcomes, rewritten_operators
from opdump.adapters.tensorflow.graphs.program import Program, ProgramOperator
from opdump.adapters.tensorflow.graphs.trials import shape_in_graph
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, program_of, read_variable
from opdump.adapters.tensorflow.sessions.watches import ObservedValue, RecomputeGraph, executed_graph
from opdump.graph import PARAMETER_PREFIX
from opdump.recorder import LiveTensor
from opdump.records import SkipReason

_ATTEMPTS: Final = 4
_SUMS: Final = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
"""Operators that add to a variable, with those that compute the sum."""


class ObservationPlan:
    """The tensors that are fetched and watched in a dumped run of a signature, those computed after it, and the emitter.

    Creating it prepares two executors of the runtime and runs neither.
    """

    def __init__(
        self,
        capture: Capture,
        model: Model,
        session: Any,
        elements: Sequence[Any],
        subgraph: Subgraph,
        new_place: Callable[[], Path],
        *,
        asked_only: bool,
    ) -> None:
        """`elements` are the fetches of the program; `asked_only`: nothing else may be observed. `new_place` returns a directory for each graph.

        If the capture streams, all values are watched, and passed through files.
        """
        self._capture, self._session, self._subgraph, self._model = capture, session, subgraph, model
        self._new_place = new_place
        self._asked_only = asked_only
        tensors = [each for each in elements if not isinstance(each, tf.Operation)]
        self._fetched = [each.name for each in tensors if each.name not in subgraph.fed]
        self._targets = [each.name for each in elements if isinstance(each, tf.Operation)]
        fed = map(session.graph.get_tensor_by_name, sorted(subgraph.fed.difference(each.name for each in tensors)))
        self.programs = (*tensors, *filter(session.graph.is_fetchable, fed))
        """The fetches and feeds of the program."""
        self.reads: dict[Key, Any] = {}
        """Variables that unobservable functions read, by their readers: fetched before the run."""
        self.constants: dict[Key, tuple[ObservedValue, ...]] = {}
        self.lost: dict[Key, None] = {}
        """Tensors that cannot be observed without a change in the answer."""
        self._looked: dict[Key, None] = {}
        self._apart: dict[str, ProgramOperator] = {}
        self._program: Program = program_of(subgraph, capture.stacks)
        self._operators = {op.name: op for op in self._program.operators}
        self._added: dict[str, ProgramOperator] = {}
        """Operators that compute new values of variables."""
        self._phases = phases_of(self._program)
        self._tensors = {tensor.name: tensor for op in subgraph.operations for tensor in op.outputs}
        self._executed = self._graph(())
        self._outcomes = Outcomes(
            self._program,
            self._executed,
            fed=subgraph.fed,
            asked=self._fetched,
            unread=dict(self._reads_of_variables()),
            shape_of=lambda key: shape_in_graph(self._tensors[key]) if key in self._tensors else None,
        )
        self._alone = left_alone(self._executed)
        self.left_to_chance = left_to_chance(self._executed)
        """Sums whose order depends on timing."""

        operators = self._program.operators
        order = [op.name for op in operators if not op.body]
        self._selection = capture.selection(capture.filter_of(model), order)
        self._readers = self._program.readers()
        self._places = itertools.count()

        chosen = self._choose()
        self.checks = tuple(self._checks_of_calls())
        """For calls of functions whose operators are computed apart: the results of each call, and the results computed apart."""
        wanted = set(self._apart)
        self.fetches, self.watches = self._access()
        self.apart = self._recompute_graph(wanted) if self._apart else None
        capture.recorder.matched_kernels |= self._selection.matched_kernels
        self.emitter = SignatureEmitter(capture, model, chosen, self._final, operators)

    def _choose(self) -> list[ChosenOperator]:
        """The operators of the program, with the values of the selected ones planned."""
        program, capture = self._program, self._capture
        met = {op.name for op in (*program.operators, *program.given, *(op for op, _ in program.unseen))}
        capture.operators_met = (capture.operators_met or set()) | met
        return [
            *map(self._chosen, program.operators),
            *(self._taken(op, self._skip_of(op)) for op in program.given),
            *(self._taken(op, self._skip_of(op), _of_rewriting(op), may_not_run=True) for op in self._rewritten()),
            *(self._taken(op, self._skip_of(op) or reason) for op, reason in program.unseen),
        ]

    def _recompute_graph(self, wanted: Collection[str]) -> RecomputeGraph:
        ordered = [op for op in (*self._program.operators, *self._added.values()) if op.name in self._apart]
        return RecomputeGraph(ordered, wanted, self._final, self._session)

    def _graph(self, fetches: Iterable[str]) -> ExecutedGraph:
        return executed_graph(
            self._session, self._subgraph.fed, [*self._fetched, *fetches], self._targets, self._new_place()
        )

    def _reads_of_variables(self) -> Iterable[tuple[Key, Key]]:
        """Tensors that must not be observed, and equal ones: reads of reference variables, tensors through which an update is visible."""
        for op in self._subgraph.operations:
            for tensor in op.outputs:
                variable = read_variable(tensor)
                if variable is not None:
                    yield tensor.name, variable.name
                elif op.name in self._subgraph.read_late:
                    yield tensor.name, (op.inputs[0] if op.type in FORWARDS and op.inputs else tensor).name

    def _rewritten(self) -> Iterable[ProgramOperator]:
        """The operators that the runtime inserted."""
        if self._asked_only or not self._subgraph.operations:
            return ()
        library = self._subgraph.definitions().__getitem__
        return rewritten_operators(self._program, self._executed, self._outcomes.nodes, library)

    def _skip_of(self, op: ProgramOperator) -> SkipReason:
        """Why an operator is not selected, or has nothing to select."""
        shown = self._capture.shown(self._model, op.name)
        skip = self._selection.skip_of(op.op_type, op.name, self._readers.get(op.name, ()), shown=shown)
        if skip in ("", "not selected") and op.op_type == LAUNCH:
            self._capture.note(note_of_call(op.name, op.node))
        is_data = op.op_type in ("Placeholder", "PlaceholderV2")
        if not skip and not is_data and op.outputs and all(slot.key in self._subgraph.fed for slot in op.outputs):
            return "fed"
        if not skip and are_handles(op.outputs) and not self._selection.taken(op, "input"):
            return "handle"
        return skip

    def _taken(
        self, op: ProgramOperator, skip: SkipReason, facts: dict[str, str] | None = None, *, may_not_run: bool = False
    ) -> ChosenOperator:
        """An operator with its selected slots, whose values are planned. `facts` describe how it ran."""
        place, facts = next(self._places), facts or {}
        if skip:
            return ChosenOperator(op.named(place, skip=skip))
        read, written = self._variables(op)
        inputs = tuple(sorted((*read, *self._selection.taken(op, "input")), key=lambda slot: slot.slot))
        outputs = (*self._selection.taken(op, "output"), *written)
        lost = frozenset(slot.key for slot in (*inputs, *outputs) if not self._need(slot.key))
        if op.name in self._apart:
            facts.setdefault("source", "computed apart")
        phase = self._phases.get(op.name, "forward")
        return ChosenOperator(op.named(place, facts=facts, phase=phase), inputs, outputs, may_not_run, lost)

    def _variables(self, op: ProgramOperator) -> tuple[list[Slot], list[Slot]]:
        """The values of the variables that an operator reads, in the slots of their handles, and of those that it assigns.

        The new value of a sum is computed apart. That of an optimizer's operator is known when the next step reads it.
        """
        read: list[Slot] = []
        written: list[Slot] = []
        if not self._capture.records_variables:
            return read, written
        if op.op_type in VARIABLES:
            source = f"{PARAMETER_PREFIX}{op.name}"
            read = [replace(own, argument="", source=source, variable=op.name) for own in op.outputs]
        for slot in op.inputs if op.op_type in READS or writes_variable(op.op_type) else ():
            maker = self._operators.get(self._program.resolved(slot.key).rpartition(":")[0])
            if not slot.is_handle or maker is None or maker.op_type not in SKIPS:
                continue
            name, value = maker.node.name, self._value(op, maker, slot)
            if value is not None and not is_assignment(op.op_type):
                read.append(replace(value, source=f"{PARAMETER_PREFIX}{name}", variable=name))
            after = self._assigned(op, value)
            if after is not None:
                written.append(replace(after, slot=len(written), argument=slot.argument, source="", variable=name))
        wants_inputs, wants_outputs = self._selection.wants("input"), self._selection.wants("output")
        return read if wants_inputs else [], written if wants_outputs else []

    def _value(self, op: ProgramOperator, handle: ProgramOperator, slot: Slot) -> Slot | None:
        """The value of a variable as an operator before this one has read it; None if there is none."""
        if op.op_type == "ReadVariableOp":
            return replace(op.outputs[0], slot=slot.slot, argument=slot.argument)
        found = None
        for each in self._program.operators:
            if each is op:
                break
            if each.inputs and self._program.resolved(each.inputs[0].key) == handle.outputs[0].key:
                is_read = each.op_type == "ReadVariableOp" and self._need(each.outputs[0].key)
                found = each.outputs[0] if is_read else None if writes_variable(each.op_type) else found
        return None if found is None else replace(found, slot=slot.slot, argument=slot.argument)

    def _assigned(self, op: ProgramOperator, before: Slot | None) -> Slot | None:
        """The value that an operator assigns to a variable."""
        if is_assignment(op.op_type):
            return op.inputs[1]
        for each in self._program.operators:
            if (
                each.op_type == "ReadVariableOp"
                and f"^{op.name}" in each.node.input
                and self._need(each.outputs[0].key)
            ):
                same = self._program.resolved(each.inputs[0].key) == self._program.resolved(op.inputs[0].key)
                if same and writes_variable(op.op_type):
                    return each.outputs[0]
        if op.op_type not in _SUMS or before is None:
            return None
        name, given = f"{op.name}/opdump_value", op.inputs[1]
        node = NodeDef(op=_SUMS[op.op_type], name=name, attr={"T": AttrValue(type=given.dtype)})
        value = Slot(0, "", f"{name}:0", given.dtype)
        added = ProgramOperator(name, node.op, node, op.stack, (replace(before, slot=0), given), (value,))
        self._operators[name] = self._added[name] = added
        if self._compute(added):
            return value
        del self._operators[name], self._added[name]
        return None

    def _chosen(self, op: ProgramOperator) -> ChosenOperator:
        may_not_run = op.body > 0 or op.name in self._subgraph.unsure
        skip = self._skip_of(op) or self._reason(op, may_not_run=may_not_run)
        made = self._taken(op, skip, {} if skip else self._facts(op), may_not_run=may_not_run)
        if made.lost and self._outcomes.of[op.name] == "passed":
            return ChosenOperator(replace(made.operator, skip="not executed"))
        if made.lost and not self._asked_only:
            self.lost.update(dict.fromkeys(self._outcomes.resolved(key) for key in sorted(made.lost)))
        return made

    def _reason(self, op: ProgramOperator, *, may_not_run: bool) -> SkipReason:
        """Why an operator is skipped, by its outcome."""
        if any(slot.key in self._fetched for slot in op.outputs):
            return ""
        if self._asked_only:
            return "not observed"
        reason = self._outcomes.reason(op, may_not_run=may_not_run)
        is_read_before = reason == "not observed" and op.op_type == "ReadVariableOp" and self._read_before(op)
        return "" if is_read_before else reason

    def _facts(self, op: ProgramOperator) -> dict[str, str]:
        """How an operator ran, if not as its type."""
        if self._asked_only:
            return {}
        if self._outcomes.of[op.name] == "hidden":
            return {"source": "read before the run"}
        return self._outcomes.facts(op)

    def _final(self, key: Key) -> Key:
        """The place of a tensor's value after a run."""
        resolved = self._outcomes.resolved(key)
        if resolved.rpartition(":")[0] in self._apart or resolved in self.constants:
            return resolved
        return self._outcomes.executed_key(resolved) or resolved

    def _need(self, key: Key) -> bool:
        """Plan to have the value of a tensor after a run; returns whether that is possible."""
        resolved = self._outcomes.resolved(key)
        if resolved in self._fetched or resolved in self._subgraph.fed:
            return True
        if self._asked_only:
            return False
        name = resolved.rpartition(":")[0]
        if name in self._apart or resolved in self.constants or resolved in self._looked or resolved in self.reads:
            return True
        executed, op = self._outcomes.executed_key(resolved), self._operators.get(name)
        value = self._outcomes.constant(resolved)
        if value is not None:
            self.constants[resolved] = (ObservedValue(value),)
            return True
        if executed is not None and executed not in self._alone:
            self._looked[resolved] = None
            return True
        return op is not None and (self._read_before(op) or self._compute(op))

    def _read_before(self, op: ProgramOperator) -> bool:
        """Let a variable that an operator in an unobservable function reads be read before the run; returns whether that is possible."""
        if op.op_type != "ReadVariableOp" or self._outcomes.of[op.name] != "hidden":
            return False
        handle = self._tensors.get(self._outcomes.resolved(op.inputs[0].key))
        if handle is None:
            return False
        readers = [each for each in handle.consumers() if each.type == "ReadVariableOp"]
        if not readers or self._may_be_written(op, handle.name):
            return False
        self.reads[op.outputs[0].key] = readers[0].outputs[0]
        return True

    def _may_be_written(self, op: ProgramOperator, handle: Key) -> bool:
        """Whether the run may write a variable before an operator of a body reads it: by the called function, or before the call."""
        call = self._outcomes.call_around(op)
        inside = [each for each in self._program.operators if each.name.startswith(f"{call}/")]
        before = behind(self._executed.nodes[call], self._executed) if call in self._executed.nodes else set()
        outside = [self._operators[name] for name in before if name in self._operators]
        return any(
            writes_variable(each.op_type) and self._outcomes.resolved(each.inputs[0].key) == handle
            for each in (*inside, *outside)
        )

    def _checks_of_calls(self) -> Iterable[tuple[Key, Key]]:
        """The results of calls, and the corresponding results that are computed apart."""
        for name in {
            self._outcomes.inside[op] for op in self._apart if self._operators[op].body and op in self._outcomes.inside
        }:
            for slot in self._operators[name].outputs:
                given = self._program.behind.get(slot.key, "")
                if not slot.is_handle and given.rpartition(":")[0] in self._apart and self._need(slot.key):
                    yield self._final(slot.key), given

    def _compute(self, op: ProgramOperator) -> bool:
        """Compute an operator apart, with everything needed for that; returns whether that is possible."""
        if op.name in self._apart:
            return True
        if (
            not op.is_pure
            or SKIPS.get(op.op_type) == "control flow"
            or any(slot.is_handle for slot in (*op.inputs, *op.outputs))
        ):
            return False
        self._apart[op.name] = op
        if all(self._need(slot.key) for slot in op.inputs):
            return True
        del self._apart[op.name]
        return False

    def _access(self) -> tuple[tuple[Any, ...], tuple[Key, ...]]:
        """The tensors to fetch and to watch."""
        fetches: dict[str, Any] = {}
        watches: dict[Key, None] = {}
        for key in self._looked:
            tensor, executed = self._tensors.get(key), self._outcomes.executed_key(key) or key
            if (
                tensor is not None
                and executed == key
                and not self._capture.streams
                and self._subgraph.access(tensor) == "fetch"
            ):
                fetches[key] = tensor
            else:
                watches[executed] = None
        for attempt in range(_ATTEMPTS):
            if not fetches:
                break
            refused = self._refused(fetches, attempt)
            if not refused:
                break
            for key in refused:
                del fetches[key]
                watches[key] = None
        else:
            watches.update(dict.fromkeys(fetches))
            fetches = {}
        return tuple(fetches.values()), tuple(watches)

    def _refused(self, fetches: Collection[str], attempt: int) -> list[str]:
        """The tensors that must not be fetched because another graph would then be executed."""
        try:
            differing = self._executed.differing(self._graph(fetches))
        except tf.errors.OpError:  # fused tensors cannot be fetched
            return list(fetches)
        if not differing:
            return []
        near = set(differing)
        for _ in range(attempt + 1):
            near |= {
                key.rpartition(":")[0]
                for name in near
                if name in self._executed.nodes
                for key in self._executed.inputs(self._executed.nodes[name])
            }
            near |= {
                reader
                for key, readers in self._executed.readers.items()
                if key.rpartition(":")[0] in near
                for reader in readers
            }
        return [key for key in fetches if key.rpartition(":")[0] in near] or list(fetches)


def _of_rewriting(op: ProgramOperator) -> dict[str, str]:
    return {"source": "rewriting", "executed_as": op.node.op}


# Determines the recorded parts of a signature's operators, and emits its runs.
#
# Everything that a run needs is prepared once. A dumped run is then one call with additional fetches, and its operators are emitted in order.

AT_REST: Final = ENTERS | {"Const"}
"""The makers in loops and branches whose results do not come with each execution of a reader."""

Values = Mapping[Key, Sequence[ObservedValue]]
"""Tensor -> its values, one for each time that it was made."""


@dataclass(frozen=True, slots=True)
class ChosenOperator:
    """An operator and its recorded slots; none if `operator.skip` has a reason. `slots` are its inputs, then its outputs, by tensor."""

    operator: NamedOperator
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    may_not_run: bool = False
    """Whether it is in a branch, a loop or a function."""
    lost: frozenset[Key] = frozenset()
    """Its tensors that cannot be observed."""

    @property
    def keys(self) -> set[Key]:
        return {slot.key for slot in (*self.inputs, *self.outputs)}

    @property
    def unseen(self) -> SkipReason:
        """The skip reason if no value was seen."""
        lost = any(slot.key in self.lost for slot in self.outputs or self.inputs)
        return "not executed" if self.may_not_run and not lost else "not observed"

    def unseen_tensor(self, slot: Slot) -> SkipReason:
        """The skip reason for one of its tensors."""
        return "not observed" if slot.key in self.lost else self.unseen


class SignatureEmitter:
    """Passes the operators of each run of a signature to the recorder. `resolved` maps a tensor to the equal tensor that is observed."""

    def __init__(
        self,
        capture: Capture,
        model: Model,
        operators: Sequence[ChosenOperator],
        resolved: Callable[[Key], Key],
        program: Iterable[ProgramOperator],
    ) -> None:
        self._at_rest = {slot.key for op in program if op.op_type in AT_REST for slot in op.outputs}
        """The tensors in loops and branches that do not come with each execution of a reader."""
        self._capture = capture
        self._model = model
        operators = [self._shown(each) for each in operators]
        self._operators = operators
        self._keys = {
            slot.key: resolved(slot.key) for chosen in operators for slot in (*chosen.inputs, *chosen.outputs)
        }
        self._parts = list(self._divided())

    def _shown(self, chosen: ChosenOperator) -> ChosenOperator:
        """The operator with its name in records, and the makers of its inputs."""
        capture, model = self._capture, self._model
        operator = chosen.operator
        arguments = {
            key: capture.shown(model, value) if key == "inside" else value for key, value in operator.arguments.items()
        }
        operator = replace(operator, op_name=capture.shown(model, operator.op_name), arguments=arguments)
        inputs = tuple(replace(slot, source=capture.shown_source(model, slot.source)) for slot in chosen.inputs)
        return replace(chosen, operator=operator, inputs=inputs)

    def emit(self, values: Values, step: int, run_at: Stack) -> None:
        """Pass the operators of a run to the recorder. `values` has every available tensor.

        `run_at` are the program lines that ran it, for operators that were imported.
        """
        run = self._capture.run(self._model, step, called_at=run_at)
        hosts: dict[int, HostTensor] = {}
        for part in self._parts:
            if run.is_over:
                return
            if isinstance(part, _Prepared):
                seen = [values.get(key) for key in part.keys]
                if all(seen):
                    part.emit([each[0] for each in seen if each], run, hosts)
                    continue
            for chosen in part.operators if isinstance(part, _Prepared) else (part,):
                with run.recorder.losing(chosen.operator):
                    self._emit_one(chosen, values, run, hosts)

    def _emit_one(self, chosen: ChosenOperator, values: Values, run: GraphRun, hosts: dict[int, HostTensor]) -> None:
        executions = () if chosen.operator.skip else self._executions(chosen, values)
        for inputs, outputs in executions:
            run.emit(
                chosen.operator,
                [self._live(slot, value, hosts, chosen) for slot, value in zip(chosen.inputs, inputs, strict=True)],
                [self._live(slot, value, hosts, chosen) for slot, value in zip(chosen.outputs, outputs, strict=True)],
            )
        if not executions:
            run.skip(chosen.operator, chosen.operator.skip or chosen.unseen)

    def _live(
        self, slot: Slot, value: ObservedValue | None, hosts: dict[int, HostTensor], chosen: ChosenOperator
    ) -> LiveTensor:
        if value is None:
            return live_tensor(slot.slot, slot.argument, slot.dtype_name, slot.source, chosen.unseen_tensor(slot))
        return live_tensor(slot.slot, slot.argument, _host(value, hosts, slot.variable, self._capture), slot.source)

    def _divided(self) -> Iterator[_Prepared | ChosenOperator]:
        """Operators that run once in each run are passed on together."""
        for is_sure, group in groupby(self._operators, lambda each: bool(each.operator.skip) or not each.may_not_run):
            if is_sure:
                yield self._prepared([*group])
            else:
                yield from group

    def _prepared(self, operators: Sequence[ChosenOperator]) -> _Prepared:
        places: dict[tuple[Key, str], int] = {}

        def place(slot: Slot) -> int:
            return places.setdefault((self._keys[slot.key], slot.variable), len(places))

        def slots(found: Sequence[Slot]) -> tuple[BlockSlot, ...]:
            return tuple(BlockSlot(each.slot, each.argument, each.source, place(each)) for each in found)

        found = [BlockOperator(each.operator, slots(each.inputs), slots(each.outputs)) for each in operators]
        keys, variables = [key for key, _ in places], [variable for _, variable in places]
        return _Prepared(ArrayBlock(found), tuple(keys), tuple(variables), self._capture, tuple(operators))

    def _executions(
        self, chosen: ChosenOperator, values: Values
    ) -> Sequence[tuple[Sequence[ObservedValue | None], Sequence[ObservedValue | None]]]:
        """The executions of an operator: one, except in loops, and in branches that were not taken."""
        outputs = [values.get(self._keys[slot.key], ()) for slot in chosen.outputs]
        inputs = [values.get(self._keys[slot.key], ()) for slot in chosen.inputs]
        if not [*inputs, *outputs]:
            return [((), ())]  # nothing of it is selected
        count = max(map(len, outputs), default=0)
        if count == 0 and not chosen.may_not_run:
            count = min(1, max(map(len, inputs), default=0))
        elif inputs and all(slot.key in chosen.lost for slot in chosen.outputs):
            # An input of an operator in a branch or loop exists where the operator runs. The initial value of a loop exists once, or once more than its body runs.
            moves = [slot.key not in self._at_rest for slot in chosen.inputs]
            count = max(map(len, itertools.compress(inputs, moves) if any(moves) else inputs))
        return [
            (
                [_read(seen, number, count, outputs) for seen in inputs],
                [seen[number] if number < len(seen) else None for seen in outputs],
            )
            for number in range(count)
        ]


class _Prepared(NamedTuple):
    """Operators that are passed on together, and their tensors."""

    block: ArrayBlock
    keys: tuple[Key, ...]
    variables: tuple[str, ...]
    """The variables whose values they are; empty for others."""
    capture: Capture
    operators: tuple[ChosenOperator, ...]

    def emit(self, seen: Sequence[ObservedValue], run: GraphRun, hosts: dict[int, HostTensor]) -> None:
        """Pass them on with the values of their tensors."""

        def host(number: int) -> HostTensor:
            return _host(seen[number], hosts, self.variables[number], self.capture)

        self.block.emit(run, [each.array for each in seen], host)


def _read(
    seen: Sequence[ObservedValue], number: int, count: int, outputs: Sequence[Sequence[ObservedValue]]
) -> ObservedValue | None:
    """The value that an execution read: its own if there is one for each execution, otherwise the last one before its output."""
    if len(seen) <= 1:
        return seen[0] if seen else None
    if len(seen) in (count, count + 1):  # a merge at the head of a loop runs once more than its body
        return seen[number]
    moment = next((each[number].moment for each in outputs if number < len(each)), None)
    if moment is None:
        return seen[min(number, len(seen) - 1)]
    before = [each for each in seen if each.moment <= moment]
    return before[-1] if before else seen[0]


def _host(value: ObservedValue, hosts: dict[int, HostTensor], variable: str, capture: Capture) -> HostTensor:
    """The same object for all readers of the value, so that it is examined once; another one for the value of a variable, which has a place."""
    if variable:
        held = HostTensor.of_array(value.array, stays=value.stays)
        held.memory = capture.variables.memory(variable, held.shape)
        return held
    host = hosts.get(id(value))
    if host is None:
        host = hosts[id(value)] = HostTensor.of_array(value.array, stays=value.stays)
    return host
