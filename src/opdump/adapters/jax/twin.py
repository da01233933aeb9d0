"""The twin of a compiled function: the same computation on the same arguments, which also returns the values of its equations.

The program's own function is not changed, because an additional result may change what XLA fuses, and with it the answer. The twin is
compiled without fusion, so each value is rounded as its equation says. If there are too many values, it runs in several pieces: the
values of a piece are recorded while the next piece runs, and then freed, except those that later pieces read.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt
from jax._src import config as jax_config

from opdump.adapters.graph_runtime import GraphRun
from opdump.adapters.host import ChosenTensors, HostTensor
from opdump.adapters.jax.flat import (
    JaxprPosition,
    Made,
    Piece,
    Taps,
    flattened,
    is_reference,
    new_reference,
    references_of,
)
from opdump.adapters.jax.host import (
    Arguments,
    Facts,
    Memory,
    Tensor,
    copied,
    facts_of,
    host_tensor,
    memory_of,
    pointers_of,
    row_of,
)
from opdump.adapters.jax.names import Names
from opdump.adapters.jax.schedule import (
    Argument,
    Blocks,
    Branches,
    Constant,
    Equation,
    Kept,
    Level,
    Opaque,
    Outer,
    Prepared,
    Ref,
    Scan,
    Shards,
    Tap,
    While,
)
from opdump.adapters.jax.walk import Selection, Walk

FIRST_TRIPS: Final = 32
"""Initial number of iterations of a `while` whose values are kept. It grows as needed, up to MOST_TRIPS."""
MOST_TRIPS: Final = 2**16
MOST_BYTES: Final = 2**30
"""Maximum size of the values of one piece. Two pieces are in memory at once, and the values that later ones read."""
WITHOUT_FUSION: Final = {"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion"}


@dataclass(slots=True)
class PieceRun:
    """One run of a piece. It may still be running."""

    level: Level
    taps: Sequence[Any]
    """The taps of the outermost level, as JAX arrays."""
    facts: Sequence[Facts]
    kept: Mapping[int, int]
    """The taps of values that later pieces read, by the number of the value."""
    ends: Sequence[int]
    """Values that no later piece reads."""

    def wait(self) -> None:
        """Wait for the end of the run. Raises its error."""
        with _apart():
            jax.block_until_ready(self.taps)

    def memory(self, tap: int) -> Memory:
        """The tap in memory. Its elements no longer change."""
        element, shape = self.facts[tap]
        array = self.taps[tap]
        if element is None:
            with _apart():
                return memory_of(copied(array))
        return HostTensor(element, shape, array.unsafe_buffer_pointer(), array, stays=True)

    def pointers(self) -> npt.NDArray[np.int64]:
        """The addresses of all taps; 0 for those without an element."""
        return pointers_of(self.taps, self.facts)


class TwinRun:
    """One run of a twin. The first piece is started at once."""

    def __init__(self, begin: Callable[[int, dict[int, Any]], PieceRun], values: dict[int, Any], count: int) -> None:
        self._begin = begin
        self._values = values
        self._count = count
        self._first: PieceRun | None = begin(0, values)

    @property
    def level(self) -> Level:
        """The level of the first piece. Only available before `pieces` is called."""
        assert self._first is not None, "pieces are given once"
        return self._first.level

    def pieces(self) -> Iterator[PieceRun]:
        """The runs of the pieces; can be iterated once. When a piece is yielded, the next one has been started. Raises their errors."""
        # Keep no reference to a yielded piece, so that the caller can free its memory.
        for place in range(1, self._count):
            before, self._first = self._first, None
            follows = self._begin(place, self._values)
            assert before is not None, "pieces are given once"
            yield before
            del before
            self._first = follows
            del follows
        last, self._first = self._first, None
        assert last is not None, "pieces are given once"
        yield last

    def value(self, number: int) -> Any:
        """A result. All pieces must have been started."""
        return self._values[number]


@dataclass(slots=True)
class _Compiled:
    run: Any
    level: Level
    has_while: bool
    taps: int
    """The number of outputs that are taps; they come first. The others are values that leave the piece without being taps."""
    leaves: Mapping[int, int]
    """The outputs that are results or read by later pieces, by the number of the value."""
    kept: Mapping[int, int]
    facts: Sequence[Facts] = ()


class Twin:
    """The twin of one jaxpr. It is compiled on its first run, and again for other shardings or for more iterations of a `while`."""

    def __init__(
        self, closed: Any, selection: Selection, sources: Sequence[str], host_call: Callable[[Any], list[Any]]
    ) -> None:
        """`sources` are the sources of the arguments; `host_call` returns the results of an equation that calls the host."""
        self._host_call = host_call
        self.constants: Sequence[Any] = closed.consts
        self._flat = flattened(closed.jaxpr, JaxprPosition())
        self._refs = {
            number for number, aval in zip(self._flat.arguments, closed.in_avals, strict=True) if is_reference(aval)
        }
        """Arguments that the function writes into (`jax.Ref`). The twin writes into copies, which cannot pass from piece to piece."""
        self._closed_over = {-1 - place: each for place, each in enumerate(references_of(closed))}
        """Each `jax.Ref` that the function or an inner one closes over. Its content is among the values under this negative number."""
        self._pieces = self._flat.pieces(sys.maxsize if self._refs or self._closed_over else MOST_BYTES)
        self._argument_of = {number: place for place, number in enumerate(self._flat.arguments)}
        self._constant_of = {number: place for place, number in enumerate(self._flat.constants)}
        self._sources = sources
        self._selection = selection
        self._names = Names()
        self._capacity = FIRST_TRIPS
        self._compiled: dict[tuple[object, ...], _Compiled] = {}
        self._facts: dict[int, tuple[str, bool]] = {}
        """For values that leave a piece: their source, and whether they depend on the backward pass."""
        self.notes: dict[str, str] = {}
        """The reasons why equations are not recorded or have no inner values, by primitive."""

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self._pieces)

    def run(self, arguments: Sequence[Any]) -> TwinRun:
        """Start to compute everything from these arguments, which are not changed. Raises errors of JAX."""
        values = dict(zip(self._flat.arguments, arguments, strict=True))
        if any(given is each for given in arguments for each in self._closed_over.values()):
            raise ValueError("an argument is a jax.Ref that the function also closes over")
        with _apart():
            values.update({number: values[number][...] for number in self._refs})
            values.update({number: each[...] for number, each in self._closed_over.items()})
        return TwinRun(self._begin, values, self.count)

    def results(self, run: TwinRun) -> list[Any]:
        """The results of the function in this run."""
        return [
            (self.constants[self._constant_of[each]] if each in self._constant_of else run.value(each))
            if isinstance(each, int)
            else each.val
            for each in self._flat.results
        ]

    @property
    def result_sources(self) -> list[str]:
        """The sources of the results, after a run. A result that is a literal of the program has none."""
        arguments = dict(zip(self._flat.arguments, self._sources, strict=True))
        known = {number: source for number, (source, _) in self._facts.items()} | arguments
        return [known.get(each, "") if isinstance(each, int) else "" for each in self._flat.results]

    def _begin(self, place: int, values: dict[int, Any]) -> PieceRun:
        piece = self._pieces[place]
        numbers = [*self._closed_over, *(number for number in piece.given if number not in self._constant_of)]
        given = [values[number] for number in numbers]
        with _apart():
            while True:
                compiled = self._compiled_for(place, numbers, given)
                outputs = compiled.run(*given)
                taps = outputs[: compiled.taps]
                if len(compiled.facts) != len(taps):
                    compiled.facts = [*map(facts_of, taps)]
                # If a `while` had more iterations than there was room for, run again with more room.
                trips = _most_trips(compiled.level, taps) if compiled.has_while else 0
                if trips <= self._capacity or self._capacity >= MOST_TRIPS:
                    break
                while self._capacity < min(trips, MOST_TRIPS):
                    self._capacity *= 2
        values.update({number: outputs[output] for number, output in compiled.leaves.items()})
        for number in piece.ends:
            values.pop(number, None)
        return PieceRun(compiled.level, taps, compiled.facts, compiled.kept, piece.ends)

    def _compiled_for(self, place: int, numbers: Sequence[int], given: Sequence[Any]) -> _Compiled:
        key = (place, self._capacity, *(str(getattr(value, "sharding", "")) for value in given))
        if key not in self._compiled:
            piece = self._pieces[place]
            walk = Walk(self._selection, self._names, self._host_call, capacity=self._capacity)
            noted: list[tuple[int, dict[int, int], dict[int, int]]] = []

            def function(*values: Any) -> list[Any]:
                taps, by_number = Taps(), dict(zip(numbers, values, strict=True))
                references = {id(each): new_reference(by_number[number]) for number, each in self._closed_over.items()}
                found = self._given(piece, taps, by_number, references)
                left = walk.piece(piece, found, taps, self._flat.own, references)
                outputs, leaves, kept = self._outputs(left, taps)
                noted[:] = [(len(taps.values), leaves, kept)]
                return outputs

            lowered = jax.jit(function).lower(*given)
            count, leaves, kept = noted[0]
            self._compiled[key] = _Compiled(_compile(lowered), walk.level, _has_while(walk.level), count, leaves, kept)
            self.notes.update(walk.notes)
        return self._compiled[key]

    def _given(
        self, piece: Piece, taps: Taps, values: Mapping[int, Any], references: Mapping[int, Any]
    ) -> dict[int, Made]:
        found = {}
        for number in piece.given:
            if number in self._constant_of:
                place = self._constant_of[number]
                value = self.constants[place]
                if id(value) in references:
                    found[number] = Made(references[id(value)], f"data-{place}", taps)
                else:
                    found[number] = Made(value, f"data-{place}", taps, Constant(place))
            elif number in self._argument_of:
                place = self._argument_of[number]
                value = new_reference(values[number]) if number in self._refs else values[number]
                found[number] = Made(value, self._sources[place], taps, Argument(place))
            else:
                source, after_backward = self._facts[number]
                found[number] = Made(values[number], source, taps, Kept(number), after_backward)
        return found

    def _outputs(self, left: Mapping[int, Made], taps: Taps) -> tuple[list[Any], dict[int, int], dict[int, int]]:
        """The outputs of a piece (its taps, then other values that leave it), the output of each leaving value, and the taps among these."""
        for number, made in left.items():
            self._facts[number] = made.source, made.after_backward
            if self.count > 1:
                made.wanted()  # an operator of a later piece may read it
        outputs, leaves, kept = list(taps.values), {}, {}
        for number, made in left.items():
            if isinstance(made.ref, Tap):
                kept[number] = made.ref.index
            if isinstance(made.ref, Tap) and taps.values[made.ref.index] is made.value:
                leaves[number] = made.ref.index
            else:
                leaves[number] = len(outputs)
                outputs.append(made.value)
        return outputs, leaves, kept


def _compile(lowered: Any) -> Any:
    """Compile without fusion, if this JAX and this device support that."""
    try:
        return lowered.compile(compiler_options=WITHOUT_FUSION)
    except Exception:  # noqa: BLE001  the options may be unknown here; any other error is raised again by the next line
        return lowered.compile()


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """A context without the program's settings for its own calls: NaN checks, transfer guards, logs, the compilation cache."""
    with contextlib.ExitStack() as stack:
        for context in (
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.log_compiles(False),
            jax.transfer_guard("allow"),
            jax_config.enable_compilation_cache(False),
        ):
            stack.enter_context(context)
        yield


