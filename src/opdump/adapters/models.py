"""Finds the model of `dump_list` that an operator belongs to, its execution, and whether the operator is dumped.

A model is a root module of PyTorch, or a root Cell of MindSpore, whose class or name (given by the program) is in `dump_list`. All other
operators, including those of optimizers, are single operators. Models are numbered from 1 in the order of first calls, the executions
of each from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from opdump.adapters.program_marks import ModelNames
from opdump.plan import DumpPlan, ModelFilter
from opdump.plan.selection import ModelSelection, OperatorRange
from opdump.plan.unmatched_names import ChoseNothing, ListMatches
from opdump.recorder import LiveTensor
from opdump.records import IO, OpRecord


class SupportsNames(Protocol):
    """Has the names that a configuration may use for an operator."""

    def of(self, op_name: str) -> frozenset[str]:
        """All names that refer to the operator with this full name."""


class _Ranges:
    """Follows the `opname_range` entries of a model through one execution.

    A name may refer to several operators. A range begins at the first operator of `begin` and ends at the last consecutive one of `end`.
    """

    def __init__(self, ranges: Sequence[OperatorRange]) -> None:
        self._ranges = ranges
        self.opened: set[OperatorRange] = set()
        """The ranges that contained an operator in any execution."""
        self.restart()

    def restart(self) -> None:
        self._inside = [False] * len(self._ranges)
        self._ending = [False] * len(self._ranges)
        self._over = [False] * len(self._ranges)

    def contains(self, names: frozenset[str]) -> bool:
        """Whether the next operator in execution order is in a range. Must be called once for each operator."""
        found = not self._ranges
        for place, each in enumerate(self._ranges):
            if self._over[place]:
                continue
            begins, ends = each.begin in names, each.end in names
            # The previous operator was the last one of `end`.
            if self._ending[place] and not ends:
                self._inside[place] = self._ending[place] = False
            if ends and not begins and not self._inside[place]:
                self._over[place] = True  # the end came before the beginning
                continue
            if begins:
                self._inside[place] = True
            if self._inside[place]:
                found = True
                self.opened.add(each)
            self._ending[place] = self._inside[place] and ends
        return found


@dataclass(slots=True, eq=False)
class _Model:
    """A model, with the number of its executions."""

    name: str
    model_id: int
    chosen: ModelFilter
    ranges: _Ranges
    executions: int = 0


class Models:
    """Assigns operators to models. `given` has the names that the program gives to modules, `names` the names of operators.

    `unwrapped` returns a root module and the modules that it only wraps, outermost first; `class_name` returns the name of a module's class.
    """

    def __init__(
        self,
        plan: DumpPlan,
        given: ModelNames,
        names: SupportsNames,
        wants: Callable[[int], bool],
        *,
        unwrapped: Callable[[Any], Sequence[Any]],
        class_name: Callable[[Any], str],
    ) -> None:
        """`wants` returns whether a step, or an execution of a model, with this number is recorded."""
        self._unwrapped = unwrapped
        self._class_name = class_name
        self._plan = plan
        self._wants = wants
        self._given = given
        self._models: dict[tuple[int, str], _Model] = {}
        self._calls: dict[int, int] = {}
        """The number of calls of root modules that are not models, by identity."""
        self._notes: list[str] = []
        self._modules: dict[int, Any] = {}
        """Keeps modules alive whose identity is used as a key."""
        self._running: dict[int, _Model] = {}
        self._lock = threading.Lock()
        # An entry without a name also selects among the operators outside of all models.
        nameless: tuple[ModelSelection, ...] = tuple(entry for entry in plan.models or () if entry.model_name is None)
        self._single = ModelFilter(nameless or (ModelSelection(),))
        self._single_ranges = _ranges_of(self._single)
        self.names = names
        self._matches = ListMatches(plan.models, plan.dialect, "operator or module that ran")

    def begins(self, module: Any, graph_id: int) -> int | None:
        """Note the call of a root module. Returns the number of the model's execution; None if the module is not a model."""
        original = self._unwrapped(module)[0]
        names = self._names_of(module)
        name = self._wanted_of(names)
        with self._lock:
            self._matches.model(names)
            if name is None:
                self._running.pop(graph_id, None)
                self._calls[id(original)] = self._calls.get(id(original), 0) + 1
                self._modules.setdefault(id(original), original)
                return None
            model = self._models.get((id(original), name))
            if model is None:
                self._modules[id(original)] = original
                chosen = ModelFilter.of(self._plan.models, (name,))
                model = _Model(name, len(self._models) + 1, chosen, _ranges_of(chosen))
                self._models[id(original), name] = model
            model.executions += 1
            model.ranges.restart()
            self._running[graph_id] = model
            return model.executions - 1

    def is_wanted(self, module: Any) -> bool:
        """Whether a module's name (given by the program) or class is in `dump_list`. If so, it is a model, whatever it contains."""
        return self._wanted_of(self._names_of(module)) is not None

    def _names_of(self, module: Any) -> list[str]:
        wrapped = self._unwrapped(module)
        given = [name for each in wrapped if (name := self._given.of(each)) is not None]
        return given + [self._class_name(each) for each in wrapped]

    def _wanted_of(self, names: Sequence[str]) -> str | None:
        wanted = {entry.model_name for entry in self._plan.models or () if entry.model_name is not None}
        return next((name for name in names if name in wanted), None)

    def renamed(self, module: Any, name: str) -> None:
        """The program has named a root module. Its earlier calls were not counted as executions of that model, so add a warning."""
        with self._lock:
            calls = max((self._calls.get(id(each), 0) for each in self._unwrapped(module)), default=0)
            if calls and any(entry.model_name == name for entry in self._plan.models or ()):
                self._notes.append(
                    f"name_model: {name!r} was called {calls} times before it had this name; these calls are missing. "
                    "Name it before its first call"
                )

    def placed(self, op: OpRecord, *, inside: bool) -> OpRecord:
        """The operator with its model and execution and, if it is not dumped, the reason.

        `inside`: it runs in the network of its graph, or computes one of its gradients.
        """
        model = self._running.get(op.graph_id) if inside else None
        names = self.names.of(op.op_name)
        if model is None:
            wanted = self._plan.single_operators and self._wants(op.step)
            chosen, ranges = self._single, self._single_ranges
        else:
            wanted = self._wants(model.executions - 1)
            chosen, ranges = model.chosen, model.ranges
        in_range = ranges.contains(names)
        self._matches.operator(chosen.entries, op.op_name, names, op.op_type)
        placed = self._of(op, model)
        if op.skip in ("view", "allocation", "metadata"):
            return placed
        # An entry with ranges and without layers selects only the operators in the ranges.
        entries = chosen.entries
        by_name = any(not each.ranges if each.layers is None else names & {*each.layers} for each in entries)
        by_range = in_range and any(entry.ranges for entry in entries)
        if not (wanted and (by_name or by_range)):
            return replace(placed, skip=op.skip or "not selected")
        return placed

    def without_excluded(self, op: OpRecord, io: IO, lives: Sequence[LiveTensor]) -> Sequence[LiveTensor]:
        chosen = self._single
        if op.net_name:
            chosen = ModelFilter.of(self._plan.models, (op.net_name,))
        if not any(entry.type_exclusions or entry.name_exclusions for entry in chosen.entries):
            return lives
        slots: frozenset[int] = frozenset()
        for name in self.names.of(op.op_name):
            slots |= chosen.excluded(name, op.op_type, io)
        return [live for live in lives if live[0] not in slots]

    def unmatched(self) -> list[str]:
        self._warn_of_ranges()
        return [*self._notes, *self._matches.texts()]

    @property
    def executions(self) -> dict[str, int]:
        """The number of executions of each model in `dump_list`, by name; the maximum of models with the same name."""
        found: dict[str, int] = {}
        for model in self._models.values():
            found[model.name] = max(found.get(model.name, 0), model.executions)
        return found

    @property
    def seen(self) -> tuple[str, ...]:
        return self._matches.models_seen

    @property
    def chose_nothing(self) -> ChoseNothing:
        """Why `dump_list` selected no operator that ran."""
        self._warn_of_ranges()
        return self._matches.chose_nothing

    def _warn_of_ranges(self) -> None:
        for model in self._models.values():
            self._matches.opened(model.ranges.opened)
        self._matches.opened(self._single_ranges.opened)

    @staticmethod
    def _of(op: OpRecord, model: _Model | None) -> OpRecord:
        if model is None:
            return replace(op, net_name="")
        return replace(op, net_name=model.name, graph_id=model.model_id, step=model.executions - 1)


def _ranges_of(chosen: ModelFilter) -> _Ranges:
    return _Ranges([each for entry in chosen.entries for each in entry.ranges])
