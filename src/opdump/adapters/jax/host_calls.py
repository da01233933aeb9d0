"""Functions of the program that its compiled functions call on the host: `pure_callback`, `io_callback`.

They run once, in the program's own call. What they gave there a twin is given again, which runs after it.

    with host_calls.watched(callbacks) as calls:
        answer = real()
        jax.block_until_ready(answer)
    host_calls.given_again = calls
    twin.run(...)                   # host_calls.again stands for the calls in it
    calls.left                      # results that the twin did not ask for
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import io_callback

from opdump.adapters.replacements import Replacements

HOST_CALLS: Final = frozenset({"debug_callback", "debug_print", "inspect_sharding", "pure_callback", "io_callback"})
"""What calls functions of the program on the host, when it runs or when it is compiled."""
WITH_RESULTS: Final = frozenset({"pure_callback", "io_callback"})


class Calls:
    """What the functions gave in one call of the program, in order, by the function as JAX holds it."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._given: dict[Any, list[list[Any]]] = {callback: [] for callback in callbacks}

    @property
    def left(self) -> int:
        return sum(map(len, self._given.values()))

    def note(self, callback: Any, results: Sequence[Any]) -> None:
        """Keeps results; an array of numpy may be written into later, so it is copied."""
        given = self._given.get(callback)
        if given is not None:
            given.append([each.copy() if isinstance(each, np.ndarray) else each for each in results])

    def next(self, callback: Any) -> list[Any]:
        given = self._given[callback]
        if not given:
            raise ValueError("the program's own call has called a function on the host less often than its twin")
        return given.pop(0)


class HostCalls:
    """Watches the functions while it is open."""

    def __init__(self) -> None:
        self._watching: list[Calls] = []
        self.given_again = Calls(())
        """What the next run of a twin is given."""
        self._replacements = Replacements()

    def open(self) -> None:
        kind = _kind()
        if kind is None:
            return
        real = kind.__call__

        def call(callback: Any, *arguments: Any) -> Any:
            results = real(callback, *arguments)
            for calls in tuple(self._watching):
                calls.note(callback, results)
            return results

        self._replacements.replace(kind, "__call__", call)

    def close(self) -> None:
        self._replacements.restore()

    @contextmanager
    def watched(self, callbacks: Sequence[Any]) -> Iterator[Calls]:
        """Notes what these functions give while the block runs."""
        calls = Calls(callbacks)
        if callbacks:
            self._watching.append(calls)
        try:
            yield calls
        finally:
            if callbacks:
                self._watching.remove(calls)

    def again(self, equation: Any) -> list[Any]:
        """The results of a call on the host, in a twin: to be called while JAX traces."""
        callback = equation.params["callback"]
        shapes = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in equation.outvars]

        def given() -> list[Any]:
            results = self.given_again.next(callback)
            return [
                np.asarray(result, shape.dtype).reshape(shape.shape)
                for result, shape in zip(results, shapes, strict=True)
            ]

        return list(io_callback(given, shapes)) if shapes else []


def callbacks_of(equations: Sequence[tuple[str, Any]]) -> list[Any] | None:
    """The functions behind equations that call the host, given with the names of the equations around each.

    None where it cannot be known which result belongs to which of them: where several call the same function, or several devices do.
    """
    kind, found = _kind(), []
    for around, equation in equations:
        callback = equation.params.get("callback")
        if kind is None or not isinstance(callback, kind) or callback in found or "shard_map" in around:
            return None
        found.append(callback)
    return found


def _kind() -> Any:
    """The class of such functions; None in a JAX that has another way."""
    return getattr(importlib.import_module("jax._src.callback"), "_FlatCallback", None)
