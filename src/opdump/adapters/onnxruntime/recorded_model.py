"""What a plan records of a model: the nodes, the values and the runs needed for them, and the nodes in the order of a dump."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import GraphProto, ModelProto, TypeProto, ValueInfoProto

from opdump.adapters.graph_runtime import GraphRun, OperatorSelection, RunEmitter, live_tensor
from opdump.adapters.host import BY_NUMBER, HostTensor, element_of_type
from opdump.adapters.onnxruntime.bodies import BodyReplay, BodyRun, values_around
from opdump.adapters.onnxruntime.model_file import ModelFile
from opdump.adapters.onnxruntime.model_graph import ModelNode, has_random_operators, is_random, operators_of_program
from opdump.adapters.onnxruntime.tensors_of_run import Tensors, fed_tensor
from opdump.plan import DumpPlan, StepSet, WatchedLook
from opdump.plan.selection import ModelFilter
from opdump.plan.unmatched_names import ChoseNothing, ListMatches
from opdump.recorder import LiveTensor, WatchRecorder
from opdump.records import Frame, SkipReason

# Determines once what a plan records of a model: the nodes that run, the recorded ones, and the values needed for them.

_NO_LIMIT: Final = "memory_limit has no effect: a second run of the model's random operators returns different values"
_DRAWN_AGAIN: Final = "random operators draw other numbers in the recorded run than in the run of the program, so the records of such a model differ from its answers"
_WATCHED: Final = (
    "values of ONNX Runtime are watched as their operators made them: every one has memory of its own while it is "
    "recorded, so an operator that overwrites another's result cannot be seen"
)


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """A model under a plan.

    `ran` is the model that runs, `nodes` are its nodes in an order in which they can run. `choice` is the selection, `within` the
    selection in bodies, by control operator. `wanted` are the values that a run must return for these, `sources` the makers of
    values. `notes` are what the dump lacks, `chose_nothing` is why the configuration selects no node.
    """

    ran: ModelFile
    nodes: tuple[ModelNode, ...]
    once: RunOnce | None
    is_random: bool
    is_wanted: bool
    """Whether the plan selects anything."""
    choice: Choice
    within: Mapping[str, Mapping[str, ChosenNode]]
    sources: Mapping[str, str]
    wanted: tuple[str, ...]
    notes: tuple[str, ...]
    chose_nothing: ChoseNothing

    @classmethod
    def of(
        cls,
        ran: ModelFile,
        nodes: tuple[ModelNode, ...],
        plan: DumpPlan,
        names: Iterable[str],
        *,
        is_single_operator: bool,
        is_limited: bool,
        is_beside: bool = False,
    ) -> RecordedModel:
        """`names` are those of the model. `is_limited`: values are split over several runs because of the memory limit. `is_beside`: the answers
        come from another session, so every operator runs a second time.
        """
        notes: list[str] = []
        chose_nothing: ChoseNothing = ""
        if is_single_operator:
            # A single operator has no step counter, so selected steps match none of its runs.
            nodes = tuple(replace(node, operator=replace(node.operator, kernel=node.op_type)) for node in nodes)
            is_taken = (plan.single_operator_models or not plan.mode.files_selected) and plan.steps == StepSet.all()
            model_filter = ModelFilter.of_single_operators(plan.models) if is_taken else ModelFilter(())
        else:
            model_filter = ModelFilter.of(plan.models, names)
            matches = matches_of(nodes, model_filter, plan.dialect)
            notes += matches.texts()
            chose_nothing = matches.chose_nothing
        once, is_random_model = RunOnce.of(ran, nodes), has_random_operators(ran.proto)
        if is_beside:
            once = _once_beside(once, notes, is_random=is_random_model)
        constants = ran.constants()
        sources = _value_sources(ran, nodes, constants)
        within = _chosen_in_bodies(nodes, plan, model_filter, sources, once, notes)
        choice = _with_values_around(choose(nodes, plan, model_filter, sources), within)
        if is_random_model and is_limited and once is None:
            notes.append(_NO_LIMIT)
        if choice.watched:
            notes.append(_WATCHED)
        apart = constants if once is None else {*constants, *once.values}
        made = {value for node in nodes for value in node.outputs}.difference(apart)
        wanted = tuple(filter(made.__contains__, choice.values))
        return cls(
            ran, nodes, once, is_random_model, not model_filter.is_empty, choice, within, sources, wanted, tuple(notes),
            chose_nothing,
        )  # fmt: skip


def _once_beside(once: RunOnce | None, notes: list[str], *, is_random: bool) -> RunOnce | None:
    """What must not run a second time beside the program's own session. Adds to the notes what does run again."""
    if is_random:
        notes.append(_DRAWN_AGAIN)
    if once is None or once.may_call_python:
        return once
    notes.append(once.note_of_second_run)
    return None


