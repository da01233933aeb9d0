"""The levels of a schedule as blocks: consecutive operators, prepared once for all calls of a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, NamedOperator
from opdump.adapters.host import Choice
from opdump.adapters.jax.host import Facts
from opdump.adapters.jax.materialised import Outcomes
from opdump.adapters.jax.schedule import (
    Argument,
    Branches,
    Equation,
    Level,
    Outer,
    Ref,
    Row,
    Scan,
    Shards,
    Slot,
    While,
)


@dataclass(slots=True)
class Prepared:
    """A block and the locations of its tensors."""

    block: Block
    refs: Sequence[Ref]
    _choice: tuple[Choice, Sequence[Facts]] | None = None

    def choice(
        self, facts: Sequence[Facts], values: Callable[[], tuple[Sequence[Any], Sequence[tuple[int, int] | None]]]
    ) -> Choice:
        """The tensors of the block in columns, prepared once for these facts of the arguments.

        `values` returns the tensors and their places.
        """
        known = self._choice
        if known is None or known[1] is not facts:
            self._choice = known = (Choice(*values()), facts)
        return known[0]

    def is_ready(self, facts: Sequence[Facts]) -> bool:
        """Whether the block no longer needs tensor objects of arguments that are in columns."""
        return self.block.is_known and self._choice is not None and self._choice[1] is facts


@dataclass(slots=True)
class Inside:
    """The taps of a level in a loop or a branch, as taps of the level around it."""

    around: Sequence[Facts]
    facts: Sequence[Facts]
    taps: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.int64]
    """The distance between rows of a tap, in bytes; 0 in a branch, which has no rows."""


@dataclass(slots=True)
class Reads:
    """The arguments of the function that the operators of a level and of inner levels read."""

    are_ready: bool = True
    """Whether all operators have already run on such arguments."""
    as_a_whole: set[int] = field(default_factory=set)
    in_memory: set[int] = field(default_factory=set)
    """Arguments whose memory must remain: only rows or a branch index are read, or they are not in columns."""
    ahead: Choice | None = None
    """Donated arguments that can be read before the function runs."""


Part: TypeAlias = "Prepared | Scan | While | Branches | Shards"


class Blocks:
    """The parts of levels. The arguments of operators name the twin as their source, and their outcome in the compiled program."""

    def __init__(self, executable: Any) -> None:
        """`executable` is the compiled program; None if unknown."""
        self.has_outcomes = executable is not None
        self._outcomes = Outcomes(executable)
        self._known: dict[int, tuple[Level, list[Part]]] = {}
        self._inside: dict[int, tuple[Inside, Sequence[int]]] = {}
        """By the identity of the taps, which are kept with the value so that the identity stays valid."""

    def of(self, level: Level) -> list[Part]:
        known = self._known.get(id(level))
        if known is None:
            known = self._known[id(level)] = (level, self._parts(level))
        return known[1]

    def inside(self, taps: Sequence[int], around: Sequence[Facts], *, has_rows: bool) -> Inside:
        """The taps of an inner level; the taps of the level around it have these facts."""
        known = self._inside.get(id(taps))
        if known is None or known[0].around is not around:
            outer = [around[tap] for tap in taps]
            facts = [Facts(element, shape[1:] if has_rows else shape) for element, shape in outer]
            sizes = [
                element.size(math.prod(shape)) if has_rows and element is not None else 0 for element, shape in facts
            ]
            inside = Inside(around, facts, np.array(taps, np.intp), np.array(sizes, np.int64))
            self._inside[id(taps)] = known = inside, taps
        return known[0]

    def reads(self, level: Level, facts: Sequence[Facts]) -> Reads:
        """What the operators read of arguments with these facts."""
        found = Reads(in_memory={place for place, each in enumerate(facts) if each.element is None})
        self._add_reads(level, facts, found)
        return found

    def _add_reads(self, level: Level, facts: Sequence[Facts], found: Reads) -> None:
        if id(level) not in self._known:
            found.are_ready = False  # a branch that did not run
            return
        for part in self.of(level):
            if isinstance(part, Prepared):
                found.are_ready &= part.is_ready(facts)
            else:
                for inner in part.inner:
                    self._add_reads(inner, facts, found)
            is_index = isinstance(part, Branches)
            for ref in part.refs if isinstance(part, Prepared) else [part.index] if isinstance(part, Branches) else ():
                place, has_rows = _argument_of(ref)
                if place is not None:
                    (found.in_memory if has_rows or is_index else found.as_a_whole).add(place)

    def _parts(self, level: Level) -> list[Part]:
        parts: list[Part] = []
        together: list[Equation] = []
        for entry in level.entries:
            if isinstance(entry, Equation):
                together.append(entry)
                continue
            parts += [self._prepared(together)] if together else []
            parts.append(entry)
            together = []
        return [*parts, self._prepared(together)] if together else parts

    def _prepared(self, equations: Sequence[Equation]) -> Prepared:
        places: dict[Ref, int] = {}

        def slots(found: Sequence[Slot]) -> tuple[BlockSlot, ...]:
            return tuple(
                BlockSlot(each.slot, "", each.source, places.setdefault(each.ref, len(places))) for each in found
            )

        operators = [
            BlockOperator(self._with_facts(each), slots(each.inputs), slots(each.outputs)) for each in equations
        ]
        return Prepared(Block(operators), tuple(places))

    def _with_facts(self, equation: Equation) -> NamedOperator:
        facts = {"source": "twin", "materialised": self._outcomes.of(equation)}
        return replace(equation.operator, arguments={**equation.operator.arguments, **facts})


def _argument_of(ref: Ref) -> tuple[int | None, bool]:
    """The number of the argument that a value is or is a row of (None if neither), and whether it is a row."""
    has_rows = False
    while isinstance(ref, Outer | Row):
        has_rows |= isinstance(ref, Row)
        ref = ref.ref
    return (ref.index if isinstance(ref, Argument) else None), has_rows
