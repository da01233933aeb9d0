"""Intercepts the compilation and the calls of compiled code.

    network(x) in GRAPH_MODE                        GraphExecutor_.compile, GraphExecutor_()
    a function of @ms.jit, an optimizer of nn       GraphExecutor_.compile or JitExecutor_.compile, PyNativeExecutor_.grad_jit

The three classes are C++ classes of MindSpore. Their methods can be replaced, but a method that a program took before stays the original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from opdump.adapters.mindspore.own_dump import OWN_DUMP
from opdump.adapters.replacements import Replacements

Ran = Callable[[BaseException | None], None]
_COMPILING: Final = (("GraphExecutor_", "compile"), ("JitExecutor_", "compile"))
_RUNNING: Final = (("GraphExecutor_", "__call__"), ("PyNativeExecutor_", "grad_jit"))


class Interception:
    """Calls `ran` in the program's thread after each call of compiled code, with its error or None.

    `compiling` is called before a possible compilation, and `failed` with the error if it fails. They may raise only to end the program.
    """

    def __init__(
        self,
        module: Any,
        ran: Ran,
        compiling: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._module = module
        self._compiles = compiling
        self._ran = ran
        self._failed = failed
        self._replacements = Replacements()

    def lacks(self) -> str:
        """The first of these names that this MindSpore lacks; empty if it has all."""
        for owner, name in (*_COMPILING, *_RUNNING):
            if not hasattr(getattr(self._module, owner, None), name):
                return f"{owner}.{name}"
        return ""

    def open(self) -> None:
        for owner, name in _COMPILING:
            self._replace(owner, name, self._compiling)
        for owner, name in _RUNNING:
            self._replace(owner, name, self._running)

    def close(self) -> None:
        self._replacements.restore()

    def _replace(self, owner_name: str, name: str, wrapping: Callable[[Any], Any]) -> None:
        owner = getattr(self._module, owner_name)
        self._replacements.replace(owner, name, wrapping(getattr(owner, name)))

    def _compiling(self, original: Any) -> Any:
        def compile_it(executor: Any, *args: Any, **kwargs: Any) -> Any:
            with OWN_DUMP.configured():
                self._compiles()
                try:
                    return original(executor, *args, **kwargs)
                except BaseException as error:
                    self._failed(error)
                    raise

        return compile_it

    def _running(self, original: Any) -> Any:
        def run_it(executor: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(executor, *args, **kwargs)
            except BaseException as error:
                self._ran(error)
                raise
            self._ran(None)
            return result

        return run_it
