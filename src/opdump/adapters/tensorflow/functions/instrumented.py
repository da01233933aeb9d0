"""Makes the instrumented copy of a traced function: the graph that the runtime executes for it, with probes that pass on inputs and outputs.

The runtime optimises a function before it runs it: operators are fused, rewritten, merged or precomputed, which changes last bits. The copy
is therefore made of the optimised graph, and runs unchanged: the same nodes with their actual values, computed once. Operators without a node
are computed apart, by an additional node. If the runtime keeps a call as a call (`_noinline`, LSTM and GRU of Keras 2), it optimises the
called function separately, so that gets a copy, too. Each copy is compared with its original before it first runs.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from opdump.adapters.graph_runtime import (
    ArrayBlock,
    BlockOperator,
    BlockSlot,
    GraphRun,
    NamedOperator,
    OperatorSelection,
    live_tensor,
)
from opdump.adapters.host import HostTensor, host_tensor
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.functions.optimised import (
    CALL_ATTRIBUTES,
    MINE,
    Edits,
    PlacedGraph,
    constant_value,
    definition_of,
    function_graphs,
    order_regions,
    readers_of,
    standing_for,
    tensor_of,
    with_argument,
    with_fixed,
    without_rewriting,
)
from opdump.adapters.tensorflow.graphs.library import (
    CALLS,
    LAUNCH,
    Definition,
    ExecutedGraph,
    Key,
    Library,
    Slot,
    are_handles,
    device_of,
    functions_of,
    hidden_callees,
    in_order,
    is_compiled,
    is_plumbing,
    note_of_call,
)
from opdump.adapters.tensorflow.graphs.operator_kinds import (
    PASSES_ON,
    READS,
    SKIPS,
    ModelSlots,
    is_assignment,
    is_of_gradient,
    left_alone,
    phases_of,
    writes_variable,
)
from opdump.adapters.tensorflow.graphs.outcomes import Outcomes, Region, Tensor, rewritten_operators
from opdump.adapters.tensorflow.graphs.program import Program, ProgramOperator, function_program, shown_names
from opdump.adapters.tensorflow.graphs.trials import FunctionShapes, ShapeOf
from opdump.recorder import LiveTensor
from opdump.records import IO, Phase, SkipReason

# Emits operators from within the instrumented copy of a function: a probe is an operator that passes tensors of others to the recorder.

_HANDLES: Final = (tf.resource, tf.variant)
_NOTHING: Final[list[Any]] = []
"""The result of a probe in the graph."""


@dataclass(slots=True)
class DumpedCall:
    """One dumped call of a function. Errors in probes are raised at the end of the call, so that the graph finishes."""

    capture: Capture
    run: GraphRun
    inputs: Sequence[Any] = ()
    """The arguments of the call."""
    sources: tuple[str, ...] = ()
    """The source of each argument: its maker in the eager program, or the variable; empty for others."""
    bodies: Counter[int] = field(default_factory=Counter)
    """The number of runs of each body, by its number."""
    error: Exception | None = None


@dataclass(slots=True)
class CurrentCall:
    """The call for which the probes of one function emit; None if it is not dumped."""

    call: DumpedCall | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by a dumped call, so that calls of one function are dumped one after the other."""


class Probe:
    """Called with the values of the inputs and outputs of some operators after they have run.

    Slots refer to the arrays by position, followed by `texts`; `bodies` are the numbers of the bodies that ran when it is called. `variables`
    are the positions of the values of variables, each with the number of the argument that is the handle.
    """

    def __init__(
        self,
        current: CurrentCall,
        operators: Sequence[BlockOperator],
        texts: Sequence[str],
        bodies: Sequence[int],
        variables: Mapping[int, int],
    ) -> None:
        self._current = current
        self._operators = operators
        self._texts = texts
        self._bodies = bodies
        self._variables = variables
        self._blocks: dict[tuple[object, ...], ArrayBlock] = {}
        """By the sources of the arguments, which usually are the same in each call."""

    def __call__(self, *arrays: Any) -> list[Any]:
        call = self._current.call
        if call is None or call.error is not None or call.capture.is_over:
            return _NOTHING
        try:
            with call.capture.lock:
                call.bodies.update(self._bodies)
                if self._operators:
                    # For one element the runtime passes a numpy scalar, whose memory is only valid while it is used.
                    held = [*map(np.asarray, arrays)]
                    self._block(call).emit(call.run, held, lambda number: self._host(call, number, held[number]))
        except Exception as error:  # noqa: BLE001  any error is raised when the call has ended
            call.error = error
        return _NOTHING

    def _host(self, call: DumpedCall, number: int, array: Any) -> HostTensor | str:
        tensor = host_tensor(array)
        if number in self._variables and isinstance(tensor, HostTensor):
            handle = call.inputs[self._variables[number]]._id
            tensor.memory = call.capture.variables.memory(handle, tensor.shape)
        return tensor

    def _block(self, call: DumpedCall) -> ArrayBlock:
        """The operators, with the sources that the arguments have in this call."""
        read = (call.inputs[number]._id for number in self._variables.values())
        key = (call.sources, *read)
        if key not in self._blocks:
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
            operators = [
                each._replace(inputs=[slot._replace(source=_given(slot.source, call.sources)) for slot in each.inputs])
                for each in self._operators
            ]
            self._blocks[key] = ArrayBlock(operators, self._texts)
        return self._blocks[key]


