"""Finds the model of `dump_list` that an operator belongs to, its execution, and whether it is dumped.

A root module of PyTorch, or a root Cell of MindSpore, whose class (or the name that the program gave it) is named in `dump_list` is a model;
everything else, optimizers among it, is single operators. Models are numbered from 1 in the order of first calls, executions of each
from 0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from opdump.adapters.program_marks import ModelNames
from opdump.plan import DumpPlan, ModelFilter
from opdump.plan.list_matches import ChoseNothing, ListMatches
from opdump.plan.model_selection import ModelSelection, OperatorRange
from opdump.recorder import LiveTensor
from opdump.records import IO, OpRecord


class SupportsNames(Protocol):
    """What knows the names that a configuration may use for an operator."""

    def of(self, op_name: str) -> frozenset[str]:
        """Every name that means the operator with this full name."""


class _Ranges:
    """Follows the `opname_range` entries of a model through one execution.

    A name may mean several operators: the range begins with the first of its `begin` and ends with the last of its `end`.
    """

    def __init__(self, ranges: Sequence[OperatorRange]) -> None:
        self._ranges = ranges
        self.opened: set[OperatorRange] = set()
        """Those that contained something in some execution."""
        self.restart()

    def restart(self) -> None:
        self._inside = [False] * len(self._ranges)
        self._ending = [False] * len(self._ranges)
        self._over = [False] * len(self._ranges)

    def contains(self, names: frozenset[str]) -> bool:
        """Whether the next operator in execution order lies in a range; to be asked once for each."""
        found = not self._ranges
        for place, each in enumerate(self._ranges):
            if self._over[place]:
                continue
            begins, ends = each.begin in names, each.end in names
            if self._ending[place] and not ends:
                self._inside[place] = self._ending[place] = False
            if ends and not begins and not self._inside[place]:
                self._over[place] = True  # its end came first
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
    """A model, and how often it ran."""

    name: str
    model_id: int
    chosen: ModelFilter
    ranges: _Ranges
    executions: int = 0


class Models:
    """Places operators in models. `given` are names that the program gives to modules, `names` those of operators.

    `unwrapped` gives a root module and the modules that it only wraps, outermost first; `class_name` what the class of one is called.
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
        """`wants` says of the number of a step, or of an execution of a model, whether it is recorded."""
        self._unwrapped = unwrapped
        self._class_name = class_name
        self._plan = plan
        self._wants = wants
        self._given = given
        self._models: dict[tuple[int, str], _Model] = {}
        self._calls: dict[int, int] = {}
        """How often root modules were called that are no models, by identity."""
        self._notes: list[str] = []
        self._modules: dict[int, Any] = {}
        """Keeps the modules alive whose identity stands for a model."""
        self._running: dict[int, _Model] = {}
        self._lock = threading.Lock()
        # An entry without a name chooses among the operators outside of every model too.
        nameless: tuple[ModelSelection, ...] = tuple(entry for entry in plan.models or () if entry.model_name is None)
        self._single = ModelFilter(nameless or (ModelSelection(),))
        self._single_ranges = _ranges_of(self._single)
        self.names = names
        self._matches = ListMatches(plan.models, plan.dialect, "operator and no module that ran")

    def begins(self, module: Any, graph_id: int) -> int | None:
        """A root module is called; which execution of a model this is, None where it is no model."""
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
        """Whether a name that the program gave a module, or its class, is in `dump_list`: then it is a model, whatever it consists of."""
        return self._wanted_of(self._names_of(module)) is not None

    def _names_of(self, module: Any) -> list[str]:
        wrapped = self._unwrapped(module)
        given = [name for each in wrapped if (name := self._given.of(each)) is not None]
        return given + [self._class_name(each) for each in wrapped]

    def _wanted_of(self, names: Sequence[str]) -> str | None:
        wanted = {entry.model_name for entry in self._plan.models or () if entry.model_name is not None}
        return next((name for name in names if name in wanted), None)

    def renamed(self, module: Any, name: str) -> None:
        """The program has just named a root module: its calls before were no executions of that model."""
        with self._lock:
            calls = max((self._calls.get(id(each), 0) for each in self._unwrapped(module)), default=0)
            if calls and any(entry.model_name == name for entry in self._plan.models or ()):
                self._notes.append(
                    f"name_model: {name!r} was called {calls} times before it had this name; these are missing. "
                    "Name it before its first call"
                )

    def placed(self, op: OpRecord, *, inside: bool) -> OpRecord:
        """The operator with its model and execution, and the reason where it is not dumped.

        `inside`: it runs in the network of its graph or computes a gradient of it.
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
        # An entry with ranges and no layers takes what lies in them.
        layers = [entry for entry in chosen.entries if entry.layers is not None or not entry.ranges]
        by_name = any(entry.layers is None or not names.isdisjoint(entry.layers) for entry in layers)
        by_range = in_range and any(entry.ranges for entry in chosen.entries)
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
        """How often each model of `dump_list` ran, by its name; the most of those with one name."""
        found: dict[str, int] = {}
        for model in self._models.values():
            found[model.name] = max(found.get(model.name, 0), model.executions)
        return found

    @property
    def seen(self) -> tuple[str, ...]:
        return self._matches.models_seen

    @property
    def chose_nothing(self) -> ChoseNothing:
        """Why `dump_list` chose no operator of those that ran."""
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
