"""Selects the nodes of a model to record, and the values of a run that are needed for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opdump.adapters.graph_runtime import OperatorSelection
from opdump.adapters.onnxruntime.model_graph import ModelNode
from opdump.plan import DumpPlan
from opdump.plan.list_matches import ListMatches
from opdump.plan.model_selection import ModelFilter
from opdump.records import SkipReason

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
