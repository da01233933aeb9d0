"""Stable full names for operators: the same place in the program has the same name in every step.

A name is a scope and `{op_type}-op{id}`. Ids are unique in a graph, so the last component identifies an operator there. An
operator is identified by its scope, type and line, and by its position among operators with the same ones within one call
of the root module, one `optimizer.step`, or one backward. So gradient accumulation and repeated calls repeat names, and
`occurrence` counts the repetitions within a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GRADIENTS = "Gradients/"


@dataclass(slots=True, eq=False)
class Site:
    """A place in the program that runs an operator, with what is the same each time."""

    name: str
    step: int = -1
    """The serial number of the step to which `occurrences` applies."""
    occurrences: int = 0
    selected: bool | None = None
    """Whether the plan's `kernels` select it; None until determined."""
    described: bool = False
    """Whether it is in the graph."""
    raw_arguments: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    link: Any = None
    """What its gradient inherits; the owner of the sites sets and reads it."""

    def source(self, slot: int) -> str:
        """The source name of an output, `{name}:{slot}`."""
        sources = self.sources
        if slot >= len(sources):
            sources.extend(f"{self.name}:{number}" for number in range(len(sources), slot + 1))
        return sources[slot]

    def next_occurrence(self, step: int) -> int:
        """Count this execution; return how many came before it in this step."""
        if self.step != step:
            self.step = step
            self.occurrences = 0
        self.occurrences += 1
        return self.occurrences - 1


@dataclass(slots=True, eq=False)
class _Alike:
    """The sites of operators that differ only in position, and the next position in each call of this step."""

    sites: list[Site] = field(default_factory=list)
    step: int = -1
    call: object = None
    position: int = 0
    """The next position in `call`."""
    others: dict[object, int] = field(default_factory=dict)
    """The next positions in other calls, which may continue."""

    def next_position(self, step: int, call: object) -> int:
        if self.step != step:
            self.step = step
            self.call, self.position = call, 0
            self.others.clear()
        elif self.call != call:  # calls alternate, for example in two threads
            self.others[self.call] = self.position
            self.call, self.position = call, self.others.get(call, 0)
        self.position += 1
        return self.position - 1


class Sites:
    """Finds the site of each operator. Ids count per graph. `step` is a serial number that increases with each step."""

    def __init__(self) -> None:
        self.step = 0
        self._alike: dict[tuple[object, ...], _Alike] = {}
        self._values: dict[tuple[int, str], Site] = {}
        self._ids: dict[int, int] = {}

    def next(self, graph_id: int, scope: str, op_type: str, call: object, phase: str, place: object) -> Site:
        """The site of the next operator of this kind in this scope.

        `call` identifies the running call (root module, optimizer, backward); positions count from 0 in each.
        `place` distinguishes operators within a scope and phase: the line of the program, or the forward operator of a
        backward operator.
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
        """The site of a named value: a parameter, an input of a network."""
        key = (graph_id, name)
        site = self._values.get(key)
        if site is None:
            site = self._values[key] = Site(name)
        return site

    def next_step(self) -> None:
        """Restart the counts of positions and occurrences; names stay."""
        self.step += 1