_BLOCKS: Final = 16
_ARGUMENT: Final = "\0"
"""Begins the source of a tensor that is an argument of the function; its number follows."""


def _given(source: str, sources: Sequence[str]) -> str:
    """The source of a tensor in a call whose arguments have these sources."""
    if not source.startswith(_ARGUMENT):
        return source
    number = int(source.removeprefix(_ARGUMENT))
    return sources[number] if number < len(sources) else ""


def has_data(tensors: Iterable[Any]) -> bool:
    """Whether any of these tensors of the eager program is not a handle."""
    return any(tensor.dtype not in _HANDLES for tensor in tensors)


def live_tensors(
    selection: OperatorSelection,
    operator: NamedOperator,
    io: IO,
    tensors: Sequence[Any],
    arguments: Sequence[Any],
    source_of: Callable[[Any], str] = lambda _: "",
) -> list[LiveTensor]:
    """The selected tensors of the eager program for the recorder, without handles; `arguments` are the definitions of the slots."""
    lives: list[LiveTensor] = []
    if not selection.wants(io):
        return lives
    excluded = selection.excluded(operator.op_name, operator.op_type, io)
    names = list(_names_of(arguments, operator.arguments))
    has_names = len(names) == len(tensors)
    for slot, tensor in enumerate(tensors):
        if tensor.dtype in _HANDLES or slot in excluded:
            continue
        # Without a copy if the runtime's memory is on the host: it is read before the program continues.
        value = "string" if tensor.dtype == tf.string else host_tensor(tensor._numpy())
        lives.append(live_tensor(slot, names[slot] if has_names else "", value, source_of(tensor)))
    return lives


