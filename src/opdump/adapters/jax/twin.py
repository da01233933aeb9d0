"""A twin of a compiled function: computes the same from the same arguments, and gives the values of its equations.

The program's own function is left as it is, since one more result may change how XLA fuses it, and with that the answer. The twin is
compiled without fusion, so that each value is rounded as the equation says; in several pieces where there are too many values for
one. What a piece gives is looked at while the next one runs, and then forgotten, but for what later ones read.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt
from jax._src import config as jax_config

from opdump.adapters.host import HostTensor
from opdump.adapters.jax.flat import Piece, Place, flattened, references_of
from opdump.adapters.jax.host import Facts, Memory, copied, facts_of, memory_of, pointers_of
from opdump.adapters.jax.names import Names
from opdump.adapters.jax.schedule import Argument, Branches, Constant, Equation, Kept, Level, Scan, Shards, Tap, While
from opdump.adapters.jax.values import Made, Taps, is_reference, new_reference
from opdump.adapters.jax.walk import Selection, Walk

FIRST_TRIPS: Final = 32
"""Trips of a `while` that there is room for at first."""
MOST_TRIPS: Final = 2**16
MOST_BYTES: Final = 2**30
"""Of the values of one piece. Two pieces are in memory at once, and what later ones read."""
WITHOUT_FUSION: Final = {"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion"}


@dataclass(slots=True)
class PieceRun:
    """One run of a piece, which may still go on."""

    level: Level
    taps: Sequence[Any]
    """Those of the outermost level, as arrays of JAX."""
    facts: Sequence[Facts]
    kept: Mapping[int, int]
    """The taps of values that later pieces read, by the numbers of these."""
    ends: Sequence[int]
    """Values that no later piece reads."""

    def wait(self) -> None:
        """Waits for the end of the run. Raises what it met."""
        with _apart():
            jax.block_until_ready(self.taps)

    def memory(self, tap: int) -> Memory:
        """Where a tap lies, which nobody changes any more."""
        element, shape = self.facts[tap]
        array = self.taps[tap]
        if element is None:
            with _apart():
                return memory_of(copied(array))
        return HostTensor(element, shape, array.unsafe_buffer_pointer(), array, stays=True)

    def pointers(self) -> npt.NDArray[np.int64]:
        """The addresses of all taps; 0 where an object stands for one."""
        return pointers_of(self.taps, self.facts)


class TwinRun:
    """One run of a twin. The first piece has begun."""

    def __init__(self, begin: Callable[[int, dict[int, Any]], PieceRun], values: dict[int, Any], count: int) -> None:
        self._begin = begin
        self._values = values
        self._count = count
        self._first: PieceRun | None = begin(0, values)

    @property
    def level(self) -> Level:
        """The level of the first piece, before the pieces are asked for."""
        assert self._first is not None, "pieces are given once"
        return self._first.level

    def pieces(self) -> Iterator[PieceRun]:
        """The runs of the pieces, once; the next one has begun when one is given. Raises what they met."""
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
        """A result, when all pieces have begun."""
        return self._values[number]


@dataclass(slots=True)
class _Compiled:
    run: Any
    level: Level
    has_while: bool
    taps: int
    """How many outputs are taps; the others are values that no tap is."""
    leaves: Mapping[int, int]
    """The outputs that later pieces read or that are results, by the numbers of their values."""
    kept: Mapping[int, int]
    facts: Sequence[Facts] = ()


class Twin:
    """The twin of one jaxpr. It is compiled when it runs first, and again for other shardings or for more trips of a loop."""

    def __init__(
        self, closed: Any, selection: Selection, sources: Sequence[str], host_call: Callable[[Any], list[Any]]
    ) -> None:
        """`sources` are those of the arguments; `host_call` gives the results of an equation that calls the host."""
        self._host_call = host_call
        self.constants: Sequence[Any] = closed.consts
        self._flat = flattened(closed.jaxpr, Place())
        self._refs = {
            number for number, aval in zip(self._flat.arguments, closed.in_avals, strict=True) if is_reference(aval)
        }
        """Arguments that the function writes into: the twin has its own, which one piece must make."""
        self._closed_over = {-1 - place: each for place, each in enumerate(references_of(closed))}
        """The same that the function, or one within, closes over; their content stands among its values under these numbers."""
        self._pieces = self._flat.pieces(sys.maxsize if self._refs or self._closed_over else MOST_BYTES)
        self._argument_of = {number: place for place, number in enumerate(self._flat.arguments)}
        self._constant_of = {number: place for place, number in enumerate(self._flat.constants)}
        self._sources = sources
        self._selection = selection
        self._names = Names()
        self._capacity = FIRST_TRIPS
        self._compiled: dict[tuple[object, ...], _Compiled] = {}
        self._facts: dict[int, tuple[str, bool]] = {}
        """Of values that leave a piece: their source, and whether they follow from what is differentiated."""
        self.notes: dict[str, str] = {}
        """Equations whose inner values could not be had, and why."""

    @property
    def count(self) -> int:
        """In how many pieces it runs."""
        return len(self._pieces)

    def run(self, arguments: Sequence[Any]) -> TwinRun:
        """Begins to compute everything from these arguments, which stay as they are. Errors are those of JAX."""
        values = dict(zip(self._flat.arguments, arguments, strict=True))
        if any(given is each for given in arguments for each in self._closed_over.values()):
            raise ValueError("it is given a jax.Ref that it closes over, too")
        with _apart():
            values.update({number: values[number][...] for number in self._refs})
            values.update({number: each[...] for number, each in self._closed_over.items()})
        return TwinRun(self._begin, values, self.count)

    def results(self, run: TwinRun) -> list[Any]:
        """What the function gives, by this run."""
        return [
            (self.constants[self._constant_of[each]] if each in self._constant_of else run.value(each))
            if isinstance(each, int)
            else each.val
            for each in self._flat.results
        ]

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
        """What a piece gives: its taps and what else leaves it. Where the values that leave it are, and which of them are taps."""
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
    """Without fusion where this JAX and this device know how."""
    try:
        return lowered.compile(compiler_options=WITHOUT_FUSION)
    except Exception:  # noqa: BLE001  an option that is not known here; what else is wrong, the next line raises again
        return lowered.compile()


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Settings of the program that are meant for its own calls do not hold for a twin."""
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
    """The trips of the longest `while`. A value is an array that gives its elements to `numpy.asarray`."""
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