def _value_sources(ran: ModelFile, nodes: Sequence[ModelNode], constants: Iterable[str]) -> dict[str, str]:
    """The makers of values: `{op_name}:{slot}`, `Parameter.{name}` for an initialiser, `{name}:0` for an input of the model."""
    sources = {value.name: f"{value.name}:0" for value in ran.proto.graph.input}
    sources.update((name, f"Parameter.{name}") for name in constants)
    for node in nodes:
        sources.update((value, f"{node.name}:{slot}") for slot, value in enumerate(node.outputs) if value)
    return sources


def _chosen_in_bodies(
    nodes: Sequence[ModelNode],
    plan: DumpPlan,
    model_filter: ModelFilter,
    sources: Mapping[str, str],
    once: RunOnce | None,
    notes: list[str],
) -> dict[str, dict[str, ChosenNode]]:
    """The selection in bodies, for control operators whose bodies may run again."""
    found = {}
    for node in nodes:
        within = chosen_within(node, plan, model_filter, sources) if node.bodies else {}
        if not within:
            continue
        if once is not None and node.name in once.operators:
            notes.append(
                NOT_SHOWN.format(node.name, f"the effect of a second run of {once.operators[node.name]} is unknown")
            )
        elif is_random(node):
            notes.append(NOT_SHOWN.format(node.name, "a second run of random operators returns different values"))
        else:
            found[node.name] = within
    return found


def _with_values_around(choice: Choice, within: Mapping[str, object]) -> Choice:
    """The choice, with the values that are needed to run the bodies of these control operators again."""
    return replace(
        choice,
        nodes=tuple(
            replace(chosen, around=tuple(values_around(chosen.node))) if chosen.node.name in within else chosen
            for chosen in choice.nodes
        ),
    )


# Selects the nodes of a model to record, and the values of a run that are needed for them.

Slots = tuple[tuple[int, str, str, str], ...]
"""Slot, argument name, value name, and (for inputs) the maker of the value."""


@dataclass(frozen=True, slots=True)
class ChosenNode:
    """A node and its selected slots; none if `skip` has a reason.

    A selected control operator has both a reason and slots: it is recorded as one operator if nothing of its bodies is.
    """

    node: ModelNode
    skip: SkipReason
    inputs: Slots = field(default=())
    outputs: Slots = field(default=())
    around: tuple[str, ...] = ()
    """For a control operator: the values that are needed to run its bodies again."""

    @property
    def has_slots(self) -> bool:
        return bool(self.inputs or self.outputs)

    @property
    def values(self) -> tuple[str, ...]:
        return (*(value for _, _, value, _ in (*self.inputs, *self.outputs)), *self.around)


@dataclass(frozen=True, slots=True)
class Choice:
    """The selection of a model: its nodes in running order."""

    nodes: tuple[ChosenNode, ...]
    matched_kernels: frozenset[str]
    """Entries of the plan's `kernels` that matched a node."""
    watched: tuple[ChosenNode, ...] = ()
    """In watch mode, the nodes whose outputs are emitted after each selected node."""

    @property
    def values(self) -> tuple[str, ...]:
        """The values that the selected nodes read and write, each once."""
        return tuple(dict.fromkeys(value for chosen in (*self.nodes, *self.watched) for value in chosen.values))


