"""What a twin gives, and in which order: the operators of a jaxpr, with where the values that they read and wrote are to be found.

A jaxpr is a *level*; so is the body of a loop or a branch in it. The values of a level that somebody wants are its *taps*: one array
each, with an axis for the trips in front of it for each loop around the level.

    Tap(3)              the fourth tap of the level
    Argument(0)         the first argument of the function, as the program gave it
    Constant(0)         a constant of the jaxpr
    Kept(7)             what an earlier piece of the function made, by its number
    Outer(ref)          a value of the level around this one
    Row(ref)            the row of a value of the level around this one that the trip reads
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
    """A value that no array stands for; `kind` is what it is."""

    kind: str


Ref: TypeAlias = "Tap | Argument | Constant | Kept | Outer | Row | Opaque"


@dataclass(frozen=True, slots=True)
class Slot:
    """One input or output of an operator. `source` is its producer, as a graph names it."""

    slot: int
    ref: Ref
    source: str


@dataclass(frozen=True, slots=True)
class Equation:
    """One operator of a level. Without slots it leaves no data, and `operator.skip` says why."""

    operator: NamedOperator
    node: GraphNode
    hlo_name: str
    """What the instructions of a compiled program say that they come from, without the name of the function."""
    inputs: tuple[Slot, ...] = ()
    outputs: tuple[Slot, ...] = ()


@dataclass(slots=True)
class Level:
    """What ran in a level, in order."""

    entries: list[Entry] = field(default_factory=list)

    def each(self) -> Iterator[Equation]:
        """The operators in it and in the levels within, each once."""
        for entry in self.entries:
            if isinstance(entry, Equation):
                yield entry
            else:
                for level in entry.inner:
                    yield from level.each()


@dataclass(frozen=True, slots=True)
class Scan:
    """A loop with a known number of trips. `taps` are those of the body as taps of the level around it, in their order."""

    body: Level
    taps: tuple[int, ...]
    length: int
    reverse: bool

    @property
    def inner(self) -> tuple[Level, ...]:
        return (self.body,)


@dataclass(frozen=True, slots=True)
class While:
    """A loop that ends when its condition does.

    `trips` is the tap that counts them, `capacity` how many rows the taps of `condition` and `body` have; `last` is the condition
    that failed, with its values in the level around the loop.
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
    """Levels of which one ran: the one that `index` names. The taps of each are taps of the level around them."""

    index: Ref
    levels: tuple[Level, ...]
    taps: tuple[tuple[int, ...], ...]

    @property
    def inner(self) -> tuple[Level, ...]:
        return self.levels


@dataclass(frozen=True, slots=True)
class Shards:
    """What ran on each device of a mesh: the taps have an axis for the `count` devices in front."""

    body: Level
    taps: tuple[int, ...]
    count: int

    @property
    def inner(self) -> tuple[Level, ...]:
        return (self.body,)


Entry: TypeAlias = "Equation | Scan | While | Branches | Shards"
