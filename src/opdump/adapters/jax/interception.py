"""Every call of a compiled function: JAX makes them through two functions of one module, which are replaced while a capture runs.

    _pjit_call_impl_python  makes a call that the fast path does not know; its jaxpr is a keyword
    _get_fastpath_data      what the fast path is to remember of the call; nothing, and the next call comes back here

A function that the fast path knows is not seen. So nothing is remembered where calls are to be seen, and what is remembered is forgotten
before a step that may be recorded, behind it, and at the end: that compiles nothing again. A call of which nothing was remembered is never
asked for again until then. Calls that are to be counted and not seen take the fast path too: their results are wrapped in a node of a tree,
which the fast path takes apart with a function that is given when the node is registered.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import jax
from jax._src.tree_util import dispatch_registry

from opdump.adapters.replacements import Replacements
from opdump.interpreter.tracebacks import clean_message

CALL: Final = "_pjit_call_impl_python"
FAST_PATH: Final = "_get_fastpath_data"
_CACHES: Final = ("_cpp_pjit_cache_fun_only", "_cpp_pjit_cache_explicit_attributes", "_cpp_pjit_cache")


def _counted(data: Any, told: Told, out_tree: Any, arguments: Any, results: Any) -> Any:
    """What the fast path is to remember, with `told` in it; nothing where this JAX keeps it elsewhere."""
    if "out_pytree_def" not in getattr(data, "_fields", ()):
        return None
    del arguments
    whole = _Counted(told, jax.tree_util.tree_unflatten(out_tree, results))
    return data._replace(out_pytree_def=dispatch_registry.flatten(whole, None)[1])


def unsupported(pjit: ModuleType) -> str:
    """What this JAX lacks of what a capture needs; empty where it lacks nothing."""
    for name in (CALL, FAST_PATH):
        if not callable(getattr(pjit, name, None)):
            return f"jax._src.pjit.{name} is missing"
    if "jaxpr" not in inspect.signature(getattr(pjit, CALL)).parameters:
        return f"jax._src.pjit.{CALL} takes no jaxpr"
    return ""


class _Counted:
    """The results of a call, which `told` is told of each time that they are put together."""

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
"""Whether the call that was made last in this thread may take the fast path from now on; what is to be told each time, where it is counted."""
Real = Callable[[], Any]
Handler = Callable[[Real, tuple[Any, ...], Any, str, tuple[bool, ...]], Any]
"""Gets a call: what makes it, its arguments, the jaxpr, the name of the function, and which arguments are donated."""


class Interception:
    """The calls of a program while it is open. What is called within a call of `handler` is not seen."""

    def __init__(self, pjit: ModuleType, handler: Handler, may_hurry: Hurry) -> None:
        self._pjit = pjit
        self._handler = handler
        self._may_hurry = may_hurry
        self._replacements = Replacements()
        self._here = threading.local()

    def open(self) -> None:
        """Sees the calls from now on, of functions that were compiled before too."""
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
        """The program's own call; what that calls, on the host, is seen."""
        self._here.is_inside = False
        try:
            return real(*arguments, **keywords)
        except BaseException as error:
            clean_message(error)  # JAX writes the traceback of a callback into it
            raise
        finally:
            self._here.is_inside = True

    def _see_compiled_ahead(self) -> None:
        """Functions that the program compiles itself: `jit(f).lower(x).compile()`. JAX says nothing of the jaxpr when they are called."""
        from jax.core import Tracer
        from jax.tree_util import tree_leaves

        stages = importlib.import_module("jax._src.stages")
        jaxprs: dict[int, tuple[Any, Any]] = {}
        """What was made of which `Traced`, by identity."""
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
        """The program's calls are its own again, on the fast path of JAX."""
        self._replacements.restore()
        self.forget()

    def forget(self) -> None:
        """Every function comes through here when it is called next."""
        for name in _CACHES:
            with suppress(AttributeError):
                getattr(self._pjit, name).clear()