def _names_of(arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Iterator[str]:
    """The names of slots, from their definitions and the attributes of an operator; those of a list are numbered."""
    for argument in arguments:
        length = attributes.get(argument.number_attr or argument.type_list_attr)
        if length is None:
            yield argument.name
        else:
            yield from (
                f"{argument.name}_{number}" for number in range(length if isinstance(length, int) else len(length))
            )


# Adds probes to the graph that is executed for a function, which observe its operators; and nodes that compute operators apart.
#
# Operators that run equally often are passed on together, as a block of some tens of tensors.

_STRING: Final = tf.string.as_datatype_enum
_TENSORS: Final = 64
"""Maximum number of tensors of a probe."""
_FALLIBLE: Final = re.compile(
    r"Assert|CheckNumerics|EnsureShape|PyFunc|EagerPyFunc|Gather|ResourceGather|Scatter|TensorScatter|SparseSoftmax|LookupTable|Print"
)
"""These may fail because of their inputs, or run Python of the program: preceding operators are passed on first."""


@dataclass(frozen=True, slots=True)
class BodyOperators:
    """The skipped and the recorded operators of a function in the copy."""

    skipped: tuple[NamedOperator, ...]
    emitted: tuple[NamedOperator, ...]
    reasons: Counter[SkipReason]
    """The skipped operators if it runs."""
    not_executed: Counter[SkipReason]
    """All operators if it does not run."""
    counted: int
    """The number of the body that runs equally often; 0 runs once in each call."""

    @classmethod
    def of(cls, operators: Sequence[NamedOperator], counted: int) -> BodyOperators:
        skipped = tuple(operator for operator in operators if operator.skip)
        emitted = tuple(operator for operator in operators if not operator.skip)
        reasons: Counter[SkipReason] = Counter(operator.skip for operator in skipped)
        not_executed: Counter[SkipReason] = Counter()
        not_executed["not executed"] = len(operators)
        return cls(skipped, emitted, reasons, not_executed, counted)


@dataclass(frozen=True, slots=True)
class Naming:
    """Operators of a program -> their names in records; `sources` are those of the arguments of a called function."""

    names: Mapping[str, str]
    sources: Mapping[Key, str] = field(default_factory=dict)

    program: Program | None = None

    def source(self, slot: Slot) -> str:
        """The maker of the input in a slot; empty if unknown."""
        key = slot.key if self.program is None else self.program.resolved(slot.key)
        maker, _, number = key.rpartition(":")
        if maker in self.names:
            return f"{self.names[maker]}:{number}"
        return self.sources.get(key) or slot.source

    def within(self, call: ProgramOperator, program: Program, arguments: Sequence[str]) -> Naming:
        """For the program of a function that an operator of this one calls."""
        path = self.names[call.name]
        names = {op.name: self.names.get(f"{call.name}/{op.name}", f"{path}/{op.name}") for op in program.operators}
        given = zip(arguments, call.inputs, strict=True) if len(arguments) == len(call.inputs) else ()
        sources = {f"{argument}:0": self.source(slot) for argument, slot in given}
        return Naming(names, sources, program)


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call that the runtime keeps, and optimises with `config`; `devices` are those of its inputs.

    The runtime may use a function of its own for it, without the arguments in `constants` (by number) and with only these `outputs`.
    """

    node: str
    operator: ProgramOperator
    devices: tuple[str, ...]
    constants: Mapping[int, npt.NDArray[Any]]
    outputs: Sequence[int]
    config: bytes


@dataclass(slots=True)
class _SeenSlot:
    """The recorded part of a slot; `tensor` may be the type of a value that is not an array."""

    slot: int
    argument: str
    source: str
    tensor: Tensor | str
    variable: int = -1
    """The number of the argument that is the handle, for the value of a variable."""


@dataclass(slots=True)
class _Seen:
    """A recorded operator and its node. `stands_in` is its result, if it has no node and that node has the same result."""

    operator: NamedOperator
    node: str
    stands_in: Tensor | None
    inputs: list[_SeenSlot]
    outputs: list[_SeenSlot]
    accesses: list[str]
    """Operators that read or write the same variables before."""

    def predecessors(self) -> Iterator[str]:
        """The names of operators that are recorded before this one."""
        yield from (slot.source.rpartition(":")[0] for slot in self.inputs)
        yield from self.accesses

    def tensors(self) -> Iterator[Tensor]:
        for slot in (*self.inputs, *self.outputs):
            if not isinstance(slot.tensor, str):
                yield slot.tensor


@dataclass(slots=True)
class _Group:
    """Operators that are passed on together."""

    region: Region
    stage: int
    device: str
    seen: list[_Seen] = field(default_factory=list)
    tensors: dict[tuple[Tensor, int], int] = field(default_factory=dict)
    """The tensors, those of variables with the number of the handle."""
    bodies: list[int] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    """The nodes after which the probe runs."""


class Observed:
    """An executed graph with probes for the operators of the program."""

    def __init__(
        self,
        capture: Capture,
        selection: ModelSlots,
        model: Model,
        program: Program,
        executed: ExecutedGraph,
        library: Library,
        current: CurrentCall,
        task_ids: Iterator[int],
        phases: Mapping[str, Phase],
        shape_of: ShapeOf,
    ) -> None:
        self.probes: list[Probe] = []
        self.graph = PlacedGraph(executed, library)
        self._capture = capture
        self._selection = selection
        self._model = model
        self._program = program
        self._executed = executed
        self._library = library
        self._current = current
        arguments = [f"{name}:0" for name, node in executed.nodes.items() if node.op == "_Arg"]
        self._outcomes = Outcomes(program, executed, fed=arguments, shape_of=shape_of)
        self._named = {op.name: op for op in program.operators}
        self._naming = Naming({})
        self._first = 0
        self._readers = program.readers()
        self._edits = Edits(self.graph)
        self._task_ids = task_ids
        self._operators: dict[int, list[NamedOperator]] = {body.number: [] for body in program.bodies}
        self._seen: list[_Seen] = []
        self._apart: dict[tuple[str, str], str | None] = {}
        self._constants: dict[Key, bool] = {}
        """Tensor -> whether it depends only on constants."""
        self._counted: dict[int, int] = {}
        self._written: dict[int, list[str]] = {}
        """The number of the handle of a variable -> the added node that reads it after the last operator that wrote it."""
        self._accesses: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Variable -> the operator that wrote it last, and those that have read it since."""
        self._phases = phases

    def kept_calls(self) -> Iterator[KeptCall]:
        """The calls of functions that the runtime keeps as calls."""
        for name, operator in {node: name for name, node in self._outcomes.nodes.items()}.items():
            node, op = self._executed.nodes[name], self._named[operator]
            if node.op in CALLS and not is_compiled(node):
                makers = [self._executed.nodes[key.rpartition(":")[0]] for key in self._executed.inputs(node)]
                devices = tuple(maker.device for maker in makers)
                constants, outputs = self._constants_of_call(op), self._outcomes.given_outputs(op)
                if constants is not None and (outputs or not op.outputs):
                    yield KeptCall(name, op, devices, constants, outputs, node.attr["config_proto"].s)

    def _constants_of_call(self, op: ProgramOperator) -> dict[int, npt.NDArray[Any]] | None:
        """The arguments of a call that the runtime replaced by constants in the function; None if they are unknown."""
        slots = self._outcomes.constant_arguments(op)
        if slots is None:
            return None
        found: dict[int, npt.NDArray[Any]] = {}
        body = self._program.bodies[op.body]
        for slot in slots:
            key = self._outcomes.resolved(op.inputs[slot].key)
            value = self._outcomes.constant(key)
            if value is None and key.startswith(body.path):
                value = constant_value(self._library(body.function), key.removeprefix(body.path))
            if value is None:
                return None
            found[slot] = value
        return found

    def build(self, naming: Naming, first: int, calls: Mapping[str, str]) -> None:
        """Add everything to the graph. `first` is the number of its first body, `calls` the kept calls with the copies that run instead."""
        graph, self._naming, self._first = self.graph, naming, first
        for op in self._program.operators:
            call = self._outcomes.call_around(op) if calls and op.body else ""
            if self._outcomes.nodes.get(call) not in calls:
                self._add_operator(op)
        for op in rewritten_operators(self._program, self._executed, self._outcomes.nodes, self._library):
            self._add_rewritten(op)
        fallible = {name for name, node in graph.nodes.items() if _FALLIBLE.match(node.op) or name in calls}
        preferred = [name for each in self._seen for name in (*(name for name, _ in each.tensors()), each.node)]
        order = graph.place(preferred, fallible)
        place = {name: number for number, name in enumerate(order)}
        self._seen.sort(key=lambda each: max(place[each.node], *(place[name] for name, _ in each.tensors()), 0))
        self._seen = _behind_predecessors(self._seen)
        groups = self._grouped()
        self._count_bodies(groups, place)
        self._add_probes(groups, self._copies_of_what_is_left_alone(groups), fallible)
        for name, copy in calls.items():
            self._edits.run_instead(name, copy)

    @property
    def programs(self) -> Mapping[str, str]:
        """Added nodes that recompute an operator -> the program's names."""
        return self._edits.programs

    def bodies(self) -> Iterator[BodyOperators]:
        for body in self._program.bodies:
            yield BodyOperators.of(self._operators[body.number], self._counted[body.number])

    def _add_operator(self, op: ProgramOperator) -> None:
        name, skip = self._naming.names[op.name], self._skip_of(op)
        facts = {} if skip else self._outcomes.facts(op)
        if "inside" in facts:
            facts["inside"] = self._shown(self._naming.names[facts["inside"]])
        phase = self._phases.get(op.name, "forward")
        operator = op.named(next(self._task_ids), name=self._shown(name), facts=facts, phase=phase)
        home = self._outcomes.nodes.get(op.name, "") if self._outcomes.of[op.name] == "ran" else ""
        if not skip and not self._see(operator, op, home):
            # Missing are nodes that only pass on an argument without other readers, and lists of values that a loop does not change.
            is_gone = op.op_type in PASSES_ON or any(slot.is_handle for slot in op.inputs)
            skip = "not executed" if is_gone else "not observed"
        if skip in ("", "not selected") and op.op_type == LAUNCH:
            self._capture.note(note_of_call(name, op.node))
        self._operators[op.body].append(replace(operator, skip=skip) if skip else operator)

    def _add_rewritten(self, op: ProgramOperator) -> None:
        """An operator that the runtime inserted."""
        if not self._selection.skip_of(op.op_type, op.name, shown=self._shown(op.name)) and not all(
            slot.is_handle for slot in op.outputs
        ):
            facts = {"source": "rewriting", "executed_as": op.node.op, **device_of(op.node.device)}
            phase: Phase = "backward" if is_of_gradient(op.name) else "forward"
            operator = op.named(next(self._task_ids), name=self._shown(op.name), facts=facts, phase=phase)
            self._see(operator, op, op.node.name)

    def _shown(self, name: str) -> str:
        return self._capture.shown(self._model, name)

    def _skip_of(self, op: ProgramOperator) -> SkipReason:
        if not op.is_needed:
            return "not executed"
        name = self._naming.names[op.name]
        readers = [self._naming.names[each] for each in self._readers.get(op.name, ())]
        reason = self._selection.skip_of(op.op_type, name, readers, shown=self._shown(name))
        reason = reason or self._outcomes.reason(op, may_not_run=False)
        if reason:
            return reason
        is_gone = self._outcomes.of[op.name] != "ran" and not self._program.bodies[op.body].is_sure
        if is_gone and all(self._is_constant(self._outcomes.resolved(slot.key)) for slot in op.outputs):
            return "constant"
        if not op.is_known:
            return "not observed"
        reads = self._selection.wants_inputs and not all(slot.is_handle for slot in op.inputs)
        reads = reads and self._outcomes.of[op.name] == "ran"
        return "handle" if are_handles(op.outputs) and not reads else ""

    def _see(self, operator: NamedOperator, op: ProgramOperator, home: str) -> bool:
        """Record an operator: `home` is its node, if it has one. Returns whether its results are available."""
        node, near, stands_in = home, home, None
        if not home:
            stands_in, near = self._stand_in(op)
            if stands_in is None:
                return False
            node = stands_in[0]
        own = self._executed.inputs(self._executed.nodes[home]) if home else ()
        reads = [tensor_of(key) for key in own] if len(own) == len(op.inputs) else [None] * len(op.inputs)
        # If an input of the program's operator is missing, the node has another input instead.
        inputs = self._taken(op, "input", lambda slot: self._tensor(slot.key, node) or reads[slot.slot])
        outputs = self._taken(op, "output", lambda slot: self._tensor(slot.key, near))
        read, written = self._variables(op, home, outputs)
        inputs, outputs = sorted([*read, *inputs], key=attrgetter("slot")), [*outputs, *written]
        self._seen.append(
            _Seen(operator, node, stands_in, inputs, outputs, self._accesses_before(op, operator.op_name))
        )
        return True

    def _variables(
        self, op: ProgramOperator, home: str, outputs: Sequence[_SeenSlot]
    ) -> tuple[list[_SeenSlot], list[_SeenSlot]]:
        """The values of the variables that an operator reads, in the slots of their handles, and of those that it writes.

        Only in nodes that run as often as the whole: a node that is added to a branch or loop would have to run in the same iterations.
        """
        read: list[_SeenSlot] = []
        written: list[_SeenSlot] = []
        if not (op.op_type in READS or writes_variable(op.op_type)) or not self._capture.records_variables:
            return read, written
        is_sure = bool(home) and self._program.bodies[op.body].is_sure
        for slot in op.inputs:
            source = self._naming.source(slot)
            if not slot.is_handle or not source.startswith(_ARGUMENT):
                continue
            number = int(source.removeprefix(_ARGUMENT))
            before: Tensor | None = None
            after: Tensor | None = None
            if op.op_type == "ReadVariableOp":
                before = self._tensor(op.outputs[0].key, home)
            elif is_sure:
                before, after = self._around(op, home, slot, number)
            if before is not None:
                read.append(_SeenSlot(slot.slot, slot.argument, source, before, number))
            if after is not None:
                written.append(_SeenSlot(len(outputs) + len(written), slot.argument, "", after, number))
        wants_inputs, wants_outputs = self._selection.wants("input"), self._selection.wants("output")
        return read if wants_inputs else [], written if wants_outputs else []

    def _accesses_before(self, op: ProgramOperator, name: str) -> list[str]:
        """The operators that read or write the variables of an operator before it, if either of them writes. No tensor passes between them."""
        found: list[str] = []
        for slot in op.inputs:
            if slot.is_handle:
                variable = self._naming.source(slot)
                writer, readers = self._accesses.get(variable, ("", ()))
                found.append(writer)
                if writes_variable(op.op_type):
                    found += readers
                    self._accesses[variable] = name, ()
                else:
                    self._accesses[variable] = writer, (*readers, name)
        return found

    def _around(self, op: ProgramOperator, home: str, slot: Slot, number: int) -> tuple[Tensor | None, Tensor | None]:
        """The value of a variable before and after the node of an operator, as far as the operator reads or writes it."""
        dtype = next((op.node.attr[name] for name in ("dtype", "T") if name in op.node.attr), None)
        if dtype is None:
            return None, None
        handle = tensor_of(self._executed.inputs(self._executed.nodes[home])[slot.slot])
        behind = self._written.get(number, ())
        before: Tensor | None = None
        after: Tensor | None = None
        if is_assignment(op.op_type):
            self.graph.after[home] += behind
        else:
            before = self._edits.value_before(home, handle, dtype, behind), 0
        if writes_variable(op.op_type):
            after = self._edits.value_after(home, handle, dtype), 0
            self._written[number] = [after[0]]
        return before, after

    def _stand_in(self, op: ProgramOperator) -> tuple[Tensor | None, str]:
        """A result of an operator without a node, and the node at whose place it runs: none for constants, which are copied."""
        given = [slot for slot in op.outputs if not slot.is_handle]
        varying = [slot for slot in given if not self._is_constant(self._outcomes.resolved(slot.key))]
        for slot in varying or given:
            tensor = self._tensor(slot.key, "")
            if tensor is not None:
                return tensor, tensor[0] if varying else ""
        return None, ""

    def _taken(self, op: ProgramOperator, io: IO, tensor: Callable[[Slot], Tensor | None]) -> list[_SeenSlot]:
        """The selected slots; `tensor` finds the contents of one."""
        name = self._naming.names.get(op.name, op.name)
        found = []
        for slot in self._selection.taken(op, io, name):
            seen = tensor(slot)
            if seen is None:
                self._capture.note(
                    f"{io} {slot.slot} of {name} is not shown: TensorFlow executes no operator that produces it"
                )
            else:
                is_text = self.graph.dtype(seen) == _STRING
                made = self._naming.source(slot) if io == "input" else ""
                source = self._capture.shown_source(self._model, made)
                found.append(_SeenSlot(slot.slot, slot.argument, source, "string" if is_text else seen))
        return found

    def _tensor(self, key: Key, near: str) -> Tensor | None:
        """A tensor of the program in the graph, for a reader that runs where the node `near` runs; None if it is not available."""
        resolved = self._outcomes.resolved(key)
        executed = self._outcomes.executed_key(resolved)
        constant = self._outcomes.constant_node(resolved)
        if executed is not None and (constant is None or self._is_on_device_of(tensor_of(executed)[0], near)):
            return tensor_of(executed)
        name, _, slot = resolved.rpartition(":")
        made = (resolved if constant is not None else name, near if self._is_constant(resolved) else "")
        if made not in self._apart:
            self._apart[made] = None
            op = self._named.get(name)
            if constant is not None:
                self._apart[made] = self._edits.constant(constant, near)
            elif op is not None:
                self._apart[made] = self._compute_apart(op, near)
        node = self._apart[made]
        return None if node is None else (node, 0 if constant is not None else int(slot))

    def _is_on_device_of(self, name: str, near: str) -> bool:
        """Whether two nodes are on one device: the runtime copies a constant that several devices read."""
        return not near or self.graph.nodes[name].device == self.graph.nodes[near].device

    def _is_constant(self, key: Key) -> bool:
        """Whether a tensor depends only on constants, and therefore belongs to no place."""
        known = self._constants.get(key)
        if known is None:
            self._constants[key] = False
            op = self._named.get(key.rpartition(":")[0])
            made = [self._outcomes.resolved(slot.key) for slot in op.inputs] if op is not None else ["of nothing"]
            known = self._constants[key] = self._outcomes.constant_node(key) is not None or (
                self._outcomes.executed_key(key) is None and op is not None and all(map(self._is_constant, made))
            )
        return known

    def _compute_apart(self, op: ProgramOperator, near: str) -> str | None:
        """The node of an operator that is computed apart; None if its inputs are not available, or if it must not run again."""
        if not op.is_pure or SKIPS.get(op.op_type) == "control flow":
            return None
        keys = [self._outcomes.resolved(slot.key) for slot in op.inputs]
        given: dict[Key, Tensor | None] = {}
        close = near  # constants are copied to where they are needed
        for key in sorted(keys, key=self._is_constant):
            given[key] = self._tensor(key, close if self._is_constant(key) else near)
            tensor = given[key]
            if tensor is None:
                return None
            close = close or tensor[0]
        read = [each for key in keys if (each := given[key]) is not None]
        after = [near] if near and not read else []
        device = self.graph.nodes[close].device if close else ""
        return self._edits.apart(op.node, read, after, device)

    def _grouped(self) -> list[_Group]:
        graph = self.graph
        groups: list[_Group] = []
        current: dict[tuple[Region, int, str], _Group] = {}
        stage_of: dict[tuple[Region, str], int] = {}
        """The order of the operators of a region: each after its predecessors."""
        for each in self._seen:
            region = graph.regions[each.node] if each.stands_in is None else graph.region_of(each.stands_in)
            stages = (graph.stages[tensor[0]] + (graph.region_of(tensor) != region) for tensor in each.tensors())
            before = (stage_of.get((region, name), 0) for name in each.predecessors())
            stage = stage_of[region, each.operator.op_name] = max(graph.stages[each.node], *stages, *before, 0)
            device = graph.nodes[each.node].device
            group = current.get((region, stage, device))
            if group is None or len(group.tensors) >= _TENSORS:
                group = _Group(region, stage, device)
                groups.append(group)
                current[region, stage, device] = group
            group.seen.append(each)
            for slot in (*each.inputs, *each.outputs):
                if not isinstance(slot.tensor, str):
                    group.tensors.setdefault((slot.tensor, slot.variable), len(group.tensors))
            if not each.outputs or any(isinstance(slot.tensor, str) for slot in each.outputs):
                group.anchors.append(each.node)
        return groups

    def _count_bodies(self, groups: list[_Group], place: Mapping[str, int]) -> None:
        """Let the first probe of each body report that the body runs."""
        nodes: dict[int, list[str]] = defaultdict(list)
        for op in self._program.operators:
            name = self._outcomes.nodes.get(op.name)
            if name is not None and not is_plumbing(self.graph.nodes[name]):
                nodes[op.body].append(name)
        regions, stages = self.graph.regions, self.graph.stages
        for body in self._program.bodies:
            own = nodes[body.number]
            self._counted[body.number] = self._counted.get(body.around, 0)
            if body.is_call or not own or not body.number + self._first:
                continue
            number = self._counted[body.number] = body.number + self._first
            first = min(own, key=lambda name: (len(regions[name].frame), len(regions[name].controls), place[name]))
            region = regions[first]
            group = next((each for each in groups if each.region == region), None)
            if group is None:
                group = _Group(region, stages[first], self.graph.nodes[first].device, anchors=[first])
                groups.append(group)
            group.bodies.append(number)

    def _copies_of_what_is_left_alone(self, groups: Sequence[_Group]) -> dict[Tensor, Tensor]:
        """The tensors that are recorded."""
        looked_at = {tensor for group in groups for tensor, _ in group.tensors}
        looked_at |= {each for name, read in self.graph.inputs.items() if name.startswith(MINE) for each in read}
        wanted = looked_at & {*map(tensor_of, left_alone(self._executed))}
        readers = readers_of(self.graph, wanted)
        return {tensor: self._edits.copied(tensor, names) for tensor, names in readers.items()}

    def _add_probes(self, groups: list[_Group], copies: Mapping[Tensor, Tensor], fallible: Collection[str]) -> None:
        graph = self.graph
        last: dict[Region, list[tuple[int, str]]] = {}
        groups.sort(key=lambda each: each.stage)
        for group in groups:
            texts: list[str] = []
            operators = [
                BlockOperator(
                    each.operator,
                    _block_slots(each.inputs, group.tensors, texts),
                    _block_slots(each.outputs, group.tensors, texts),
                )
                for each in group.seen
            ]
            variables = {place: handle for (_, handle), place in group.tensors.items() if handle >= 0}
            probe = Probe(self._current, operators, texts, group.bodies, variables)
            self.probes.append(probe)
            before = last.setdefault(group.region, [])
            after = [*dict.fromkeys(group.anchors), *(name for _, name in before[-1:])]
            name = self._edits.probe(probe, [copies.get(each, each) for each, _ in group.tensors], after, group.device)
            before.append((group.stage, name))
        order_regions(self._edits, graph, last, fallible)


def _behind_predecessors(seen: Sequence[_Seen]) -> list[_Seen]:
    """The operators, each after its predecessors; an operator that represents the node of another has the position of that node."""
    places = {each.operator.op_name: place for place, each in enumerate(seen)}

    def predecessors(place: int) -> list[int]:
        return [places[name] for name in seen[place].predecessors() if name in places]

    return [seen[place] for place in in_order(range(len(seen)), predecessors)]


def _block_slots(
    seen: Sequence[_SeenSlot], tensors: Mapping[tuple[Tensor, int], int], texts: list[str]
) -> tuple[BlockSlot, ...]:
    """The slots of a block with these tensors, and the texts that follow them, which are extended."""
    found = []
    for each in seen:
        if isinstance(each.tensor, str):
            texts.append(each.tensor)
            place = len(tensors) + len(texts) - 1
        else:
            place = tensors[each.tensor, each.variable]
        found.append(BlockSlot(each.slot, each.argument, each.source, place))
    return tuple(found)


_NUMBERS: Final = itertools.count()
_ADDED: Final = re.compile(rf"\b{MINE}\w+?_\d+\b")
_SUFFIX: Final = re.compile(r"_opdump_(\d+|look)")


def without_suffix(text: str) -> str:
    """A message of the runtime with the names of the functions and operators instead of those of the copies."""
    return _SUFFIX.sub("", text)


class InstrumentedFunction:
    """The copy of a function for calls with these inputs, as registered in the runtime, and the copies of the functions that it calls.

    If no copy could be made, it is the function itself.
    """

    def __init__(self, name: str, context: Any, inputs: Sequence[Any], capture: Capture, model: Model) -> None:
        self.current = CurrentCall()
        self.bodies: list[BodyOperators] = []
        """By number; 0 is the function itself, which runs in each call."""
        self.definitions: list[str] = []
        """Names of the copies, and of the functions that they run, in the runtime."""
        self.hidden: list[str] = []
        """Functions that its operators run elsewhere: bodies of loops over data sets."""
        self.listed: set[tuple[int, bool]] = set()
        """Numbers of bodies whose skipped operators are listed: for bodies that ran, and for bodies that did not."""
        self._programs: dict[str, str] = {}
        """Nodes of copies that recompute an operator -> the program's names."""
        self._probes: list[Callable[..., Any]] = []
        """Kept alive, because the runtime only has a token of each."""
        self._context = context
        self._library: Library = context.get_function_def
        self._capture = capture
        self._model = model
        self._task_ids = itertools.count()
        program = function_program(name, self._library, capture.stacks)
        names = shown_names(program)
        self._selection = capture.selection(capture.filter_of(model), list(names.values()))
        for op in program.operators:
            if op.is_needed and hidden_callees(op.node):
                capture.note(
                    f"the functions that {names[op.name]} ({op.node.op}) runs are not shown: they run outside of the graph"
                )
                self.hidden += functions_of(op.node)
        config = context.function_call_options.config_proto_serialized
        definition = self._library(name)
        arguments = [f"{each.name}:0" for each in definition.signature.input_arg]
        sources = {argument: f"{_ARGUMENT}{number}" for number, argument in enumerate(arguments)}
        naming = Naming(names, sources, program)
        after = capture.eager.follow_backward
        follow = [argument for argument, each in zip(arguments, inputs, strict=False) if each._id in after]
        is_gradient = _OF_BACKWARD.match(name) is not None
        made = self._make(definition, program, naming, inputs, config, is_gradient=is_gradient, follow=follow)
        phases = phases_of(program, is_gradient=is_gradient, follow=follow)
        self.results = [self._result(naming, program, phases, key) for key in program.returned]
        """For each result, its source, and whether it was computed from gradients."""
        capture.recorder.matched_kernels |= self._selection.matched_kernels
        self.name, self.is_copy = made or name, made is not None
        if made is None:
            capture.note(
                f"{name} is not shown: the graph that TensorFlow executes for it is not available, or would change if it was observed"
            )
            self.bodies.append(self._unseen(program, names))

    def _result(self, naming: Naming, program: Program, phases: Mapping[str, Phase], key: Key) -> tuple[str, bool]:
        maker = program.resolved(key).rpartition(":")[0]
        source = naming.source(Slot(0, "", key, 0))
        if not source.startswith(_ARGUMENT):
            source = self._capture.shown_source(self._model, source)
        return source, phases.get(maker, "forward") != "forward"

    def emitted(self, call: DumpedCall, outputs: Sequence[Any]) -> None:
        """Note the makers of the results of a call."""
        eager = call.capture.eager
        for tensor, (source, follows) in zip(outputs, self.results, strict=False):
            if maker := _given(source, call.sources):
                eager.makers[tensor._id] = maker
            if follows:
                eager.follow_backward.add(tensor._id)

    def as_the_programs(self, text: str) -> str:
        """A message of the runtime with the program's names instead of those of copies and of recomputed operators."""
        return _ADDED.sub(lambda found: self._programs.get(found[0], found[0]), without_suffix(text))

    def _make(
        self,
        definition: Definition,
        program: Program,
        naming: Naming,
        inputs: Sequence[Any],
        config: bytes,
        *,
        is_inner: bool = False,
        is_gradient: bool = False,
        follow: Collection[Key] = (),
    ) -> str | None:
        """The name of the copy of a function; unless another function calls it, the copy has an additional argument. `is_gradient`, `follow`: see
        `phases_of`.

        None if the executed graph is not available, or would change with probes in it.
        """
        begin, number = len(self.definitions), len(self.bodies)
        graphs = self._executed(definition, inputs, config, is_inner=is_inner)
        if graphs is None:
            return None
        # With several devices, the unpartitioned graph is used, which the runtime optimises again for each device.
        base = graphs.partition_graphs[0] if len(graphs.partition_graphs) == 1 else graphs.post_optimization_graph
        for function in base.library.function:
            if not self._context.has_function(function.signature.name):
                self._add(function)
        self.bodies += [_NO_OPERATORS] * len(program.bodies)
        observed = Observed(
            self._capture,
            self._selection,
            self._model,
            program,
            ExecutedGraph([base]),
            self._library,
            self.current,
            self._task_ids,
            phases_of(program, is_gradient=is_gradient, follow=follow),
            FunctionShapes(program, self._library, [*map(_shape_of, inputs)]),
        )
        copies = {call.node: self._copy_of_call(call, naming) for call in observed.kept_calls()}
        calls = {node: copy for node, copy in copies.items() if copy is not None}
        observed.build(naming, number, calls)
        self._programs |= observed.programs
        self.bodies[number : number + len(program.bodies)] = observed.bodies()
        copy = definition_of(observed.graph, definition, f"{definition.signature.name}_opdump_{next(_NUMBERS)}")
        with_one_more = with_argument(copy, f"{copy.signature.name}_look" if is_inner else copy.signature.name)
        self._add(with_one_more)
        own = function_graphs(self._context, with_one_more, inputs, without_rewriting(config))
        if own is None or not _is_same(graphs, own, calls):
            for each in self.definitions[begin:]:
                self._context.remove_function(each)
            del self.definitions[begin:], self.bodies[number:]
            return None
        if is_inner:
            copy.attr["_noinline"].b = True  # the call remains a call
            self._add(copy)
        self._probes += observed.probes
        return str(copy.signature.name)

    def _unseen(self, program: Program, names: Mapping[str, str]) -> BodyOperators:
        """All operators of a function that is not observed."""
        operators = []
        for op in program.operators:
            skip = self._selection.skip_of(op.op_type, names[op.name]) or "not observed"
            operators.append(op.named(next(self._task_ids), name=names[op.name], skip=skip))
        return BodyOperators.of(operators, 0)

    def _executed(self, definition: Definition, inputs: Sequence[Any], config: bytes, *, is_inner: bool) -> Any | None:
        look = with_argument(definition, f"{definition.signature.name}_opdump_look")
        self._context.add_function_def(look)
        try:
            return function_graphs(self._context, look, inputs, config, is_programs=not is_inner)
        finally:
            self._context.remove_function(look.signature.name)

    def _copy_of_call(self, call: KeptCall, naming: Naming) -> str | None:
        """The copy of a function whose call the runtime keeps."""
        name = call.operator.node.attr["f"].func.name
        program = function_program(name, self._library, self._capture.stacks, call.operator.stack, call.outputs)
        definition = self._library(name)
        naming = naming.within(call.operator, program, [each.name for each in definition.signature.input_arg])
        definition = with_fixed(definition, call.constants, call.outputs)
        inputs = [
            standing_for(self._context, each.type, device)
            for each, device in zip(definition.signature.input_arg, call.devices, strict=True)
        ]
        return self._make(definition, program, naming, inputs, call.config, is_inner=True)

    def _add(self, definition: Definition) -> None:
        self._context.add_function_def(definition)
        self.definitions.append(str(definition.signature.name))


def _shape_of(tensor: Any) -> tuple[int, ...] | None:
    """The shape of an argument of a function; for the handle of a variable, that of the variable; None if it is unknown."""
    if tensor.dtype not in _HANDLES:
        return tuple(tensor.shape.as_list())
    facts = getattr(tensor, "_handle_data", None)
    if facts is None or not facts.is_set or len(facts.shape_and_type) != 1:
        return None
    shape = tf.TensorShape(facts.shape_and_type[0].shape)
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _is_same(plain: Any, own: Any, calls: Iterable[str]) -> bool:
    """Whether the runtime executes the same graph for a copy as for the function; `calls` are nodes that call copies."""
    nodes = {node.name: node for graph in plain.partition_graphs for node in graph.node}
    for graph in own.partition_graphs:
        for node in graph.node:
            if node.name in calls and node.name in nodes:
                for attribute in CALL_ATTRIBUTES:
                    node.attr[attribute].CopyFrom(nodes[node.name].attr[attribute])
    executed = ExecutedGraph(plain.partition_graphs)
    return not executed.differing(ExecutedGraph(own.partition_graphs, added=MINE))


_OF_BACKWARD: Final = re.compile(r"^__\w*_backward_")
"""Names of functions that are gradients of others."""
_NO_OPERATORS: Final = BodyOperators.of((), 0)
