"""The operators of a twin in order, and the locations of the values that they read and write.

A jaxpr is a *level*; so is the body of a loop or a branch in it. The values of a level that are recorded are its *taps*: one array
each, with a leading axis of iterations for each loop around the level.

    Tap(3)              the fourth tap of the level
    Argument(0)         the first argument of the function, from the program's call
    Constant(0)         a constant of the jaxpr
    Kept(7)             a value of an earlier piece of the function, by its number
    Outer(ref)          a value of the level around this one
    Row(ref)            the row that the iteration reads of a value of the level around this one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from opdump.adapters.graph_runtime import NamedOperator
from opdump.graph import GraphNode


@dataclass(frozen=True, slots=True)
class Tap:
    index: int


@dataclass(frozen=True, slots=True)
class Argument:
    index: int


@dataclass(frozen=True, slots=True)
class Constant:
    index: int


@dataclass(frozen=True, slots=True)
class Kept:
    number: int


@dataclass(frozen=True, slots=True)
class Outer:
    ref: Ref


@dataclass(frozen=True, slots=True)
class Row:
    ref: Ref


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that is not an array; `kind` is its type as text."""

    kind: str


Ref: TypeAlias = "Tap | Argument | Constant | Kept | Outer | Row | Opaque"


@dataclass(frozen=True, slots=True)
class Slot:
    """One input or output of an operator. `source` names its producer as in a graph."""

    slot: int
    ref: Ref
    source: str


@dataclass(frozen=True, slots=True)
class Equation:
    """One operator of a level. If it is not recorded, it has no slots, and `operator.skip` has the reason."""

    operator: NamedOperator
    node: GraphNode
    hlo_name: str
    """The origin that its instructions in a compiled program name (`op_name`), without the function."""
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()


@dataclass(slots=True)
class Level:
    """The entries of a level, in order."""

    entries: list[Entry] = field(default_factory=list)

    def each(self) -> Iterator[Equation]:
        """The operators in it and in inner levels, each once."""
        for entry in self.entries:
            if isinstance(entry, Equation):
                yield entry
            else:
                for level in entry.inner:
                    yield from level.each()


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop with a known number of iterations. `taps` maps each tap of the body to a tap of the level around the loop."""

    body: Level
    taps: tuple[int, ...]
    length: int
    reverse: bool

    @property
    def inner(self) -> tuple[Level, ...]:
        return (self.body,)


@dataclass(frozen=True, slots=True)
class While:
    """A loop with a condition.

    `trips` is the tap with the number of iterations, `capacity` the number of rows of the taps of `condition` and `body`. `last` is the
    final evaluation of the condition; its taps are in the level around the loop.
    """

    condition: Level
    body: Level
    last: Level
    condition_taps: tuple[int, ...]
    body_taps: tuple[int, ...]
    trips: int
    capacity: int

    @property
    def inner(self) -> tuple[Level, ...]:
        return self.condition, self.body


@dataclass(frozen=True, slots=True)
class Branches:
    """Levels of which only the one at `index` ran. `taps` maps the taps of each to taps of the level around them."""

    index: Ref
    levels: tuple[Level, ...]
    taps: tuple[tuple[int, ...], ...]

    @property
    def inner(self) -> tuple[Level, ...]:
        return self.levels


@dataclass(frozen=True, slots=True)
class Shards:
    """A body that ran on each of the `count` devices of a mesh. The taps have a leading axis of devices."""

    body: Level
    taps: tuple[int, ...]
    count: int

    @property
    def inner(self) -> tuple[Level, ...]:
        return (self.body,)


Entry: TypeAlias = "Equation | Scan | While | Branches | Shards"
