"""Adds probes to the graph that is executed for a function, so that its operators are seen; and operators that are computed apart.

Operators that run equally often are handed over together, some tens of tensors at a time, as a block.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final

import tensorflow as tf

from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, NamedOperator
from opdump.adapters.tensorflow.attributes import arguments_of, device_of
from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.functions.edits import MINE, Edits, left_alone, order_regions, readers_of
from opdump.adapters.tensorflow.functions.executed import PLUMBING, ExecutedGraph, Region, Tensor
from opdump.adapters.tensorflow.functions.function_parts import FunctionPart, running_order
from opdump.adapters.tensorflow.functions.library import HANDLES, LibraryNode, NodeSlot, reason_of_handles
from opdump.adapters.tensorflow.functions.outcomes import Outcome, Outcomes
from opdump.adapters.tensorflow.functions.probe import CurrentCall, Probe
from opdump.adapters.tensorflow.operator_kinds import PASSES_ON, SKIPS, ModelSlots
from opdump.adapters.tensorflow.xla import note_of_call, type_of
from opdump.records import IO, SkipReason

_STRING: Final = tf.string.as_datatype_enum
_TENSORS: Final = 64
"""That a probe is given at a time."""
_FALLIBLE: Final = re.compile(
    r"Assert|CheckNumerics|EnsureShape|PyFunc|EagerPyFunc|Gather|ResourceGather|Scatter|TensorScatter|SparseSoftmax|LookupTable|Print"
)
"""May fail by what they are given, or run Python of the program: what came before is handed over first."""


@dataclass(frozen=True, slots=True)
class BodyOperators:
    """A function within the copy: the operators in it that leave no data, and those that leave some."""

    skipped: tuple[NamedOperator, ...]
    emitted: tuple[NamedOperator, ...]
    reasons: Counter[SkipReason]
    """Of those that leave none, where it runs."""
    not_executed: Counter[SkipReason]
    """Of all, where it does not."""
    counted: int
    """The number of the body that runs as often; 0 runs once in each call."""

    @classmethod
    def of(cls, operators: Sequence[NamedOperator], counted: int) -> BodyOperators:
        skipped = tuple(operator for operator in operators if operator.skip)
        emitted = tuple(operator for operator in operators if not operator.skip)
        reasons: Counter[SkipReason] = Counter(operator.skip for operator in skipped)
        not_executed: Counter[SkipReason] = Counter()
        not_executed["not executed"] = len(operators)
        return cls(skipped, emitted, reasons, not_executed, counted)


@dataclass(slots=True)
class _SeenSlot:
    """What is taken of a slot; `tensor` may be the type of what no array stands for."""

    slot: int
    argument: str
    source: str
    tensor: Tensor | str


@dataclass(slots=True)
class _Seen:
    """An operator that leaves data, and its node."""

    operator: NamedOperator
    node: str
    inputs: list[_SeenSlot]
    outputs: list[_SeenSlot]


@dataclass(slots=True)
class _Group:
    """Operators that are handed over together."""

    region: Region
    stage: int
    device: str
    seen: list[_Seen] = field(default_factory=list)
    tensors: dict[Tensor, int] = field(default_factory=dict)
    bodies: list[int] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    """Nodes behind which it is."""


class Observed:
    """An executed graph with what observes the operators of the program in it."""

    def __init__(
        self,
        capture: Capture,
        selection: ModelSlots,
        parts: Sequence[FunctionPart],
        graph: ExecutedGraph,
        outcomes: Outcomes,
        current: CurrentCall,
    ) -> None:
        self.probes: list[Probe] = []
        self._capture = capture
        self._selection = selection
        self._parts = parts
        self._graph = graph
        self._outcomes = outcomes
        self._current = current
        self._edits = Edits(graph)
        self._task_ids = itertools.count()
        self._operators: dict[int, list[NamedOperator]] = {}
        self._seen: list[_Seen] = []
        self._apart: dict[tuple[int, str, str], str | None] = {}
        self._shown: dict[str, str] = {}
        """Node -> the operator that it is."""
        self._counted: dict[int, int] = {}

    def build(self) -> None:
        graph = self._graph
        program = [(part, node, self._outcomes.of(part, node)) for part, node in running_order(self._parts[0])]
        for part, node, outcome in program:
            if outcome.node and not outcome.inside:
                self._shown[outcome.node] = part.names[node.node.name]
        made = [*self._made_by_runtime()]
        for part, node, outcome in program:
            self._add_operator(part, node, outcome)
        for operator, name in made:
            self._see(operator, name, self._graph.outputs[name], partial(self._inputs_of_made, name))
        preferred = [each.node for each in self._seen]
        order = graph.place(preferred, {name for name, node in graph.nodes.items() if _FALLIBLE.match(node.op)})
        place = {name: number for number, name in enumerate(order)}
        self._seen.sort(key=lambda each: place[each.node])
        groups = self._grouped()
        self._count_bodies(groups, place)
        self._copy_what_is_left_alone(groups)
        self._add_probes(groups)

    def bodies(self) -> Iterator[BodyOperators]:
        for part in self._parts:
            yield BodyOperators.of(self._operators[part.number], self._counted[part.number])

    def _made_by_runtime(self) -> Iterator[tuple[NamedOperator, str]]:
        """The nodes that are no operators of the program, in the place of some."""
        for name, node in self._graph.nodes.items():
            if name in self._shown or node.op in SKIPS or node.op in PASSES_ON or node.op in PLUMBING:
                continue
            if self._graph.named[self._graph.paths[name]] != name or self._is_of_program(self._graph.paths[name]):
                continue
            shown = self._graph.paths[name]
            skip = self._selection.skip_of(node.op, shown)
            if not skip and not any(slot.dtype not in HANDLES for slot in self._graph.outputs[name]):
                continue
            if not skip:
                self._shown[name] = shown
                yield NamedOperator(node.op, shown, next(self._task_ids), arguments_of(node)), name

    def _is_of_program(self, path: str) -> bool:
        return path in self._paths

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(f"{part.path}{node.node.name}" for part in self._parts for node in part.body.nodes)

    def _add_operator(self, part: FunctionPart, node: LibraryNode, outcome: Outcome) -> None:
        name = part.names[node.node.name]
        skip = self._skip_of(part, node, name, outcome)
        home = outcome.node
        if not skip and outcome.kind == "apart":
            made = self._computed_apart(part, node, "", outcome)
            # What only passes an argument on, which nothing else reads, is not there.
            lost: SkipReason = "not executed" if node.node.op in PASSES_ON else "not observed"
            skip, home = ("", made) if made is not None else (lost, "")
        arguments = arguments_of(node.node)
        if home:
            arguments |= device_of(self._graph.nodes[home].device)
        if outcome.inside and not skip:
            arguments |= {"source": "computed apart", "inside": outcome.inside}
        elif outcome.is_changed and home:
            arguments["executed_as"] = self._graph.nodes[home].op
        if skip in ("", "not selected") and type_of(node.node) != node.node.op:
            self._capture.note(note_of_call(name, node.node))
        operator = NamedOperator(
            type_of(node.node), name, next(self._task_ids), arguments, part.stacks[node.node.name], skip=skip
        )
        self._operators.setdefault(part.number, []).append(operator)
        if not skip:
            self._see(operator, home, node.outputs, partial(self._inputs_of, part, node, home, outcome))

    def _skip_of(self, part: FunctionPart, node: LibraryNode, name: str, outcome: Outcome) -> SkipReason:
        if outcome.kind == "not executed":
            return "not executed"
        readers = [part.names[reader] for reader in part.readers.get(node.node.name, ())]
        reason = self._selection.skip_of(type_of(node.node), name, readers)
        if reason:
            return reason
        if outcome.kind == "constant":
            return outcome.kind
        if not node.known or (outcome.kind == "ran" and not outcome.node):
            return "not observed"
        return reason_of_handles(node, wants_inputs=self._selection.wants_inputs)

    def _see(
        self,
        operator: NamedOperator,
        home: str,
        outputs: Sequence[NodeSlot],
        inputs: Callable[[], Iterable[tuple[NodeSlot, str, Tensor]]],
    ) -> None:
        """Has an operator leave data: what its node gives in these slots, and `inputs`, with their sources."""
        graph, seen = self._graph, _Seen(operator, home, [], [])
        self._seen.append(seen)

        def add(found: list[_SeenSlot], io: IO, slot: NodeSlot, source: str, tensor: Tensor) -> None:
            excluded = self._selection.excluded(operator.op_name, operator.op_type, io)
            dtype = graph.dtype(tensor)
            if dtype not in HANDLES and slot.slot not in excluded:
                found.append(_SeenSlot(slot.slot, slot.argument, source, "string" if dtype == _STRING else tensor))

        if self._selection.wants_outputs:
            for slot in outputs[: len(graph.outputs[home])]:
                add(seen.outputs, "output", slot, "", (home, slot.slot))
        if self._selection.wants_inputs:
            for slot, source, tensor in inputs():
                add(seen.inputs, "input", slot, source, tensor)

    def _inputs_of(
        self, part: FunctionPart, node: LibraryNode, home: str, outcome: Outcome
    ) -> Iterator[tuple[NodeSlot, str, Tensor]]:
        given: Sequence[Tensor | None] = self._graph.inputs[home]
        if outcome.is_changed or (outcome.inside and outcome.kind == "ran"):
            given = [self._tensor(part, slot.reference, home) for slot in node.inputs]
        for slot in node.inputs:
            tensor = given[slot.slot]
            if tensor is not None:
                yield slot, self._source(part, slot, tensor), tensor

    def _inputs_of_made(self, home: str) -> Iterator[tuple[NodeSlot, str, Tensor]]:
        for number, tensor in enumerate(self._graph.inputs[home]):
            shown = self._shown.get(tensor[0])
            yield NodeSlot(number, "", "", 0), "" if shown is None else f"{shown}:{tensor[1]}", tensor

    def _source(self, part: FunctionPart, slot: NodeSlot, tensor: Tensor) -> str:
        """Who makes what an operator reads in a slot; empty of a constant that the runtime made in the place of one of the program."""
        shown = self._shown.get(tensor[0])
        if shown is not None:
            return f"{shown}:{tensor[1]}"
        executed, made = self._graph.nodes[tensor[0]], self._outcomes.maker(part, slot.reference)
        if made is None or not executed.op == made[1].node.op == "Const":
            return part.source(slot)
        return part.source(slot) if executed.attr["value"] == made[1].node.attr["value"] else ""

    def _tensor(self, part: FunctionPart, reference: str, near: str) -> Tensor | None:
        """The tensor of the copy that is one of a part, for who runs where the node `near` does; None where there is none."""
        found = self._outcomes.executed(part, reference)
        if found is not None:
            return found
        made = self._outcomes.maker(part, reference)
        if made is None:
            return None
        maker, node, slot = made
        outcome = self._outcomes.of(maker, node)
        if outcome.kind not in ("apart", "constant") and node.node.op != "Const":
            return None
        name = self._computed_apart(maker, node, near if self._outcomes.is_fixed(maker, node) else "", outcome)
        return None if name is None else (name, slot)

    def _computed_apart(self, part: FunctionPart, node: LibraryNode, near: str, outcome: Outcome) -> str | None:
        """The node of an operator that is computed apart; None where what it reads cannot be had."""
        key = (part.number, node.node.name, near)
        if key not in self._apart:
            self._apart[key] = None
            self._apart[key] = self._compute_apart(part, node, near)
        return self._apart[key]

    def _compute_apart(self, part: FunctionPart, node: LibraryNode, near: str) -> str | None:
        given: dict[int, Tensor | None] = {}
        fixed = []
        for slot in node.inputs:
            made = self._outcomes.maker(part, slot.reference)
            if made is not None and self._outcomes.is_fixed(made[0], made[1]):
                fixed.append(slot)
            else:
                given[slot.slot] = self._tensor(part, slot.reference, near)
        for slot in fixed:
            close = near or next((each[0] for each in given.values() if each is not None), "")
            given[slot.slot] = self._tensor(part, slot.reference, close)
        tensors = [given[slot.slot] for slot in node.inputs]
        read = [each for each in tensors if each is not None]
        if len(read) != len(tensors):
            return None
        places = [*(each[0] for each in read), *([near] if near else ())]
        device = self._graph.nodes[places[0]].device if places else ""
        after = [near] if near and not any(each[0] == near for each in read) else []
        return self._edits.apart(node, read, after, device)

    def _grouped(self) -> list[_Group]:
        groups: list[_Group] = []
        current: dict[tuple[Region, int, str], _Group] = {}
        for each in self._seen:
            region, stage = self._graph.regions[each.node], self._graph.stages[each.node]
            device = self._graph.nodes[each.node].device
            group = current.get((region, stage, device))
            if group is None or len(group.tensors) >= _TENSORS:
                group = _Group(region, stage, device)
                groups.append(group)
                current[region, stage, device] = group
            group.seen.append(each)
            for slot in (*each.inputs, *each.outputs):
                if not isinstance(slot.tensor, str):
                    group.tensors.setdefault(slot.tensor, len(group.tensors))
            if not each.outputs or any(isinstance(slot.tensor, str) for slot in each.outputs):
                group.anchors.append(each.node)
        return groups

    def _count_bodies(self, groups: list[_Group], place: Mapping[str, int]) -> None:
        """Has the first probe of each body say that it runs."""
        nodes: dict[int, list[str]] = defaultdict(list)
        for part in self._parts:
            for node in part.body.nodes:
                name = self._graph.named.get(f"{part.path}{node.node.name}")
                if name is not None and self._graph.nodes[name].op not in PLUMBING:
                    nodes[part.number].append(name)
        for part in self._parts:
            if part.around is None:
                self._counted[part.number] = 0
                continue
            own = nodes[part.number]
            self._counted[part.number] = self._counted[part.around.number]
            if part.is_call or not own:
                continue
            self._counted[part.number] = part.number
            regions, stages = self._graph.regions, self._graph.stages
            first = min(own, key=lambda name: (len(regions[name].frame), len(regions[name].controls), place[name]))
            region = regions[first]
            group = next((each for each in groups if each.region == region), None)
            if group is None:
                group = _Group(region, stages[first], self._graph.nodes[first].device, anchors=[first])
                groups.append(group)
            group.bodies.append(part.number)

    def _copy_what_is_left_alone(self, groups: Sequence[_Group]) -> None:
        looked_at = {tensor for group in groups for tensor in group.tensors}
        looked_at |= {each for name, read in self._graph.inputs.items() if name.startswith(MINE) for each in read}
        wanted = looked_at & left_alone(self._graph)
        copies = {}
        for tensor, readers in readers_of(self._graph, wanted).items():
            copies[tensor] = self._edits.copied(tensor, readers)
        if copies:
            for group in groups:
                group.tensors = {copies.get(tensor, tensor): at for tensor, at in group.tensors.items()}
                for each in group.seen:
                    for slot in (*each.inputs, *each.outputs):
                        if not isinstance(slot.tensor, str):
                            slot.tensor = copies.get(slot.tensor, slot.tensor)

    def _add_probes(self, groups: list[_Group]) -> None:
        graph = self._graph
        last: dict[Region, list[tuple[int, str]]] = {}
        groups.sort(key=lambda each: each.stage)
        for group in groups:
            texts: list[str] = []
            block = Block(
                [
                    BlockOperator(
                        each.operator,
                        _block_slots(each.inputs, group.tensors, texts),
                        _block_slots(each.outputs, group.tensors, texts),
                    )
                    for each in group.seen
                ]
            )
            probe = Probe(self._current, block, texts, group.bodies)
            self.probes.append(probe)
            before = last.setdefault(group.region, [])
            after = [*dict.fromkeys(group.anchors), *(name for _, name in before[-1:])]
            name = self._edits.probe(probe, list(group.tensors), after, group.device)
            before.append((group.stage, name))
        order_regions(
            self._edits, graph, last, {name for name, node in graph.nodes.items() if _FALLIBLE.match(node.op)}
        )


def _block_slots(seen: Sequence[_SeenSlot], tensors: Mapping[Tensor, int], texts: list[str]) -> tuple[BlockSlot, ...]:
    """Slots of a block with these tensors, and the texts behind them, which it adds to."""
    found = []
    for each in seen:
        if isinstance(each.tensor, str):
            texts.append(each.tensor)
            place = len(tensors) + len(texts) - 1
        else:
            place = tensors[each.tensor]
        found.append(BlockSlot(each.slot, each.argument, each.source, place))
    return tuple(found)
