"""Works out what one fetch set of a session computes and what is taken of it: a signature. Emits its runs.

All that a run needs is worked out once; then a dumped run is one call with more fetches, and its operators are emitted in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorflow.python.framework import op_def_registry

from opdump.adapters.graph_runtime import GraphRun, NamedOperator, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.tensorflow.attributes import arguments_of
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.effects import definitions_of
from opdump.adapters.tensorflow.functions.dataset_operators import datasets_read, gives_handles, hidden_functions
from opdump.adapters.tensorflow.functions.library import callees_of
from opdump.adapters.tensorflow.operator_kinds import PASSES_ON, ModelSlots
from opdump.adapters.tensorflow.sessions.subgraph import Access, GraphOperator, Slot, Subgraph, read_variable
from opdump.adapters.tensorflow.sessions.watches import ObservedValue
from opdump.adapters.tensorflow.stacks import Stack, stack_of_node
from opdump.adapters.tensorflow.xla import LAUNCH, is_compiled, note_of_call
from opdump.recorder import LiveTensor
from opdump.records import IO, SkipReason

_FORWARDS = frozenset({"Identity", "RefIdentity", "StopGradient", "PreventGradient", "Enter", "RefEnter"})
"""What the runtime may remove before a run; it gives what it reads."""

_AT_REST = frozenset({"Const", "Enter", "RefEnter"})
"""Of loops and branches, what does not come with each execution of who reads it."""

Values = Mapping[str, Sequence[ObservedValue]]
"""Name of a tensor -> what it was, once for each time that it was made."""


@dataclass(frozen=True, slots=True)
class ChosenOperator:
    """An operator and what is taken of it: nothing where `skip` says why."""

    op: GraphOperator
    operator: NamedOperator
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()
    may_not_run: bool = False
    """Whether it stands in a branch or a loop."""
    lost: frozenset[str] = frozenset()
    """Those of its tensors that nobody can look at."""

    @property
    def skip(self) -> SkipReason:
        return self.operator.skip

    @property
    def unseen(self) -> SkipReason:
        """Why there is nothing of it where nothing was seen."""
        lost = any(slot.tensor.name in self.lost for slot in self.outputs or self.inputs)
        return "not executed" if self.may_not_run and not lost else "not observed"

    def forwarded(self, slot: Slot, values: Values) -> Sequence[ObservedValue]:
        """What one of its outputs is that nobody looked at, where the operator gives what it reads."""
        return _values_of(slot.tensor, values) if slot.tensor.name in self.lost or not self.may_not_run else ()

    def unseen_tensor(self, slot: Slot) -> SkipReason:
        """Why there is nothing of one of its tensors."""
        return "not observed" if slot.tensor.name in self.lost else self.unseen


@dataclass(frozen=True, slots=True)
class DumpedSignature:
    """What is taken of a signature: its operators, which tensors are fetched for that, and which are watched."""

    model: Model
    operators: tuple[ChosenOperator, ...]
    fetches: tuple[Any, ...]
    watches: tuple[Any, ...]
    bodies: tuple[NamedOperator, ...] = ()
    """The operators of functions that the graph runs: nothing of them is seen from a session."""

    def without(self, names: Collection[str], subgraph: Subgraph) -> DumpedSignature:
        """The same without these operators."""
        operators = tuple(chosen for chosen in self.operators if chosen.op.name not in names)
        return DumpedSignature(self.model, operators, *_tensors_of(operators, subgraph), self.bodies)

    def without_looking(self) -> DumpedSignature:
        """The same where nothing is fetched or watched beside what the program asks for."""
        return replace(self, fetches=(), watches=())

    def without_removed(self, names: Collection[str], subgraph: Subgraph) -> DumpedSignature:
        """The same where these do not run: they are listed, and nothing is taken of them."""
        operators = tuple(
            replace(chosen, operator=replace(chosen.operator, skip="not executed"), inputs=(), outputs=())
            if chosen.op.name in names and not chosen.skip
            else chosen
            for chosen in self.operators
        )
        return DumpedSignature(self.model, operators, *_tensors_of(operators, subgraph), self.bodies)

    def unseen(self, tensors: Iterable[str], values: Values) -> list[str]:
        """Those of these tensors that a run has nothing of."""
        forwarded = {
            slot.tensor.name for chosen in self.operators for slot in chosen.outputs if chosen.forwarded(slot, values)
        }
        return [name for name in tensors if name not in values and name not in forwarded]

    def losing(self, tensors: Collection[str]) -> DumpedSignature:
        """The same where nobody can look at these tensors."""
        operators = tuple(
            replace(
                chosen,
                lost=frozenset(
                    slot.tensor.name for slot in (*chosen.inputs, *chosen.outputs) if slot.tensor.name in tensors
                ),
            )
            for chosen in self.operators
        )
        return replace(self, operators=operators)


def dumped_signature(capture: Capture, model: Model, subgraph: Subgraph) -> DumpedSignature:
    """What the plan takes of a signature."""
    selection = capture.selection(capture.filter_of(model), [op.name for op in subgraph.operators])
    readers: dict[str, list[str]] = {}
    for op in subgraph.operators:
        for slot in op.inputs:
            readers.setdefault(slot.tensor.op.name, []).append(op.name)
    operators = (*subgraph.operators, *subgraph.given)
    chosen = tuple(_chosen(op, capture, selection, subgraph, readers.get(op.name, ())) for op in operators)
    bodies = tuple(_bodies(subgraph, selection, capture))
    capture.recorder.matched_kernels |= selection.matched_kernels
    capture.operators_met = (
        (capture.operators_met or set()) | {op.name for op in operators} | {body.op_name for body in bodies}
    )
    return DumpedSignature(model, chosen, *_tensors_of(chosen, subgraph), bodies)


def _bodies(subgraph: Subgraph, selection: ModelSlots, capture: Capture) -> Iterator[NamedOperator]:
    """The operators of the functions that operators and data sets run, and of those that these run, by their path."""
    operations = [op.operation for op in subgraph.operators]
    named = {operation.name: operation for operation in operations}
    operations += [each for each in datasets_read(operations) if each.name not in named]
    waiting: list[tuple[str, str, tuple[str, ...], Stack]] = [
        (f"{operation.name}/{path}", name, (), capture.stacks.of_operation(operation))
        for operation in operations
        for path, name in _run_by(operation.node_def)
    ]
    if not waiting:
        return
    definitions = definitions_of(subgraph.operators[0].operation.graph)
    while waiting:
        path, name, chain, caller = waiting.pop(0)
        if name not in definitions or name in chain:
            continue
        stacks = capture.stacks.of_function(name)
        for node in definitions[name].node_def:
            shown = f"{path}{node.name}"
            skip = selection.skip_of(node.op, shown) or (
                "handle" if gives_handles(node, definitions.__getitem__) else "not observed"
            )
            stack = stack_of_node(node.name, stacks, caller)
            yield NamedOperator(node.op, shown, 0, arguments_of(node), stack, skip=skip)
            waiting += [(f"{shown}/{below}", callee, (*chain, name), stack) for below, callee in _run_by(node)]


def _run_by(node: Any) -> Iterator[tuple[str, str]]:
    """What stands in the path of a function's operators, and the function, for each that a node runs and XLA does not compile."""
    if is_compiled(node):
        return
    if op_def_registry.get(node.op) is None:
        yield "", node.op
    for callee in callees_of(node):
        yield f"{callee.label}/" if callee.label else "", callee.function
    yield from hidden_functions(node)