def _has_while(level: Level) -> bool:
    return any(
        isinstance(entry, While)
        or (not isinstance(entry, Equation) and any(_has_while(inner) for inner in entry.inner))
        for entry in level.entries
    )


def _most_trips(level: Level, values: Sequence[Any]) -> int:
    """The largest number of iterations of any `while`. `values` can be converted by `numpy.asarray`."""
    most = 0
    for entry in level.entries:
        if isinstance(entry, While):
            most = max(most, int(np.asarray(values[entry.trips]).max(initial=0)))
            most = max(most, _most_trips(entry.condition, [values[tap] for tap in entry.condition_taps]))
            most = max(most, _most_trips(entry.body, [values[tap] for tap in entry.body_taps]))
        elif isinstance(entry, Scan | Shards):
            most = max(most, _most_trips(entry.body, [values[tap] for tap in entry.taps]))
        elif isinstance(entry, Branches):
            for inner, taps in zip(entry.levels, entry.taps, strict=True):
                most = max(most, _most_trips(inner, [values[tap] for tap in taps]))
    return most


# Emits the operators of a compiled function, as its twin computed them: in the order of the jaxpr, once per loop iteration.


@dataclass(slots=True)
class Given:
    """The inputs of a call."""

    arguments: Arguments
    """Their columns continue with the taps, piece by piece."""
    constants: Sequence[Any]
    kept: dict[int, tuple[Memory, Tensor]] = field(default_factory=dict)
    """Values of earlier pieces that later pieces read."""