def choose(nodes: Sequence[ModelNode], plan: DumpPlan, model_filter: ModelFilter, sources: Mapping[str, str]) -> Choice:
    """The selection by `plan` and the entries of its `dump_list` for this model. `sources` are the makers of values."""
    held = model_filter.in_ranges([node.name for node in nodes])
    selection = OperatorSelection(plan, model_filter, held)
    watches = plan.mode.watches
    watched_names = {name for entry in model_filter.entries for name in entry.watcher_nodes} if watches else set[str]()
    chosen, watched = [], []
    for node in nodes:
        names = (node.name, *node.original_names)
        if not watched_names.isdisjoint(names):
            watched.append(ChosenNode(node, "", outputs=slots_of(node.outputs, node.output_arguments, {})))
        skip = node.operator.skip
        if skip and (watches or not node.bodies or not selection.selects(node.name, node.op_type, node.original_names)):
            chosen.append(ChosenNode(node, skip))
            continue
        if not selection.selects(node.name, node.op_type, node.original_names):
            chosen.append(ChosenNode(node, "not selected"))
            continue
        if watches:
            chosen.append(ChosenNode(node, ""))  # only when it runs is used, not its inputs and outputs
            continue
        left_out_inputs = selection.excluded(node.name, node.op_type, "input")
        left_out_outputs = selection.excluded(node.name, node.op_type, "output")
        chosen.append(
            ChosenNode(
                node,
                skip,
                _input_slots(node, sources, left_out_inputs) if selection.wants_inputs else (),
                slots_of(node.outputs, node.output_arguments, {}, left_out_outputs) if selection.wants_outputs else (),
            )
        )
    return Choice(tuple(chosen), frozenset(selection.matched_kernels), tuple(watched))


def matches_of(nodes: Sequence[ModelNode], model_filter: ModelFilter, dialect: str) -> ListMatches:
    """The names by which the `dump_list` can select each operator of the model."""
    matches = ListMatches(model_filter.entries, dialect, "operator of the model")
    matches.model(entry.model_name for entry in model_filter.entries if entry.model_name is not None)
    everything = [node for top in nodes for node in top.with_bodies]
    for node in everything:
        matches.operator(model_filter.entries, node.name, {node.name, *node.original_names}, node.op_type)
    for entry in model_filter.entries:
        for each in entry.ranges:
            ends = (
                name
                for node in everything
                for name in (node.name, *node.original_names)
                if name in (each.begin, each.end)
            )
            if next(ends, None) == each.begin:
                matches.opened([each])
    return matches


def chosen_within(
    node: ModelNode, plan: DumpPlan, model_filter: ModelFilter, sources: Mapping[str, str]
) -> dict[str, ChosenNode]:
    """The selected nodes in the bodies of a control operator, at any depth, by name; empty if none is recorded."""
    if plan.mode.watches:
        return {}
    found: dict[str, ChosenNode] = {}
    for body, own in zip(node.bodies, node.body_sources, strict=True):
        inside = {
            **sources,
            **own,
            **{value: f"{inner.name}:{slot}" for inner in body for slot, value in enumerate(inner.outputs) if value},
        }
        found.update((chosen.node.name, chosen) for chosen in choose(body, plan, model_filter, inside).nodes)
        for inner in body:
            deeper = chosen_within(inner, plan, model_filter, inside)
            found.update(deeper or {each.name: ChosenNode(each, "not selected") for each in _within(inner)})
    return found if any(not chosen.skip for chosen in found.values()) else {}


def _within(node: ModelNode) -> Iterable[ModelNode]:
    return (each for each in node.with_bodies if each is not node)


def _input_slots(node: ModelNode, sources: Mapping[str, str], excluded: frozenset[int]) -> Slots:
    """The inputs of a node. What the bodies of a control operator read from outside follows its own inputs, by name."""
    outer = sorted(node.reads.difference(node.inputs))
    return slots_of((*node.inputs, *outer), (*node.input_arguments, *outer), sources, excluded)


def slots_of(
    values: Sequence[str],
    arguments: Sequence[str],
    sources: Mapping[str, str],
    excluded: frozenset[int] = frozenset(),
) -> Slots:
    """The slots that have a value and are not `excluded`."""
    return tuple(
        (slot, argument, value, sources.get(value, ""))
        for slot, (value, argument) in enumerate(zip(values, arguments, strict=True))
        if value and slot not in excluded
    )


# Emits the nodes of a run, and those in bodies of control operators, to the recorder as if they had run one after the other.