def _tensors_of(operators: Iterable[ChosenOperator], subgraph: Subgraph) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What is to be fetched and what is to be watched for these operators."""
    found: dict[Access, dict[str, Any]] = {"fetch": {}, "watch": {}, "handle": {}}
    for chosen in operators:
        for slot in (*chosen.inputs, *chosen.outputs):
            if subgraph.access(slot.tensor) != "watch" or read_variable(slot.tensor) is None:
                found[subgraph.access(slot.tensor)][slot.tensor.name] = slot.tensor
            if subgraph.access(slot.tensor) == "watch":
                for tensor in _behind(slot.tensor):
                    if read_variable(tensor) is not None:
                        continue
                    found[subgraph.access(tensor)][tensor.name] = tensor
    return tuple(found["fetch"].values()), tuple(found["watch"].values())


def _chosen(
    op: GraphOperator, capture: Capture, selection: ModelSlots, subgraph: Subgraph, readers: Sequence[str]
) -> ChosenOperator:
    skip = selection.skip_of(op.op_type, op.name, readers)
    # A placeholder that is not skipped brings data to an operator that was named.
    is_data = not skip and op.op_type in ("Placeholder", "PlaceholderV2")
    if skip in ("", "not selected") and op.op_type == LAUNCH:
        capture.note(note_of_call(op.name, op.operation.node_def))
    if not skip and not is_data and op.outputs and all(slot.tensor.name in subgraph.fed for slot in op.outputs):
        skip = "fed"
    arguments, stack = arguments_of(op.operation.node_def), capture.stacks.of_operation(op.operation)

    def operator(skip: SkipReason = "") -> NamedOperator:
        return NamedOperator(op.op_type, op.name, op.place, arguments, stack, skip=skip)

    if skip:
        return ChosenOperator(op, operator(skip))

    def taken(io: IO, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        excluded = selection.excluded(op.name, op.op_type, io)
        return tuple(slot for slot in slots if slot.slot not in excluded and subgraph.access(slot.tensor) != "handle")

    inputs = taken("input", op.inputs) if selection.wants_inputs else ()
    outputs = taken("output", op.outputs) if selection.wants_outputs else ()
    if not (inputs or outputs) and op.outputs and all(subgraph.access(slot.tensor) == "handle" for slot in op.outputs):
        return ChosenOperator(op, operator("handle"))
    return ChosenOperator(op, operator(), inputs, outputs, op.name in subgraph.unsure)


def _behind(tensor: Any) -> Iterator[Any]:
    """What a tensor is the same as, where the runtime may have removed its operator."""
    while tensor.op.type in _FORWARDS:
        tensor = tensor.op.inputs[0]
        yield tensor


def without_copies(tensors: Sequence[Any]) -> tuple[Any, ...]:
    """The tensors without those that are the same as another of them: who holds a tensor twice is given two copies."""
    # What comes out of control flow may turn out to be nothing to be fetched.
    names = {tensor.name for tensor in tensors if tensor.op.type not in PASSES_ON or tensor.op.type in _FORWARDS}
    return tuple(tensor for tensor in tensors if not any(other.name in names for other in _behind(tensor)))


class SignatureEmitter:
    """Emits the runs of a signature."""

    def __init__(self, capture: Capture, signature: DumpedSignature) -> None:
        self._capture = capture
        self.signature = signature
        self._has_emitted = False
        self._bodies = tuple(
            replace(body, task_id=place) for place, body in enumerate(signature.bodies, len(signature.operators))
        )
        places = {chosen.op.name: place for place, chosen in enumerate(signature.operators)}
        self._needed: list[tuple[int, ...]] = [
            tuple(
                places[slot.tensor.op.name]
                for slot in chosen.op.inputs
                if slot.tensor.op.name in places and chosen.op.op_type not in ("Merge", "RefMerge")
            )
            for chosen in signature.operators
        ]
        """Of each operator, those that ran if it did."""

    def emit(self, values: Values, step: int, run_at: Stack) -> None:
        """Hands the operators of a run to the recorder. `values` has each tensor that could be had.

        `run_at` are the lines that ran it, which stand for those of operators that were imported.
        """
        run = self._capture.run(self.signature.model, step, called_at=run_at)
        hosts: dict[int, HostTensor] = {}
        known: Counter[SkipReason] = Counter()
        executions = [[] if chosen.skip else _executions(chosen, values) for chosen in self.signature.operators]
        ran = self._ran(executions)
        for place, (chosen, each) in enumerate(zip(self.signature.operators, executions, strict=True)):
            for execution in each:
                emit_execution(run, chosen, execution.inputs, execution.outputs, hosts)
            if chosen.skip and self._has_emitted:
                known[chosen.skip] += 1
            elif not each:
                run.skip(chosen.operator, chosen.skip or ("not observed" if place in ran else chosen.unseen))
        for body in self._bodies:
            if self._has_emitted:
                known[body.skip] += 1
            else:
                run.skip(body)
        self._has_emitted = True
        run.count_skipped(known)

    def _ran(self, executions: Sequence[Sequence[_Execution]]) -> set[int]:
        """The places of the operators that must have run: they were seen, or one that reads them was."""
        waiting = [place for place, runs in enumerate(executions) if runs]
        found: set[int] = set()
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += self._needed[place]
        return found


def emit_execution(
    run: GraphRun,
    chosen: ChosenOperator,
    inputs: Sequence[ObservedValue | None],
    outputs: Sequence[ObservedValue | None],
    hosts: dict[int, HostTensor],
) -> None:
    """Hands one execution to the recorder. `hosts` has the tensors that were handed over before, by the identity of their `ObservedValue`."""
    run.emit(
        chosen.operator,
        [_live(slot, value, hosts, chosen) for slot, value in zip(chosen.inputs, inputs, strict=True)],
        [_live(slot, value, hosts, chosen) for slot, value in zip(chosen.outputs, outputs, strict=True)],
    )


@dataclass(frozen=True, slots=True)
class _Execution:
    inputs: Sequence[ObservedValue | None]
    outputs: Sequence[ObservedValue | None]


def _executions(chosen: ChosenOperator, values: Values) -> list[_Execution]:
    """The executions of an operator: one, but for loops, and for branches that were not taken."""
    outputs = [_given(slot.tensor, values) or chosen.forwarded(slot, values) for slot in chosen.outputs]
    inputs = [_values_of(slot.tensor, values) for slot in chosen.inputs]
    if not (inputs or outputs):
        return [_Execution((), ())]  # the plan takes nothing of it
    count = max(map(len, outputs), default=0)
    if count == 0 and not chosen.may_not_run:
        count = min(1, max(map(len, inputs), default=0))
    elif inputs and all(slot.tensor.name in chosen.lost for slot in chosen.outputs):
        # What an operator of a branch or loop reads is there where it runs. What enters a loop is there once, or once more than its body runs.
        pairs = list(zip(chosen.inputs, inputs, strict=True))
        moving = max((len(seen) for slot, seen in pairs if slot.tensor.op.type not in _AT_REST), default=0)
        count = moving or max(map(len, inputs))
    return [
        _Execution(
            [_read(seen, number, count, outputs) for seen in inputs],
            [seen[number] if number < len(seen) else None for seen in outputs],
        )
        for number in range(count)
    ]


def _given(tensor: Any, values: Values) -> Sequence[ObservedValue]:
    found = values.get(tensor.name)
    if found is None and (variable := read_variable(tensor)) is not None:
        found = values.get(variable.name)
    return () if found is None else found


def _values_of(tensor: Any, values: Values) -> Sequence[ObservedValue]:
    found = values.get(tensor.name)
    if found is not None:
        return found
    for other in _behind(tensor):
        found = values.get(other.name)
        if found is not None:
            return found
    return ()


def _read(
    seen: Sequence[ObservedValue], number: int, count: int, outputs: Sequence[Sequence[ObservedValue]]
) -> ObservedValue | None:
    """The value that an execution read: its own where each has one, else the last that was there when it gave its output."""
    if len(seen) <= 1:
        return seen[0] if seen else None
    if len(seen) in (count, count + 1):  # a merge at the head of a loop runs once more than its body
        return seen[number]
    moment = next((each[number].moment for each in outputs if number < len(each)), None)
    if moment is None:
        return seen[min(number, len(seen) - 1)]
    before = [each for each in seen if each.moment <= moment]
    return before[-1] if before else seen[0]


def _live(slot: Slot, value: ObservedValue | None, hosts: dict[int, HostTensor], chosen: ChosenOperator) -> LiveTensor:
    if value is None:
        return live_tensor(slot.slot, slot.argument, dtype_of(slot), slot.source, chosen.unseen_tensor(slot))
    host = hosts.get(id(value))
    if host is None:
        host = hosts[id(value)] = HostTensor.of_array(value.array, stays=value.stays)
    return live_tensor(slot.slot, slot.argument, host, slot.source)


def dtype_of(slot: Slot) -> str:
    """The type of the tensor in a slot."""
    return str(slot.tensor.dtype.base_dtype.name)
