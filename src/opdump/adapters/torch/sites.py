"""Stable full names for operators: the same place of the program has the same name in every step.

A name is a scope and `{op_type}-op{id}`; ids are unique in a graph, so that the last component alone identifies an operator
there. An operator is identified by its scope, its type, its line and its position among the operators alike in these within one
call of the root module, one `optimizer.step`, or one backward; gradient accumulation and repeated calls repeat names, and
`occurrence` counts the repetitions within a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GRADIENTS = "Gradients/"


@dataclass(slots=True, eq=False)
class Site:
    """A place of the program that runs an operator, and what is the same each time that it does."""

    name: str
    step: int = -1
    """Serial number of the step in which `occurrences` counts."""
    occurrences: int = 0
    selected: bool | None = None
    """Whether the plan's `kernels` take it; None before it was asked."""
    described: bool = False
    """Whether it stands in the graph."""
    raw_arguments: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    link: Any = None
    """What its gradient inherits; the owner of the sites sets and reads it."""

    def source(self, slot: int) -> str:
        """`{name}:{slot}`, the source that an output is."""
        sources = self.sources
        if slot >= len(sources):
            sources.extend(f"{self.name}:{number}" for number in range(len(sources), slot + 1))
        return sources[slot]

    def next_occurrence(self, step: int) -> int:
        """How often it ran in this step before; counts this time."""
        if self.step != step:
            self.step = step
            self.occurrences = 0
        self.occurrences += 1
        return self.occurrences - 1


@dataclass(slots=True, eq=False)
class _Alike:
    """The sites of operators that differ in their position alone, and the position in each call that runs in this step."""

    sites: list[Site] = field(default_factory=list)
    step: int = -1
    call: object = None
    position: int = 0
    """The next one in `call`."""
    others: dict[object, int] = field(default_factory=dict)
    """The next one in other calls, which may go on."""

    def next_position(self, step: int, call: object) -> int:
        if self.step != step:
            self.step = step
            self.call, self.position = call, 0
            self.others.clear()
        elif self.call != call:
            self.others[self.call] = self.position
            self.call, self.position = call, self.others.get(call, 0)
        self.position += 1
        return self.position - 1


class Sites:
    """Finds the site of each operator; ids are counted per graph. `step` is a serial number that grows with each step."""

    def __init__(self) -> None:
        self.step = 0
        self._alike: dict[tuple[object, ...], _Alike] = {}
        self._values: dict[tuple[int, str], Site] = {}
        self._ids: dict[int, int] = {}

    def next(self, graph_id: int, scope: str, op_type: str, call: object, phase: str, place: object) -> Site:
        """The site of the next operator of this kind in this scope.

        `call` identifies the running call (root module, optimizer, backward); positions count from 0 in each.
        `place` separates operators of one scope and phase further: the line of the program, or the forward operator that a
        backward operator belongs to.
        """
        key = (graph_id, scope, op_type, phase, place)
        alike = self._alike.get(key)
        if alike is None:
            alike = self._alike[key] = _Alike()
        position = alike.next_position(self.step, call)
        if position == len(alike.sites):
            number = self._ids.get(graph_id, 0)
            self._ids[graph_id] = number + 1
            alike.sites.append(Site(f"{scope}/{op_type}-op{number}"))
        return alike.sites[position]

    def value(self, graph_id: int, name: str) -> Site:
        """The site of a value that has a name of its own: a parameter, an input of a network."""
        key = (graph_id, name)
        site = self._values.get(key)
        if site is None:
            site = self._values[key] = Site(name)
        return site

    def next_step(self) -> None:
        """Starts counting positions and occurrences anew; names stay."""
        self.step += 1
