"""Determines once what a plan records of a model: the nodes that run, the recorded ones, and the values needed for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from opdump.adapters.onnxruntime.bodies import values_around
from opdump.adapters.onnxruntime.hazards import has_random_operators, is_random
from opdump.adapters.onnxruntime.model_file import ModelFile
from opdump.adapters.onnxruntime.model_graph import ModelNode
from opdump.adapters.onnxruntime.node_emitter import NOT_SHOWN
from opdump.adapters.onnxruntime.run_once import RunOnce
from opdump.adapters.onnxruntime.selection import Choice, ChosenNode, choose, chosen_within, matches_of
from opdump.plan import DumpPlan, StepSet
from opdump.plan.list_matches import ChoseNothing
from opdump.plan.model_selection import ModelFilter

_NO_LIMIT: Final = "memory_limit has no effect: a second run of the model's random operators returns other values"
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
    ) -> RecordedModel:
        """`names` are those of the model. `is_limited`: values are split over several runs because of the memory limit."""
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
        constants = ran.constants()
        sources = _value_sources(ran, nodes, constants)
        within = _chosen_in_bodies(nodes, plan, model_filter, sources, once, notes)
        choice = _with_values_around(choose(nodes, plan, model_filter, sources), within)
        if is_random_model and is_limited and once is None:
            notes.append(_NO_LIMIT)
        if choice.watched:
            notes.append(_WATCHED)
        made = {value for node in nodes for value in node.outputs}.difference(() if once is None else once.values)
        wanted = tuple(value for value in choice.values if value in made and value not in constants)
        return cls(
            ran, nodes, once, is_random_model, not model_filter.is_empty, choice, within, sources, wanted, tuple(notes),
            chose_nothing,
        )  # fmt: skip


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
            notes.append(NOT_SHOWN.format(node.name, "a second run of random operators returns other values"))
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
