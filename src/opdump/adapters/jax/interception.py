"""Intercepts calls of compiled functions. While a capture runs, two functions of `jax._src.pjit` are replaced:

    _pjit_call_impl_python  makes a call that is not in the cache of the fast path; its jaxpr is a keyword
    _get_fastpath_data      the data to cache for the fast path; if it returns None, the next call comes here again

Calls on the fast path are not seen. So nothing is cached while calls must be seen, and the cache is cleared before and after a recorded
step and at the end, which does not recompile anything. JAX asks only once for the data of a call, so clearing also lets it ask again.
Calls that only need counting take the fast path too: their results are wrapped in a tree node, whose unflatten function counts.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, Final

import jax
import numpy as np
from jax._src.tree_util import dispatch_registry
from jax.experimental import io_callback

from opdump.adapters.replacements import Replacements
from opdump.interpreter.frames import clean_message

CALL: Final = "_pjit_call_impl_python"
FAST_PATH: Final = "_get_fastpath_data"
_CACHES: Final = ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes", "_cpp_pjit_cache")


def _counted(data: Any, told: Told, out_tree: Any, arguments: Any, results: Any) -> Any:
    """The data for the fast path, extended to call `told` on each call; None if this JAX keeps the output tree elsewhere."""
    if "out_pytree_def" not in getattr(data, "_fields", ()):
        return None
    del arguments
    whole = _Counted(told, jax.tree_util.tree_unflatten(out_tree, results))
    # The fast path has a registry of its own, so the public `tree_flatten` would make a different tree.
    return data._replace(out_pytree_def=dispatch_registry.flatten(whole, None)[1])


def unsupported(pjit: ModuleType) -> str:
    """The first thing that a capture needs and this JAX lacks; empty if it has everything."""
    for name in (CALL, FAST_PATH):
        if not callable(getattr(pjit, name, None)):
            return f"jax._src.pjit.{name} is missing"
    if "jaxpr" not in inspect.signature(getattr(pjit, CALL)).parameters:
        return f"jax._src.pjit.{CALL} takes no jaxpr"
    return ""


class _Counted:
    """The results of a call. `told` is called each time they are unflattened."""

    def __init__(self, told: Told, results: Any) -> None:
        self.told = told
        self.results = results


def _results(told: Told, children: Iterable[Any]) -> Any:
    told()
    (results,) = children
    return results


jax.tree_util.register_pytree_node(_Counted, lambda each: ((each.results,), each.told), _results)


Told = Callable[[], None]
Hurry = Callable[[], "bool | Told"]
"""Whether the function that this thread called last may take the fast path from now on. If its calls must be counted, what to call for each."""
Real = Callable[[], Any]
Handler = Callable[[Real, tuple[Any, ...], Any, str, tuple[bool, ...]], Any]
"""Receives a call: a function that makes it, its arguments, the jaxpr, the function name, and which arguments are donated."""


class Interception:
    """Passes the calls of a program to `handler` while it is open. Calls that `handler` makes itself are not intercepted."""

    def __init__(self, pjit: ModuleType, handler: Handler, may_hurry: Hurry) -> None:
        self._pjit = pjit
        self._handler = handler
        self._may_hurry = may_hurry
        self._replacements = Replacements()
        self._here = threading.local()

    def open(self) -> None:
        """Intercept calls from now on, also of functions that are already compiled."""
        real, fast = getattr(self._pjit, CALL), getattr(self._pjit, FAST_PATH)

        def call(*arguments: Any, **keywords: Any) -> Any:
            if getattr(self._here, "is_inside", False):
                return real(*arguments, **keywords)
            self._here.is_inside = True
            try:
                return self._handler(
                    lambda: self._program_runs(real, arguments, keywords),
                    arguments,
                    keywords["jaxpr"],
                    keywords["name"],
                    tuple(keywords["donated_invars"]),
                )
            finally:
                self._here.is_inside = False

        def fast_path(*arguments: Any, **keywords: Any) -> Any:
            told = getattr(self._here, "is_inside", False) or self._may_hurry()
            if told is False:
                return None
            data = fast(*arguments, **keywords)
            return data if told is True or data is None else _counted(data, told, *arguments[1:4])

        self._replacements.replace(self._pjit, CALL, call)
        self._replacements.replace(self._pjit, FAST_PATH, fast_path)
        self._see_compiled_ahead()
        self.forget()

    def _program_runs(self, real: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make the program's own call. Calls from its host callbacks are intercepted again."""
        self._here.is_inside = False
        try:
            return real(*arguments, **keywords)
        except BaseException as error:
            clean_message(error)  # JAX writes the traceback of a callback into the message
            raise
        finally:
            self._here.is_inside = True

    def _see_compiled_ahead(self) -> None:
        """Intercept functions that the program compiles itself: `jit(f).lower(x).compile()`. Their calls do not pass the jaxpr."""
        from jax.core import Tracer
        from jax.tree_util import tree_leaves

        stages = importlib.import_module("jax._src.stages")
        jaxprs: dict[int, tuple[Any, Any]] = {}
        """The `Traced` of each `Lowered` and `Compiled`, by identity. The values keep these alive, so identities stay valid."""
        lower, build, execute = stages.Traced.lower, stages.Lowered.compile, stages.Compiled.__call__

        def noted_lower(traced: Any, *arguments: Any, **keywords: Any) -> Any:
            lowered = lower(traced, *arguments, **keywords)
            if not getattr(self._here, "is_inside", False):
                jaxprs[id(lowered)] = (lowered, traced)
            return lowered

        def noted_compile(lowered: Any, *arguments: Any, **keywords: Any) -> Any:
            compiled = build(lowered, *arguments, **keywords)
            if id(lowered) in jaxprs and not getattr(self._here, "is_inside", False):
                jaxprs[id(compiled)] = (compiled, jaxprs[id(lowered)][1])
            return compiled

        def call(compiled: Any, *arguments: Any, **keywords: Any) -> Any:
            traced = jaxprs.get(id(compiled), (None, None))[1]
            if traced is None or getattr(self._here, "is_inside", False):
                return execute(compiled, *arguments, **keywords)
            leaves = tree_leaves((arguments, keywords))
            constants = tuple(getattr(traced, "_consts", ()))
            flat = (*constants, *leaves)
            if len(flat) != len(traced.jaxpr.in_avals) or any(isinstance(each, Tracer) for each in leaves):
                return execute(compiled, *arguments, **keywords)
            answers = []

            def real() -> Any:
                answers.append(self._program_runs(execute, (compiled, *arguments), keywords))
                return tree_leaves(answers[0]), compiled._executable

            donated = (False,) * len(constants) + tuple(info.donated for info in tree_leaves(traced.args_info))
            self._here.is_inside = True
            try:
                self._handler(real, flat, traced.jaxpr, traced.fun_name, donated)
            finally:
                self._here.is_inside = False
            return answers[0]

        self._replacements.replace(stages.Traced, "lower", noted_lower)
        self._replacements.replace(stages.Lowered, "compile", noted_compile)
        self._replacements.replace(stages.Compiled, "__call__", call)

    def close(self) -> None:
        """Stop intercepting. Calls take the fast path of JAX again."""
        self._replacements.restore()
        self.forget()

    def forget(self) -> None:
        """Clear the caches of the fast path, so that the next call of every function is intercepted."""
        # Releases of JAX have different caches.
        for name in _CACHES:
            with suppress(AttributeError):
                getattr(self._pjit, name).clear()


# Calls of the program's functions on the host: `pure_callback`, `io_callback`.
#
# The functions run once, in the program's own call (`HostCalls.watched`). The twin runs afterwards and receives the same results
# (`HostCalls.again`).

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
