"""Lists operators that launch no kernel (views, allocations) when they first run, and only counts them from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from opdump.adapters.torch.following import Following
from opdump.adapters.torch.naming import Naming
from opdump.adapters.torch.private_names import autograd_node, graph_task
from opdump.adapters.torch.provenance import Provenance
from opdump.adapters.torch.schemas import Found, OperatorSchema, tensors_among, tensors_returned
from opdump.adapters.torch.sites import Site
from opdump.adapters.torch.training import TrainingObserver
from opdump.recorder import LiveTensor, Recorder, isolated_from_program
from opdump.records import OpRecord

Describe = Callable[[OpRecord, Site, OperatorSchema, list[LiveTensor], list[Found]], object]
"""Adds an operator to its graph, with its inputs and outputs."""


class WithoutKernel:
    """Records these operators after they have run."""

    def __init__(
        self, recorder: Recorder, observer: TrainingObserver, naming: Naming, provenance: Provenance, describe: Describe
    ) -> None:
        self._recorder = recorder
        self._observer = observer
        self._naming = naming
        self._provenance = provenance
        self._describe = describe
        self.following: Following | None = None

    @isolated_from_program
    def ran(
        self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, func: Any = None
    ) -> None:
        """List or count an operator that has run. `func` is the operator; None if it ran outside of the mode."""
        following, naming = self.following, self._naming
        if following is not None:
            following.pause()
        if self._is_known_in_gradient(schema):
            naming.next_order()
            self._recorder.count_op(schema.kind)
            if following is not None:
                following.learns_listed(func, schema, args, kwargs, result, None)
            return
        op, site, link = naming.identify(schema, args, kwargs)
        if link is not None:
            naming.links.begins(link)
        if op is None:
            self._recorder.count_op(schema.kind)
        else:
            self._recorder.skip_op(op)
        if op is not None or schema.kind == "allocation":
            outputs = tensors_returned(schema, args, kwargs, result)
            if schema.kind == "allocation":
                for slot, _, tensor in outputs:
                    self._provenance.unwritten.add(site.source(slot))
                    self._provenance.note(tensor, site.source(slot))
            if op is not None:
                source = self._provenance.source
                found = tensors_among(schema.tensors, args, kwargs)
                inputs: list[LiveTensor] = [(slot, name, tensor, source(tensor), "") for slot, name, tensor in found]
                self._describe(op, site, schema, inputs, outputs)
        if following is not None:
            following.learns_listed(func, schema, args, kwargs, result, site, link, is_listed_anew=op is not None)

    def _is_known_in_gradient(self, schema: OperatorSchema) -> bool:
        """Whether the running gradient ran this operator in an earlier step; such a view needs no site or link again."""
        task = graph_task()
        if task < 0 or schema.kind == "allocation" or self._recorder.is_deferring or torch.is_grad_enabled():
            return False
        node: torch.autograd.graph.Node | None = autograd_node()
        if node is None or self._observer.current().recomputing:
            return False
        link = self._naming.links.find(node, task)
        if link is None:
            return False
        return link.views.setdefault(id(schema), self._naming.sites.step) < self._naming.sites.step
