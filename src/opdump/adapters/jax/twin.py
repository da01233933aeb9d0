"""A twin of a compiled function: computes the same from the same arguments, and gives the values of its equations.

The program's own function is left as it is, since one more result may change how XLA fuses it, and with that the answer. The twin is
compiled without fusion, so that each value is rounded as the equation says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jax._src import config as jax_config

from opdump.adapters.jax.host import Facts, Memory, facts_of, memories
from opdump.adapters.jax.schedule import Branches, Equation, Level, Scan, Shards, While
from opdump.adapters.jax.walk import Selection, Walk

FIRST_TRIPS: Final = 32
"""Trips of a `while` that there is room for at first."""
MOST_TRIPS: Final = 2**16
WITHOUT_FUSION: Final = {"xla_disable_hlo_passes": "fusion,cpu-instruction-fusion"}


@dataclass(slots=True)
class TwinRun:
    """One run, which may still go on: the results and the taps of the outermost level as arrays of JAX."""

    level: Level
    results: Sequence[Any]
    taps: Sequence[Any]
    constants: Sequence[Any]
    facts: Sequence[Facts]

    def memories(self) -> list[Memory]:
        """Where the taps lie; waits for the end of the run. Raises what it met."""
        with _apart():
            return memories(self.taps, self.facts)


@dataclass(slots=True)
class _Compiled:
    run: Any
    level: Level
    has_while: bool
    facts: Sequence[Facts] = ()


class Twin:
    """The twin of one jaxpr. It is compiled when it runs first, and again for other shardings or for more trips of a loop."""

    def __init__(self, closed: Any, selection: Selection, sources: Sequence[str]) -> None:
        """`sources` are those of the arguments."""
        self._closed = closed
        self._sources = sources
        self._selection = selection
        self._capacity = FIRST_TRIPS
        self._compiled: dict[tuple[object, ...], _Compiled] = {}
        self.notes: dict[str, str] = {}
        """Equations whose inner values could not be had, and why."""

    def run(self, arguments: Sequence[Any]) -> TwinRun:
        """Begins to compute everything from these arguments, which stay as they are. Errors are those of JAX."""
        with _apart():
            while True:
                compiled = self._compiled_for(arguments)
                results, taps = compiled.run(*arguments)
                if len(compiled.facts) != len(taps):
                    compiled.facts = [*map(facts_of, taps)]
                trips = _most_trips(compiled.level, taps) if compiled.has_while else 0
                if trips <= self._capacity or self._capacity >= MOST_TRIPS:
                    return TwinRun(compiled.level, results, taps, self._closed.consts, compiled.facts)
                while self._capacity < trips:
                    self._capacity *= 2

    def _compiled_for(self, arguments: Sequence[Any]) -> _Compiled:
        key = (self._capacity, *(str(getattr(value, "sharding", "")) for value in arguments))
        if key not in self._compiled:
            walk = Walk(self._selection, capacity=self._capacity)
            lowered = jax.jit(lambda *values: walk.function(self._closed, values, self._sources)).lower(*arguments)
            self._compiled[key] = _Compiled(_compile(lowered), walk.level, _has_while(walk.level))
            self.notes.update(walk.notes)
        return self._compiled[key]


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
