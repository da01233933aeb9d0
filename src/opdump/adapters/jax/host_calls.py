"""Calls of the program's functions on the host: `pure_callback`, `io_callback`.

The functions run once, in the program's own call. The twin runs afterwards and receives the same results.

    with host_calls.watched(callbacks) as calls:
        answer = real()
        jax.block_until_ready(answer)
    host_calls.given_again = calls
    twin.run(...)                   # host_calls.again replaces the calls in the twin
    calls.left                      # number of results that the twin did not use
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
"""Primitives that call functions of the program on the host, at run time or during compilation."""
WITH_RESULTS: Final = frozenset({"pure_callback", "io_callback"})


class Calls:
    """The results of host functions in one call of the program, in order, by JAX's callback object."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._given: dict[Any, list[list[Any]]] = {callback: [] for callback in callbacks}

    @property
    def left(self) -> int:
        return sum(map(len, self._given.values()))

    def note(self, callback: Any, results: Sequence[Any]) -> None:
        """Keep results. numpy arrays are copied, because the program may write into them later."""
        given = self._given.get(callback)
        if given is not None:
            given.append([each.copy() if isinstance(each, np.ndarray) else each for each in results])

    def next(self, callback: Any) -> list[Any]:
        given = self._given[callback]
        if not given:
            raise ValueError("the twin calls a function on the host more often than the program's own call did")
        return given.pop(0)


class HostCalls:
    """Watches the host functions while it is open."""

    def __init__(self) -> None:
        self._watching: list[Calls] = []
        self.given_again = Calls(())
        """The results for the next run of a twin."""
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
        """Note the results of these functions while the block runs."""
        calls = Calls(callbacks)
        if callbacks:
            self._watching.append(calls)
        try:
            yield calls
        finally:
            if callbacks:
                self._watching.remove(calls)

    def again(self, equation: Any) -> list[Any]:
        """The results of a host call inside a twin. Must be called while JAX traces."""
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
    """The callback objects of equations that call the host; each equation comes with the path of those around it.

    None if results cannot be assigned to equations: several equations, or several devices, call the same function.
    """
    kind, found = _kind(), []
    for around, equation in equations:
        callback = equation.params.get("callback")
        if kind is None or not isinstance(callback, kind) or callback in found or "shard_map" in around:
            return None
        found.append(callback)
    return found


def _kind() -> Any:
    """The class of callback objects; None if this JAX has no such class."""
    # Private, but every call of a callback goes through its `__call__`.
    return getattr(importlib.import_module("jax._src.callback"), "_FlatCallback", None)