@dataclass(slots=True)
class Values:
    """The values of a level in one iteration. Its taps are in columns, except those without an element."""

    given: Given
    tap: Callable[[int], Memory]
    facts: Sequence[Facts]
    """Of the taps."""
    first_tap: int
    """The position of the first tap in columns."""
    around: Values | None = None
    row: int = 0
    tensors: dict[Ref, Tensor] = field(default_factory=dict)

    def place(self, ref: Ref) -> tuple[int, int] | None:
        """The section of columns (as in `begins`) that has a value, and its number there; None if it is not in columns."""
        if isinstance(ref, Outer) and self.around is not None:
            place = self.around.place(ref.ref)
            # Section 0 is the same for all levels; the sections of levels shift by one per level.
            return place and (place[0] and place[0] + 1, place[1])
        facts, section = (self.given.arguments.facts, 0) if isinstance(ref, Argument) else (self.facts, 1)
        if not isinstance(ref, Argument | Tap) or facts[ref.index].element is None:
            return None
        return section, ref.index

    @property
    def begins(self) -> list[int]:
        """The beginnings of the sections in columns: arguments, taps of this level, taps of each level around it."""
        found: list[int] = [0]
        level: Values | None = self
        while level is not None:
            found.append(level.first_tap)
            level = level.around
        return found

    def memory(self, ref: Ref) -> Memory:
        if isinstance(ref, Tap):
            return self.tap(ref.index)
        if isinstance(ref, Argument):
            return self.given.arguments.memory(ref.index)
        if isinstance(ref, Constant):
            return memory_of(copied(self.given.constants[ref.index]))
        if isinstance(ref, Kept):
            return self.given.kept[ref.number][0]
        if isinstance(ref, Opaque):
            return ref.kind
        assert self.around is not None, "only bodies read what is around them"
        memory = self.around.memory(ref.ref)
        return memory if isinstance(ref, Outer) else row_of(memory, self.row)

    def number(self, ref: Ref) -> int:
        """The value of a single integer."""
        memory = self.memory(ref)
        assert not isinstance(memory, str), memory
        return int((memory.raw() if isinstance(memory, HostTensor) else memory).reshape(-1)[0])

    def tensor(self, ref: Ref) -> Tensor:
        """The tensor of a value. Operators that read the same value get the same object, so it is summarised once."""
        if isinstance(ref, Outer) and self.around is not None:
            return self.around.tensor(ref.ref)
        if isinstance(ref, Argument):
            return self.given.arguments.tensor(ref.index)
        if isinstance(ref, Kept):
            return self.given.kept[ref.number][1]
        known = self.tensors.get(ref)
        if known is None:
            memory = self.memory(ref)
            known = self.tensors[ref] = memory if isinstance(memory, HostTensor) else host_tensor(memory)
        return known