NOT_SHOWN: Final = "the bodies of {} are not shown: {}"


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The place of a run in the dump. `order` numbers the operators of its step, and `executions` counts those of each operator."""

    step: int
    ends_step: bool = True
    order: Iterator[int] = field(default_factory=itertools.count)
    executions: Counter[str] = field(default_factory=Counter)
    called_at: Sequence[Frame] = ()
    """The lines of the program that called the session."""


class NodeEmitter:
    """Passes the operators of each run of a model to the recorder.

    `model` is the model that runs; `model_name` and `model_id` are written to the records. `choice` is the selection, `within` the
    selection inside each control operator, by its name. `notes` collects what the dump lacks.
    """

    def __init__(
        self,
        emitter: RunEmitter,
        model: ModelFile,
        model_name: str,
        model_id: int,
        choice: Choice,
        within: Mapping[str, Mapping[str, ChosenNode]],
        replay: BodyReplay,
        notes: list[str],
    ) -> None:
        self._constants = model.constants()
        sparse = GraphProto(sparse_initializer=model.proto.graph.sparse_initializer)
        self._sparse = model.fixed_tensors(sparse)
        self._emitter = emitter
        self._model = model
        self._model_name = model_name
        self._model_id = model_id
        self._choice = choice
        self._within = within
        self._replay = replay
        self._notes = notes
        self._fixed: Tensors = {}

    def run(self, place: RunPlace) -> GraphRun:
        """Begin another run."""
        return GraphRun(
            self._emitter,
            self._model_name,
            self._model_id,
            place.step,
            order=place.order,
            executions=place.executions,
            called_at=place.called_at,
        )

    def emit(self, run: GraphRun, nodes: Sequence[ChosenNode], first: int, tensors: Tensors) -> None:
        """Pass nodes of a run to the recorder, one after the other; `first` is the order of the first one."""
        for place, chosen in enumerate(nodes, first):
            if run.is_over:
                return
            if chosen.skip:
                with run.recorder.losing(chosen.node.operator):
                    if not (chosen.around and self._emit_bodies(run, chosen, tensors)):
                        self._emit_closed(run, chosen, tensors)
                continue
            self._emit_node(run, chosen, tensors)
            if isinstance(run.recorder, WatchRecorder) and self._choice.watched:
                self._emit_watched(run, run.recorder, chosen, tensors, place)

    def _emit_node(self, run: GraphRun, chosen: ChosenNode, tensors: Tensors) -> None:
        operator = chosen.node.operator
        with run.recorder.losing(operator):
            run.emit(operator, self.live(chosen.inputs, tensors), self.live(chosen.outputs, tensors))

    def _emit_closed(self, run: GraphRun, chosen: ChosenNode, tensors: Tensors) -> None:
        """Emit a control operator without its bodies. A selected one is recorded, because otherwise its results would be in no dump."""
        itself, *inside = chosen.node.with_bodies
        if chosen.has_slots:
            self._emit_node(run, chosen, tensors)
        else:
            run.skip(itself.operator, chosen.skip)
        for node in inside:
            run.skip(node.operator, chosen.skip)

    def _emit_bodies(self, run: GraphRun, chosen: ChosenNode, tensors: Tensors) -> bool:
        """Emit the executions inside a control operator. Returns whether they are known."""
        node = chosen.node
        around = {name: tensors[name] if name in tensors else self._constant(name) for name in chosen.around}
        try:
            bodies = self._replay.runs(node, around)
        except Exception as problem:  # noqa: BLE001  the runtime's errors have no class of their own; the note contains the error
            note = NOT_SHOWN.format(node.name, problem)
            if note not in self._notes:
                self._notes.append(note)
            return False
        within = self._within[node.name]
        if chosen.has_slots and not _is_recorded(bodies, within):
            self._emit_node(run, chosen, tensors)  # a branch of constants, a loop without iterations
        else:
            run.skip(node.operator, chosen.skip)
        self._emit_body_runs(run, bodies, within)
        return True

    def _emit_body_runs(self, run: GraphRun, bodies: Sequence[BodyRun], within: Mapping[str, ChosenNode]) -> None:
        for body in bodies:
            for node in body.nodes:
                chosen = within[node.name]
                inner = body.within.get(node.name, ())
                if chosen.skip and (not chosen.has_slots or _is_recorded(inner, within)):
                    run.skip(node.operator, chosen.skip)
                else:
                    self._emit_node(run, chosen, body.tensors)
                self._emit_body_runs(run, inner, within)

    def _emit_watched(
        self, run: GraphRun, recorder: WatchRecorder, after: ChosenNode, tensors: Tensors, place: int
    ) -> None:
        """After a node that is not watched itself, emit the contents of the outputs of the watched nodes that have run."""
        watched = {chosen.node.name: chosen for chosen in self._choice.watched}
        if after.node.name in watched:
            return
        for other in self._choice.nodes[:place]:
            if other.node.name in watched:
                operator = replace(other.node.operator, op_name=str(WatchedLook(after.node.name, other.node.name)))
                recorder.watched(run.record(operator), self.live(watched[other.node.name].outputs, tensors))

    def live(self, slots: Slots, tensors: Tensors) -> list[LiveTensor]:
        """The values in these slots, for the recorder."""
        lives: list[LiveTensor] = []
        for slot, argument, value, source in slots:
            tensor = tensors.get(value)
            lives.append(live_tensor(slot, argument, self._constant(value) if tensor is None else tensor, source))
        return lives

    def _constant(self, name: str) -> HostTensor | str:
        if name not in self._fixed:
            written = self._constants.get(name)
            # A value that no node, input or initialiser provides was omitted.
            self._fixed[name] = (
                self._sparse.get(name, "undefined") if written is None else self._model.fixed_tensor(written)
            )
        return self._fixed[name]


def _is_recorded(bodies: Sequence[BodyRun], within: Mapping[str, ChosenNode]) -> bool:
    """Whether an operator that ran in these bodies is recorded."""
    chosen = (within[node.name] for body in bodies for node in body.nodes)
    return any(not each.skip or each.has_slots for each in chosen)


# Runs operators of the program only once, in a plain run. The dump covers the rest of the model, which is fed with their results.
#
# model     x -> Exp -> Ask (ai.onnx.contrib) -> Tanh -> y
# plain     the same; the result of Ask is also an output           runs once, its answer is the program's
# rest      x -> Exp        result of Ask -> Tanh -> y              runs as often as the dump needs


_OF_PYTHON: Final = frozenset({"ai.onnx.contrib", "com.microsoft.extensions", "com.microsoft"})
"""Domains whose operators may be Python functions: those of onnxruntime-extensions, and PythonOp."""


@dataclass(frozen=True, slots=True)
class RunOnce:
    """The nodes of one model that run once.

    `operators` are the operators of the program, by the nodes that run them. `nodes` are these nodes and the random ones, whose results in a
    second run would differ from those in the answer.
    """

    operators: Mapping[str, str]
    nodes: tuple[ModelNode, ...]

    @classmethod
    def of(cls, ran: ModelFile, nodes: Sequence[ModelNode]) -> RunOnce | None:
        """None for a model without operators of the program."""
        operators = operators_of_program(ran.proto, nodes)
        if not operators:
            return None
        return cls(operators, tuple(node for node in nodes if node.name in operators or is_random(node)))

    @property
    def values(self) -> tuple[str, ...]:
        """The outputs of the nodes."""
        return tuple(value for node in self.nodes for value in node.outputs if value)

    @property
    def may_call_python(self) -> bool:
        """Whether an operator may be Python of the program, whose effect a second run would repeat in the program itself."""
        return any(operator.partition("::")[0] in _OF_PYTHON for operator in self.operators.values())

    @property
    def refusal_beside(self) -> str:
        """Why no run of the program's own session can be recorded."""
        return f"{self._named()}, may be Python and must not run twice; `opdump infer` and `opdump.onnx.session` record such a model"

    @property
    def note_of_second_run(self) -> str:
        """What to know if they run again for the dump."""
        return f"{self._named()}, runs a second time for the dump of each recorded run"

    @property
    def note(self) -> str:
        """What is recorded of them, for the dump's notes."""
        return (
            f"{self._named()}, runs only as often as the program requested, because its effect is unknown; the dump has the other "
            "operators from a second run on its results"
        )

    def refusal(self, model: ModelFile, session: onnxruntime.InferenceSession) -> str:
        """Why the rest cannot run separately, so that no run of the model is recorded; empty if it can."""
        made = {value for node in model.proto.graph.node for value in node.output}
        types = {output.name: output.type for output in session.get_outputs()}
        for value in self.values:
            if value not in made:
                return f"{self._named()}, must not run twice, and only the optimised model has {value}; record it at level 'disable'"
            element = element_of_type(types.get(value, ""))
            if element is None or not (element.known_to_numpy or element.bits == 0):
                return f"{self._named()}, must not run twice, and {types.get(value, 'its result')} cannot be fed to the rest of the model"
        return ""

    def rest_of(
        self, ran: ModelFile, nodes: Sequence[ModelNode], wanted: Sequence[str], session: onnxruntime.InferenceSession
    ) -> bytes:
        """The model without these nodes: their outputs are fed, and `wanted` are its outputs. `session` provides the types."""
        left_out = {node.name for node in self.nodes}
        given = {output.name: output.type for output in session.get_outputs() if output.name in set(self.values)}
        inputs = []
        for name, type_text in given.items():
            element = element_of_type(type_text)
            assert element is not None
            kind = TypeProto()
            kind.tensor_type.elem_type = element.number
            inputs.append(ValueInfoProto(name=name, type=kind))
        kept = [node for node in nodes if node.name not in left_out]
        return ran.part(
            [node.position for node in kept],
            wanted,
            inputs=inputs,
            reads={value for node in kept for value in node.reads},
        )

    def run(
        self,
        session: onnxruntime.InferenceSession,
        names: Sequence[str],
        feeds: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
    ) -> tuple[list[Any], dict[str, Any], Tensors]:
        """The answer of a plain run, the outputs of the operators in it, and these outputs as tensors."""
        fetched = tuple(dict.fromkeys((*names, *self.values)))
        found = dict(zip(fetched, session.run(list(fetched), feeds, run_options), strict=True))
        types = {output.name: output.type for output in session.get_outputs()}
        given = {value: found[value] for value in self.values}
        tensors: Tensors = {name: fed_tensor(value, types[name]) for name, value in given.items()}
        return [found[name] for name in names], given, tensors

    def _named(self) -> str:
        name, operator = next(iter(self.operators.items()))
        more = len(self.operators) - 1
        return f"{name}, {operator} of the program" + (f" (and {more} more)" if more else "")


