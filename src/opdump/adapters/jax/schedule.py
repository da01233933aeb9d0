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

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from opdump.adapters.graph_runtime import Block, BlockOperator, BlockSlot, NamedOperator
from opdump.adapters.host import Choice
from opdump.adapters.jax.host import Facts
from opdump.adapters.jax.names import parts_of
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
    """A loop with a known number of iterations. `taps` maps each tap of the body to a tap of the level around the loop.

    `body` is the first iteration. The others are `again`: the same operators, whose carried values the iteration before made.
    """

    body: Level
    again: Level
    taps: tuple[int, ...]
    length: int
    reverse: bool

    @property
    def inner(self) -> tuple[Level, ...]:
        return (self.body,)

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels that may be emitted."""
        return self.body, self.again


@dataclass(frozen=True, slots=True)
class While:
    """A loop with a condition.

    `condition` and `body` are the first iteration, and `again` both levels in the others. `trips` is the tap with the number of iterations,
    `capacity` the number of rows of the taps of `condition` and `body`. `last` is the final evaluation of the condition; its taps are in the
    level around the loop.
    """

    condition: Level
    body: Level
    again: tuple[Level, Level]
    last: Level
    condition_taps: tuple[int, ...]
    body_taps: tuple[int, ...]
    trips: int
    capacity: int

    @property
    def inner(self) -> tuple[Level, ...]:
        return self.condition, self.body

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels that may be emitted, except the last evaluation of the condition."""
        return *self.inner, *self.again


@dataclass(frozen=True, slots=True)
class Branches:
    """Levels of which only the one at `index` ran. `taps` maps the taps of each to taps of the level around them."""

    index: Ref
    levels: tuple[Level, ...]
    """All levels that may be emitted."""
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

    @property
    def levels(self) -> tuple[Level, ...]:
        """All levels that may be emitted."""
        return (self.body,)


Entry: TypeAlias = "Equation | Scan | While | Branches | Shards"


def with_sources(level: Level, sources: Mapping[str, str]) -> Level:
    """A level, and those in it, with other names for the makers of some values."""

    def of(entry: Entry) -> Entry:
        match entry:
            case Equation():
                inputs = tuple(replace(slot, source=sources.get(slot.source, slot.source)) for slot in entry.inputs)
                given = tuple(replace(each, source=sources.get(each.source, each.source)) for each in entry.node.inputs)
                return replace(entry, inputs=inputs, node=replace(entry.node, inputs=given))
            case Scan():
                return replace(entry, body=renamed(entry.body), again=renamed(entry.again))
            case While():
                condition, body = map(renamed, entry.again)
                return replace(
                    entry,
                    condition=renamed(entry.condition),
                    body=renamed(entry.body),
                    again=(condition, body),
                    last=renamed(entry.last),
                )
            case Branches():
                return replace(entry, levels=tuple(map(renamed, entry.levels)))
            case Shards():
                return replace(entry, body=renamed(entry.body))

    def renamed(inner: Level) -> Level:
        return with_sources(inner, sources)

    return Level([of(entry) for entry in level.entries])


# Finds out whether XLA kept, fused or removed the operators of a jaxpr.

YES: Final = "yes"
ABSENT: Final = "absent"
_BEGIN: Final = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_INSTRUCTION: Final = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_CALLS: Final = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_OP_NAME: Final = re.compile(r'op_name="([^"]*)"')
# Parts of names that differ between the jaxpr and the compiled program.
_BODIES: Final = frozenset(
    {"while", "body", "cond", "closed_call", "scan", "shard_map", "checkpoint", "rematted_computation"}
)


class Outcomes:
    """The outcome of each operator in a program that XLA compiled: `yes`, `fused into {instruction}` or `absent`.

    Each instruction names the equation of its origin (`op_name`). Equations with the same name cannot be distinguished.
    """

    def __init__(self, executable: Any) -> None:
        """If `executable` is None or has no text, all outcomes are unknown."""
        text = "" if executable is None else _text_of(executable)
        self._found = _instructions(text)
        self.are_known = bool(text)

    def of(self, equation: Equation) -> str:
        return self._found.get(_normal(equation.hlo_name), ABSENT) if self.are_known else "unknown"


def _text_of(executable: Any) -> str:
    try:
        modules = executable.runtime_executable().hlo_modules()
    except Exception:  # noqa: BLE001  some devices have no text; outcomes are then recorded as unknown
        return ""
    return "\n".join(module.to_string() for module in modules)


def _instructions(text: str) -> dict[str, str]:
    """The outcome of each equation, by its normalised name. An own instruction takes precedence over a fused one."""
    within: dict[str, list[str]] = {}
    fused: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if (begin := _BEGIN.match(line)) is not None:
            computation = begin[2]
        elif (instruction := _INSTRUCTION.match(line)) is not None:
            if " fusion(" in line and (called := _CALLS.search(line)) is not None:
                fused[called[1]] = instruction[1]
            if (name := _OP_NAME.search(line)) is not None:
                within.setdefault(computation, []).append(name[1])
    found: dict[str, str] = {}
    for computation, names in within.items():
        outcome = f"fused into {fused[computation]}" if computation in fused else YES
        for op_name in names:
            key = _normal(op_name.partition("/")[2])
            if found.get(key) != YES:
                found[key] = outcome
    return found


def _normal(name: str) -> str:
    return "/".join(
        part
        for part in parts_of(name)
        if part not in _BODIES and part != "jit(main)" and not part.startswith("branch_")
    )


# The levels of a schedule as blocks: consecutive operators, prepared once for all calls of a function.


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
                for inner in part.levels:
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
