"""Keeps the capture's own calls from counting towards the program's recursion limit (`sys.setrecursionlimit`).

A program may run an operator close to the limit, and may rely on the RecursionError there. So the limit is raised by the depth of the
capture's calls while they run.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

BESIDE_AN_OPERATOR: Final = 200
"""The maximum depth of the capture's calls, including writing a step with its graphs."""
NESTED: Final = 24
"""The depth of nested modules from which their calls are compensated for; fewer are negligible compared with the limit."""


class CallDepth:
    """How much the interpreter's recursion limit is raised. All threads share the limit, so their amounts add up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added = 0
        self._program = self._set = sys.getrecursionlimit()
        """The program's limit, and the limit that we set last. If the limit found differs from `_set`, the program has changed it."""

    def add(self, calls: int) -> None:
        """Raise the limit by `calls`. If the program itself has no call left, raises RecursionError and adds nothing."""
        with self._lock:
            found = sys.getrecursionlimit()
            if found != self._set:
                self._program = found
            wanted = self._program + self._added + calls
            # Before the call below: Ctrl-C may come in between.
            before, self._set = self._set, wanted
            try:
                sys.setrecursionlimit(wanted)
            except RecursionError:
                self._set = before
                raise
            self._added += calls

    def remove(self, calls: int) -> None:
        """Lower the limit by `calls`. If the current stack is too deep for that, the limit stays until the next call."""
        with self._lock:
            self._added = max(0, self._added - calls)  # `close` may have reset it
            self._restore()

    def close(self) -> None:
        """Restore the program's limit. With a new lock: in a forked process, the old one may be held by a thread that does not exist."""
        self._lock = threading.Lock()
        self._added = 0
        self._restore()

    def _restore(self) -> None:
        found = sys.getrecursionlimit()
        if found != self._set:
            self._program = self._set = found  # the program has set its own limit
            return
        wanted = self._program + self._added
        try:
            sys.setrecursionlimit(wanted)
        except RecursionError:
            return
        self._set = wanted


class _HasDepth(Protocol):
    @property
    def depth(self) -> CallDepth: ...


_Part = TypeVar("_Part", bound=_HasDepth)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def deeper(method: Callable[Concatenate[_Part, _Given], _Result]) -> Callable[Concatenate[_Part, _Given], _Result]:
    """Decorate a method of the capture so that its calls do not count towards the program's recursion limit."""

    @functools.wraps(method)
    def call(part: _Part, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        part.depth.add(BESIDE_AN_OPERATOR)
        try:
            return method(part, *args, **kwargs)
        finally:
            part.depth.remove(BESIDE_AN_OPERATOR)

    return call