# Splits the nodes of a run into chunks whose tensors fit a memory limit.
#
# Each chunk costs a run of the model. The sizes of tensors are known from the last run; before the first one, they are inferred from the
# shapes of the inputs. If the size of a tensor is unknown, its node is a chunk of its own.


def chunks_of(
    nodes: Sequence[ChosenNode],
    computed: Collection[str],
    limit: int,
    model: ModelProto,
    feeds: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> list[tuple[int, int]]:
    """Ranges of `nodes` (first, past the end) whose `computed` values together take at most `limit` bytes.

    A node whose own values exceed the limit is a chunk of its own. `sizes` are bytes known from an earlier run.
    """
    computed = frozenset(computed)
    known = sizes or _inferred_sizes(model, feeds)
    pieces: list[tuple[int, int]] = []
    first, held = 0, set[str]()
    for place, chosen in enumerate(nodes):
        values = computed.intersection(chosen.values)
        together = held | values
        if held and values and _bytes(together, known, limit) > limit:
            pieces.append((first, place))
            first, together = place, set(values)
        held = together
    pieces.append((first, len(nodes)))
    return pieces


def _bytes(values: Collection[str], known: Mapping[str, int], limit: int) -> int:
    return sum(known.get(value, limit) for value in values)


def _inferred_sizes(model: ModelProto, feeds: Mapping[str, Any]) -> dict[str, int]:
    graph = model.graph
    bare = ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.name = graph.name
    bare.graph.node.extend(graph.node)
    bare.graph.output.extend(graph.output)
    inputs = {value.name: value for value in graph.input}
    for name, value in inputs.items():
        added = bare.graph.input.add()
        added.CopyFrom(value)
        if isinstance(feeds.get(name), np.ndarray) and value.type.HasField("tensor_type"):
            shape = added.type.tensor_type.shape
            shape.ClearField("dim")
            for size in feeds[name].shape:
                shape.dim.add().dim_value = size
    for tensor in graph.initializer:
        if tensor.name not in inputs:
            # Type and shape of a weight are sufficient, except for the few numbers that are shapes themselves.
            if int(np.prod(tensor.dims)) <= 64 and tensor.data_location != onnx.TensorProto.EXTERNAL:
                bare.graph.initializer.append(tensor)
            else:
                bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return {}
    return {
        value.name: size
        for value in (*inferred.graph.value_info, *inferred.graph.output)
        if (size := _size(value)) is not None
    }


def _size(value: onnx.ValueInfoProto) -> int | None:
    kind = value.type.tensor_type
    element = BY_NUMBER.get(kind.elem_type)
    if element is None or not kind.HasField("shape") or any(not dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return element.size(int(np.prod([dim.dim_value for dim in kind.shape.dim], dtype=np.int64)))
