"""The levels of a schedule as blocks: operators that run one after the other are prepared once, whatever calls of the function follow."""

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
    """A block, and where each of its tensors is to be found."""

    block: Block
    refs: Sequence[Ref]
    _choice: tuple[Choice, Sequence[Facts]] | None = None

    def choice(
        self, facts: Sequence[Facts], values: Callable[[], tuple[Sequence[Any], Sequence[tuple[int, int] | None]]]
    ) -> Choice:
        """The same among the columns of a call: prepared once, for the facts of its arguments.

        `values` gives the tensors, and their places.
        """
        known = self._choice
        if known is None or known[1] is not facts:
            self._choice = known = (Choice(*values()), facts)
        return known[0]

    def is_ready(self, facts: Sequence[Facts]) -> bool:
        """Whether nothing needs an object of an argument any more that is in columns."""
        return self.block.is_known and self._choice is not None and self._choice[1] is facts


@dataclass(slots=True)
class Inside:
    """The taps of a level in a loop or a branch, as those of the level around it."""

    around: Sequence[Facts]
    facts: Sequence[Facts]
    taps: npt.NDArray[np.intp]
    sizes: npt.NDArray[np.int64]
    """The bytes from one row of a tap to the next; 0 in a branch, which has no rows."""


@dataclass(slots=True)
class Reads:
    """What the operators of a level, and of those within, read of the arguments of the function."""

    are_ready: bool = True
    """Whether all of them have run before on such arguments."""
    as_a_whole: set[int] = field(default_factory=set)
    in_memory: set[int] = field(default_factory=set)
    """Those of which rows are read, or a number, and those that are in no columns: where they lie must stay as it is."""
    ahead: Choice | None = None
    """Those that may be read before the function takes them away."""


Part: TypeAlias = "Prepared | Scan | While | Branches | Shards"


class Blocks:
    """The parts of levels. The operators say that a twin computed them, and what became of them in the compiled program."""

    def __init__(self, executable: Any) -> None:
        """`executable` is the compiled program, None where nobody knows it."""
        self.has_outcomes = executable is not None
        self._outcomes = Outcomes(executable)
        self._known: dict[int, tuple[Level, list[Part]]] = {}
        self._inside: dict[int, tuple[Inside, Sequence[int]]] = {}
        """By the identity of the taps, which are kept beside it."""

    def of(self, level: Level) -> list[Part]:
        known = self._known.get(id(level))
        if known is None:
            known = self._known[id(level)] = (level, self._parts(level))
        return known[1]

    def inside(self, taps: Sequence[int], around: Sequence[Facts], *, has_rows: bool) -> Inside:
        """The taps of a level within one whose taps have these facts."""
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
        """What operators read of arguments with these facts."""
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
    """The number of the argument that a value is, None where it is none; whether it is a row of it."""
    has_rows = False
    while isinstance(ref, Outer | Row):
        has_rows |= isinstance(ref, Row)
        ref = ref.ref
    return (ref.index if isinstance(ref, Argument) else None), has_rows
