"""Names operators: finds where in the program each one runs, numbers it there, and decides whether it is selected.

`Naming` reads the position of the calling thread (`TrainingObserver`), the program's call stack, and during a backward
the forward operator, through autograd's sequence numbers. It makes the records for the recorder.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import time_ns
from typing import Any

import torch
from torch import is_grad_enabled

from opdump.adapters.models import Models
from opdump.adapters.torch.arguments import arguments_of, json_value
from opdump.adapters.torch.dump_selection import DumpSelection, Spot
from opdump.adapters.torch.forward_links import ForwardLinks
from opdump.adapters.torch.private_names import autograd_node, graph_task
from opdump.adapters.torch.schemas import OperatorSchema, nested_tensors
from opdump.adapters.torch.sites import GRADIENTS, Site, Sites
from opdump.adapters.torch.stacks import StackReader, is_recomputing
from opdump.adapters.torch.training import TrainingObserver
from opdump.adapters.torch.training_position import Position
from opdump.interpreter.frames import calling_frame
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from opdump.records import Frame, OpRecord, Phase

_NO_STACK: Sequence[Frame] = ()


class Link:
    """What a backward operator inherits from its forward operator."""

    __slots__ = ("gradient_scope", "graph_id", "op_name", "spot", "stack", "views")

    def __init__(self, op_name: str, scope: str, graph_id: int, stack: Sequence[Frame], spot: Spot | None) -> None:
        self.op_name = op_name
        self.gradient_scope = GRADIENTS + scope
        self.graph_id = graph_id
        self.stack = stack
        self.spot = spot
        """Where it ran, if marks select operators."""
        self.views: dict[int, int] = {}
        """The step in which its gradient first ran each operator without a kernel, by the identity of the schema."""


class Naming:
    """Makes the records of operators, of all threads."""

    def __init__(
        self,
        plan: DumpPlan,
        recorder: Recorder,
        observer: TrainingObserver,
        *,
        rank_id: int = 0,
        marks: DumpSelection | None = None,
        models: Models | None = None,
    ) -> None:
        self.rank_id = rank_id
        self.net_name = "" if plan.layout_facts.by_model else plan.net_name
        self.sites = Sites()
        self.links: ForwardLinks[Link] = ForwardLinks()
        self.parameter_scopes: dict[int, str] = {}
        """Scopes of the owners of parameters, by the identity of the parameter."""
        self.matched_kernels: set[str] = set()
        self._plan = plan
        self._recorder = recorder
        self._observer = observer
        self._task_id = plan.layout_facts.unknown_id
        """The id of tasks and streams, which exist only on a device."""
        self._marks = marks
        """Selects operators instead of the plan; None if the plan selects them."""
        self._models = models
        self._passed: dict[tuple[int, str], Link] = {}
        self._adjusts = models is not None or plan.mode.failures_only
        self.stacks = StackReader()
        self.named: tuple[int, str, str, int, str, object] = (0, "", "", 0, "", None)
        """The arguments of the last call of `sites.next`."""
        self._order = 0
        self._timestamp = 0
        self._lock = threading.Lock()

    def identify(
        self, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[OpRecord | None, Site, Link | None]:
        """Name the operator that is about to run; return its record, its site, and what its gradient inherits.

        The record is None for an operator without a kernel that was listed before; the link is None if nothing can
        inherit from the operator.
        """
        position = self._observer.current()
        task = graph_task()
        frame = calling_frame(2)
        phase: Phase = position.phase
        call, scope, graph_id = position.call_id, position.scope, position.graph_id
        link: Link | None = None
        gradients = True
        self._release(position, task)
        if task >= 0:
            gradients = is_grad_enabled()
            if position.recomputing or (gradients and is_recomputing(frame)):
                phase, gradients = "recomputation", True
            else:
                phase, call = "backward", ~task  # negative, unlike the number of any call of a network
                # None between two nodes, while the engine accumulates gradients.
                node: torch.autograd.graph.Node | None = autograd_node()
                link = None if node is None else self.links.find(node, task)
                if link is None:
                    scope = GRADIENTS + self.parameter_scopes.get(id(getattr(node, "variable", None)), "Default")
        forward_op, stack = "", _NO_STACK
        where: object = ""
        if link is not None:
            scope, graph_id, stack, forward_op = link.gradient_scope, link.graph_id, link.stack, link.op_name
            where = forward_op
        if stack:
            stack = self.stacks.inside_engine(frame, stack)
        else:  # no forward operator, or its stack was not read
            stack, where = self.stacks.read(frame, position.running)
        # The gradient of an operator is selected with the operator, by the current marks.
        spot = None if link is None else link.spot
        if spot is None and self._marks is not None:
            spot = self._marks.spot(position.enclosing, frame)
        with self._lock:
            named = self.named = graph_id, scope, schema.op_type, call, phase, where
            site = self.sites.next(*named)
            occurrence = site.next_occurrence(self.sites.step)
            timestamp = time_ns() // 1000  # `now()`, without the call
            if timestamp <= self._timestamp:
                timestamp = self._timestamp + 1
            self._timestamp = timestamp
            order = self._order
            self._order = order + 1
        known: Link | None = None
        if gradients:
            known = site.link
            if known is None or known.stack is not stack or known.spot is not spot:
                known = site.link = Link(site.name, scope, graph_id, stack, spot)
        skip = schema.kind
        if skip and site.described:
            return None, site, known
        if not skip and (spot is not None or not site.selected) and not self._is_wanted(site, spot, schema.op_type):
            skip = "not selected"
        # Positional, in the order of the fields: keywords would double the time, and this runs for every operator.
        op = OpRecord(
            schema.op_type,
            site.name,
            timestamp,
            self._observer.step,
            self.net_name,
            graph_id,
            self.rank_id,
            0,
            self._task_id,
            self._task_id,
            order,
            occurrence,
            phase,
            schema.kernel,
            forward_op,
            stack,
            arguments_of(site, schema, args, kwargs),
            skip,
        )
        if self._adjusts:
            op = self._adjusted(op, within=position.root is not None or link is not None)
        return op, site, known

    def _is_wanted(self, site: Site, spot: Spot | None, op_type: str) -> bool:
        if spot is not None and self._marks is not None and not self._marks.takes(spot):
            self._marks.passed_by(spot)
            return False
        return self.is_selected(site, op_type)

    @property
    def counters(self) -> tuple[int, int]:
        """The number of operators named in this step, and the last time stamp."""
        return self._order, self._timestamp

    @counters.setter
    def counters(self, value: tuple[int, int]) -> None:
        self._order, self._timestamp = value

    def scope(self) -> str:
        return self._observer.current().scope

    def here(self) -> OpRecord:
        """A record of the program's current place, without an operator."""
        position = self._observer.current()
        stack, _ = self.stacks.read(calling_frame(1), position.running)
        return OpRecord(
            op_type="",
            op_name="",
            timestamp=self.now(),
            step=self._observer.step,
            rank_id=self.rank_id,
            task_id=self._task_id,
            stream_id=self._task_id,
            order=self.next_order(),
            stack=stack,
        )

    def name_call(self, op_type: str, op_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OpRecord:
        """Name a call that the program is about to make (`dump_level` op); without `op_name`, by its scope."""
        observer = self._observer
        position = observer.current()
        self._release(position, graph_task())
        stack, where = self.stacks.read(calling_frame(1), position.running)
        with self._lock:
            if op_name:
                site = self.sites.value(~position.graph_id, op_name)
            else:
                # Separate numbers (`~graph_id`), so that calls do not change the numbers of operators.
                site = self.sites.next(
                    ~position.graph_id, position.scope, op_type, position.call_id, position.phase, where
                )
            occurrence = site.next_occurrence(self.sites.step)
            timestamp, order = self.now(), self.next_order()
        op = OpRecord(
            op_type=op_type,
            op_name=op_name or site.name.replace("-op", "-call"),
            timestamp=timestamp,
            step=observer.step,
            graph_id=position.graph_id,
            rank_id=self.rank_id,
            task_id=self._task_id,
            stream_id=self._task_id,
            order=order,
            occurrence=occurrence,
            phase=position.phase,
            stack=stack,
            arguments=arguments_of_call(args, kwargs),
        )
        assert self._models is not None, "calls are recorded only in the layout of devices"
        return self._models.placed(op, inside=position.root is not None and position.phase != "optimizer")

    def _release(self, position: Position, task: int) -> None:
        """Release deferred records once a network, a gradient or an optimizer runs: these prove that a new step began."""
        if self._recorder.is_deferring and (task >= 0 or position.root is not None or position.phase == "optimizer"):
            self._recorder.release()

    def _adjusted(self, op: OpRecord, *, within: bool) -> OpRecord:
        """The record, adapted to the mode and the layout. `within`: a network or the gradient of an operator runs."""
        if self._plan.mode.failures_only:
            # Operators that do not fail are not counted, so the number would be wrong.
            op = replace(op, op_name=op.op_name.rpartition("-op")[0])
        if self._models is None:
            return op
        return self._models.placed(op, inside=(within or op.phase == "recomputation") and op.phase != "optimizer")

    def passes_by(self) -> None:
        """Note a forward operator that is not recorded, so that its gradient knows the scope if it fails."""
        task, position = graph_task(), self._observer.current()
        self._release(position, task)
        if task >= 0:
            return
        key = position.graph_id, position.scope
        link = self._passed.get(key)
        if link is None:
            link = self._passed[key] = Link("", position.scope, position.graph_id, (), None)
        self.links.begins(link)

    def is_selected(self, site: Site, op_type: str) -> bool:
        if site.selected is None:
            site.selected = self._plan.selects(site.name, op_type)
            if site.selected and self._plan.selection == "kernels":
                self.matched_kernels.update(self._plan.matching_kernels(site.name, op_type))
        return site.selected

    def now(self) -> int:
        """A time stamp that no other record has."""
        self._timestamp = max(self._timestamp + 1, time_ns() // 1000)
        return self._timestamp

    def next_order(self) -> int:
        self._order += 1
        return self._order - 1

    def restart_order(self) -> None:
        self._order = 0


def arguments_of_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without tensors, as JSON values; the key of a positional one is its position."""
    given = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    return {key: json_value(value) for key, value in given.items() if next(nested_tensors((value,), ""), None) is None}
