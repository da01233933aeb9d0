"""Records values without an operator: parameters, optimizer state, inputs of a network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from opdump.adapters.torch.device_graphs import DeviceGraphs
from opdump.adapters.torch.following import Following
from opdump.adapters.torch.memory import dtype_name, shape_of
from opdump.adapters.torch.naming import Naming
from opdump.adapters.torch.private_names import shard_of
from opdump.adapters.torch.provenance import Provenance
from opdump.adapters.torch.training import TrainingObserver
from opdump.adapters.torch.training_scopes import RootScopes
from opdump.graph import PARAMETER_PREFIX, GraphValue
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from opdump.records import OpRecord

PARAMETER = "Parameter"
"""The op_type of values that are recorded without an operator."""


class ProgramValues:
    """Names these values for the graph, and records those that the dump contains."""

    def __init__(
        self,
        plan: DumpPlan,
        recorder: Recorder,
        observer: TrainingObserver,
        naming: Naming,
        provenance: Provenance,
        graphs: DeviceGraphs,
    ) -> None:
        self._recorder = recorder
        self._observer = observer
        self._naming = naming
        self._provenance = provenance
        self._graphs = graphs
        self._are_saved = plan.saves_values and plan.outputs and plan.selection != "marked"
        self._parameter_names: dict[int, str] = {}
        self.following: Following | None = None

    def seed_parameters(self, module: torch.nn.Module, graph_id: int, scopes: RootScopes | None) -> None:
        """Register the parameters of a root module as sources (not constants), with the scopes of their owners."""
        graph = self._recorder.graph(graph_id)
        for prefix, owner in module.named_modules():
            scope = "Default" if scopes is None else scopes.registered.get(id(owner), scopes.scope)
            for name, parameter in owner.named_parameters(recurse=False):
                if is_lazy(parameter):
                    continue  # no shape and no memory before the first forward
                full_name = f"{prefix}.{name}" if prefix else name
                shard = shard_of(parameter)
                self._provenance.note(shard, f"{PARAMETER_PREFIX}{full_name}")
                graph.add_parameter(GraphValue(full_name, dtype_name(shard), tuple(shard.shape)))
                self._naming.parameter_scopes[id(parameter)] = scope
                self._parameter_names[id(parameter)] = full_name

    def seed_optimizer_state(self, optimizer: torch.optim.Optimizer, graph_id: int) -> None:
        """Register optimizer state (momenta, step counts) as sources (not constants): `Parameter.exp_avg.fc.weight`."""
        graph = self._recorder.graph(graph_id)
        for parameter, state in optimizer.state.items():
            owner = self._parameter_names.get(id(parameter))
            if owner is None or not isinstance(state, Mapping):
                continue
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    shard = shard_of(value)
                    self._provenance.note(shard, f"{PARAMETER_PREFIX}{key}.{owner}")
                    graph.add_parameter(GraphValue(f"{key}.{owner}", dtype_name(shard), shape_of(shard)))

    def record_root_input(self, name: str, graph_id: int, tensor: torch.Tensor) -> None:
        """Record an input of a root module that no operator of this step made as a parameter, as MindSpore does."""
        tensor = shard_of(tensor)
        if not self._provenance.is_written(tensor):
            self._provenance.note(tensor, f"{PARAMETER_PREFIX}{name}")
            self._recorder.graph(graph_id).add_parameter(GraphValue(name, dtype_name(tensor), shape_of(tensor)))
            self.record_value(name, graph_id, tensor)

    def record_value(self, name: str, graph_id: int, tensor: torch.Tensor) -> None:
        """Record a value without an operator: a parameter after its update, an input of the root module."""
        if not self._are_saved or is_lazy(tensor) or self._graphs.is_recording():
            return
        naming, following = self._naming, self.following
        if following is not None:
            if following.value(name, graph_id, shard_of(tensor)):
                return
            following.pause()
        site = naming.sites.value(graph_id, name)
        if not (site.selected or naming.is_selected(site, PARAMETER)):
            return
        # Positional for speed, as in `Naming.identify`: this runs for every parameter in a step.
        op = OpRecord(
            PARAMETER,
            name,
            naming.now(),
            self._observer.step,
            naming.net_name,
            graph_id,
            naming.rank_id,
            0,
            0,
            0,
            naming.next_order(),
            site.next_occurrence(naming.sites.step),
            "optimizer",
        )
        self._recorder.before_op(op, ())
        tensor = shard_of(tensor)
        self._recorder.after_op(op, ((0, "", tensor, "", ""),))
        if following is not None:
            following.learns_value(site, op, tensor)
