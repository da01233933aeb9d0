"""Keeps calls of the capture out of the recursion limit of the program (`sys.setrecursionlimit`).

A program may stand near the limit when it runs an operator, and may count on the RecursionError that comes there. So the limit is higher
by what the capture calls, for as long as it does.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

BESIDE_AN_OPERATOR: Final = 200
"""Calls that recording takes at most, writing a step with its graphs included."""
NESTED: Final = 24
"""Modules within modules from which on each one's calls are made up for; fewer of them are as good as nothing of a limit."""


class CallDepth:
    """What the limit of the interpreter is raised by. It is one limit for all threads, so they add up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added = 0
        self._program = self._set = sys.getrecursionlimit()
        """The program's limit, and the one that is in force unless the program has set another since."""

    def add(self, calls: int) -> None:
        """So many calls more. Raises RecursionError, and adds nothing, where the program has no call left itself."""
        with self._lock:
            found = sys.getrecursionlimit()
            if found != self._set:
                self._program = found
            wanted = self._program + self._added + calls
            before, self._set = self._set, wanted  # before it is so: Ctrl-C may come between the two
            try:
                sys.setrecursionlimit(wanted)
            except RecursionError:
                self._set = before
                raise
            self._added += calls

    def remove(self, calls: int) -> None:
        """So many less. Where more calls than that are running the limit stays until the next time."""
        with self._lock:
            self._added = max(0, self._added - calls)  # `close` may have been here
            self._restore()

    def close(self) -> None:
        """The program's own limit is in force again. In a forked process too: the lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        self._added = 0
        self._restore()

    def _restore(self) -> None:
        found = sys.getrecursionlimit()
        if found != self._set:
            self._program = self._set = found  # the program's, which knows nothing of ours
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
    """Has a method of the capture run as if it were called from the program's first line."""

    @functools.wraps(method)
    def call(part: _Part, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        part.depth.add(BESIDE_AN_OPERATOR)
        try:
            return method(part, *args, **kwargs)
        finally:
            part.depth.remove(BESIDE_AN_OPERATOR)

    return call
