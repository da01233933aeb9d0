"""Which operators belong to a model of `dump_list`, in which of its executions, and whether they are dumped.

A root module whose class (or the name that the program gave it) is named in `dump_list` is a model; everything else, optimizers
among it, is single operators. `models` is numbered from 1 in the order of first calls, executions of each from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from opdump.plan import DumpPlan, ModelFilter
from opdump.plan.model_selection import ModelSelection, OperatorRange
from opdump.recorder import LiveTensor
from opdump.records import IO, OpRecord

from .operator_names import names_of
from .training_scopes import class_name, compiled_original


class _Ranges:
    """Follows the `opname_range` entries of a model through one execution."""

    def __init__(self, ranges: Sequence[OperatorRange]) -> None:
        self._ranges = ranges
        self.restart()

    def restart(self) -> None:
        self._inside = [False] * len(self._ranges)
        self._over = [False] * len(self._ranges)

    def holds(self, names: frozenset[str]) -> bool:
        """Whether the next operator in execution order lies in a range; to be asked once for each."""
        found = not self._ranges
        for place, each in enumerate(self._ranges):
            if self._over[place]:
                continue
            begins, ends = each.begin in names, each.end in names
            if ends and not begins and not self._inside[place]:
                self._over[place] = True  # its end came first
                continue
            if begins:
                self._inside[place] = True
            found = found or self._inside[place]
            if ends:
                self._inside[place] = False
        return found


class _Model:
    """A model, and how often it ran."""

    def __init__(self, name: str, model_id: int, chosen: ModelFilter) -> None:
        self.name = name
        self.model_id = model_id
        self.chosen = chosen
        self.executions = 0
        self.ranges = _Ranges([each for entry in chosen.entries for each in entry.ranges])


class Models:
    """Places operators in models. `given` are names that the program gave to modules, by the identity of the module."""

    def __init__(self, plan: DumpPlan, given: Mapping[int, str] | None = None) -> None:
        self._plan = plan
        self._given = given or {}
        self._models: dict[int, _Model] = {}
        self._modules: list[nn.Module] = []
        """Keeps the modules alive whose identity stands for a model."""
        self._running: dict[int, _Model] = {}
        self._lock = threading.Lock()
        # An entry without a name chooses among the operators outside of every model too.
        nameless: tuple[ModelSelection, ...] = tuple(entry for entry in plan.models or () if entry.model_name is None)
        self._single = ModelFilter(nameless or (ModelSelection(),))
        self._single_ranges = _Ranges([each for entry in self._single.entries for each in entry.ranges])
        self.matched: set[str] = set()
        """Names of operators in `dump_list` that some operator had."""
        self.names_seen: set[str] = set()
        """Names in `dump_list` that some model had."""

    def begins(self, module: nn.Module, graph_id: int) -> int | None:
        """A root module is called; which execution of a model this is, None where it is no model."""
        original = compiled_original(module)
        name = self._given.get(id(original)) or class_name(original)
        entries = [entry for entry in self._plan.models or () if entry.model_name == name]
        with self._lock:
            if not entries:
                self._running.pop(graph_id, None)
                return None
            self.names_seen.add(name)
            model = self._models.get(id(original))
            if model is None:
                self._modules.append(original)
                model = _Model(name, len(self._modules), ModelFilter.of(self._plan.models, (name,)))
                self._models[id(original)] = model
            model.executions += 1
            model.ranges.restart()
            self._running[graph_id] = model
            return model.executions - 1

    def placed(self, op: OpRecord, *, inside: bool) -> OpRecord:
        """The operator with its model and execution, and the reason where it is not dumped.

        `inside` says that it runs in the network of its graph or computes a gradient of it.
        """
        model = self._running.get(op.graph_id) if inside else None
        if op.skip in ("view", "allocation", "metadata"):
            return self._of(op, model)
        names = names_of(op.op_name)
        if model is None:
            wanted = self._plan.single_operators and op.step in self._plan.steps
            chosen, ranges = self._single, self._single_ranges
        else:
            wanted = model.executions - 1 in self._plan.steps
            chosen, ranges = model.chosen, model.ranges
        in_range = ranges.holds(names)
        # An entry with ranges and no layers takes what lies in them.
        layers = [entry for entry in chosen.entries if entry.layers is not None or not entry.ranges]
        by_name = any(entry.layers is None or not names.isdisjoint(entry.layers) for entry in layers)
        by_range = in_range and any(entry.ranges for entry in chosen.entries)
        for entry in chosen.entries:
            self.matched.update(names.intersection(entry.layers or ()))
        placed = self._of(op, model)
        if not (wanted and (by_name or by_range)):
            return replace(placed, skip=op.skip or "not selected")
        return placed

    def without_excluded(self, op: OpRecord, io: IO, lives: Sequence[LiveTensor]) -> Sequence[LiveTensor]:
        """The tensors that no blacklist leaves out."""
        chosen = self._single
        if op.net_name:
            chosen = ModelFilter.of(self._plan.models, (op.net_name,))
        if not any(entry.type_exclusions or entry.name_exclusions for entry in chosen.entries):
            return lives
        slots: frozenset[int] = frozenset()
        for name in names_of(op.op_name):
            slots |= chosen.excluded(name, op.op_type, io)
        return [live for live in lives if live[0] not in slots]

    def unmatched(self) -> list[str]:
        """What `dump_list` names and nothing had, for a warning at the end."""
        entries = self._plan.models or ()
        models = {entry.model_name for entry in entries if entry.model_name} - self.names_seen
        layers = {name for entry in entries for name in entry.layers or ()} - self.matched
        return [
            *(f"dump_list: no root module is of the class, or was given the name, {name!r}" for name in sorted(models)),
            *(f"dump_list: {name!r} is no operator and no module that ran" for name in sorted(layers)),
        ]

    @staticmethod
    def _of(op: OpRecord, model: _Model | None) -> OpRecord:
        if model is None:
            return replace(op, net_name="")
        return replace(op, net_name=model.name, graph_id=model.model_id, step=model.executions - 1)