class Emitter:
    """Emits one call of a function."""

    def __init__(self, given: Given, run: GraphRun, blocks: Blocks) -> None:
        self._given = given
        self._run = run
        self._blocks = blocks

    def emit(self, piece: PieceRun) -> None:
        """Emit the operators of a piece that has run, after those of the previous piece."""
        first_tap = self._given.arguments.columns.extend(piece.pointers())
        values = Values(self._given, piece.memory, piece.facts, first_tap)
        self._level(piece.level, values, self._run)
        kept = self._given.kept
        for number, tap in piece.kept.items():
            tensor = values.tensor(Tap(tap))
            if isinstance(tensor, HostTensor) and piece.facts[tap].element is not None:
                self._given.arguments.columns.lend_row(first_tap + tap, tensor)
            kept[number] = piece.memory(tap), tensor
        for number in piece.ends:
            kept.pop(number, None)
        self._given.arguments.columns.cut(first_tap)

    def _level(self, level: Level, values: Values, run: GraphRun) -> None:
        for part in self._blocks.of(level):
            if run.is_over:
                return
            if isinstance(part, Prepared):
                emit_prepared(part, values, run)
                continue
            within = next((each.operator for inner in part.inner for each in inner.each()), None)
            with run.recorder.losing(within) if within is not None else nullcontext():
                self._part(part, values, run)

    def _part(self, part: Scan | While | Branches | Shards, values: Values, run: GraphRun) -> None:
        """Emit the levels of a loop, a branch or shards."""
        if isinstance(part, Scan):
            rows = range(part.length)
            for number, row in enumerate(reversed(rows) if part.reverse else rows):
                self._trip(part.again if number else part.body, values, part.taps, row, run)
        elif isinstance(part, While):
            self._while(part, values, run)
        elif isinstance(part, Branches):
            # `lax.switch` also clamps an index that is out of range.
            which = int(np.clip(values.number(part.index), 0, len(part.levels) - 1))
            self._trip(part.levels[which], values, part.taps[which], None, run)
        else:
            self._shards(part, values, run)

    def _while(self, entry: While, values: Values, run: GraphRun) -> None:
        trips = values.number(Tap(entry.trips))
        for row in range(min(trips, entry.capacity)):
            condition, body = entry.again if row else entry.inner
            self._trip(condition, values, entry.condition_taps, row, run)
            self._trip(body, values, entry.body_taps, row, run)
        missing = max(0, trips - entry.capacity)  # iterations whose values were not kept
        run.count_skipped({"not observed": missing * sum(1 for level in entry.inner for _ in level.each())})
        self._level(entry.last, values, run)

    def _shards(self, entry: Shards, values: Values, run: GraphRun) -> None:
        for row in range(entry.count):
            self._trip(entry.body, values, entry.taps, row, run.on_device(row))

    def _trip(self, level: Level, around: Values, taps: Sequence[int], row: int | None, run: GraphRun) -> None:
        """Emit an inner level: one row of its taps, or the whole taps if `row` is None (a branch)."""
        inside = self._blocks.inside(taps, around.facts, has_rows=row is not None)
        columns = self._given.arguments.columns
        pointers = columns.pointers[around.first_tap + inside.taps] + (row or 0) * inside.sizes
        first_tap = columns.extend(pointers)
        tap = partial(_tap_of, around, taps, row)
        try:
            self._level(level, Values(self._given, tap, inside.facts, first_tap, around, row or 0), run)
        finally:
            columns.cut(first_tap)


def emit_prepared(part: Prepared, values: Values, run: GraphRun) -> None:
    """Emit the operators of a block."""
    given = values.given.arguments

    def tensor(place: int) -> Tensor:
        return values.tensor(part.refs[place])

    def found() -> tuple[Sequence[Tensor], Sequence[tuple[int, int] | None]]:
        return [*map(values.tensor, part.refs)], [*map(values.place, part.refs)]

    def whole() -> ChosenTensors:
        choice = part.choice(given.facts, found)
        return choice.of(given.columns, values.begins, [tensor(number) for number in choice.objects])

    run.emit_block(part.block, tensor, whole)


def _tap_of(around: Values, taps: Sequence[int], row: int | None, index: int) -> Memory:
    memory = around.tap(taps[index])
    return memory if row is None else row_of(memory, row)
