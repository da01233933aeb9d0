"""Keeps opdump's dispatch mode in its place among the modes of a program.

MindSpore has a stack of modes in each thread, and leaving a mode pops the top of the stack. opdump enters and leaves its mode when steps
begin and end, in the middle of `with` blocks of the program, so it must restore the modes above its own.

While its pipeline is on, MindSpore passes operators to a thread of its own, which has no modes, so they are not dispatched. Therefore the
pipeline is off while the mode is on.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mindspore.graph.api import _pynative_executor
from mindspore.utils import MsDispatchMode
from mindspore.utils.ms_dispatch import _DispatchGuardStack

from opdump.adapters.replacements import Replacements

Dispatched = Callable[[Any, tuple[Any, ...], Any], Any]


class RecordingMode(MsDispatchMode):  # type: ignore[misc]  # MindSpore is not installed where this is checked
    """Passes every operator of its thread to a function."""

    def __init__(self, dispatched: Dispatched) -> None:
        self._dispatched = dispatched

    def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: Any = None) -> Any:
        return self._dispatched(func, args, kwargs)


class ModeStack:
    """Enters and leaves a recording mode in any thread, also between modes of the program."""

    def __init__(self, dispatched: Dispatched) -> None:
        self._mode = RecordingMode(dispatched)
        self._here = threading.local()
        self._replacements = Replacements()
        self._entered = 0
        self._has_disabled = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Track the modes that the program enters and leaves from now on."""
        enter, leave = MsDispatchMode.__enter__, MsDispatchMode.__exit__
        known = self._known

        @functools.wraps(enter)
        def entering(mode: Any) -> Any:
            found = enter(mode)
            known().append(mode)
            return found

        @functools.wraps(leave)
        def leaving(mode: Any, *error: Any) -> Any:
            above = self._take_above(mode)
            found = leave(mode, *error)
            self._put(above)
            return found

        self._replacements.replace(MsDispatchMode, "__enter__", entering)
        self._replacements.replace(MsDispatchMode, "__exit__", leaving)

    def close(self) -> None:
        self.leave()
        self._replacements.restore()

    def forget(self) -> None:
        """Stop tracking in a forked process. Modes that are on stay on."""
        self._replacements.restore()

    @property
    def is_entered(self) -> bool:
        """Whether this thread has the recording mode on."""
        return self._mode in self._known()

    def enter(self) -> None:
        if not self.is_entered:
            self._put([self._mode])
            self._count(+1)

    def leave(self) -> None:
        if self.is_entered:
            above = self._take_above(self._mode)
            _DispatchGuardStack.pop()
            self._put(above)
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self._entered += change
            if self._entered == 1 and change > 0:
                self._has_disabled = not _pynative_executor.disable_frontend_and_bprop_pipeline()
            elif not self._entered and self._has_disabled:
                _pynative_executor.enable_frontend_and_bprop_pipeline()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The mode is on in the block, in which a thread of the program does its work."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def _known(self) -> list[Any]:
        """The modes of this thread that were entered since `open`, outermost first."""
        modes: list[Any] | None = getattr(self._here, "modes", None)
        if modes is None:
            modes = self._here.modes = []
        return modes

    def _take_above(self, mode: Any) -> list[Any]:
        """Pop the modes above a mode, and forget the mode itself. A mode that is not known was entered before `open`, below all known ones."""
        modes = self._known()
        place = next((place for place in reversed(range(len(modes))) if modes[place] is mode), None)
        above = modes[:] if place is None else modes[place + 1 :]
        del modes[0 if place is None else place :]
        for _ in above:
            _DispatchGuardStack.pop()
        return above

    def _put(self, modes: list[Any]) -> None:
        for mode in modes:
            _DispatchGuardStack.push(mode)
        self._known().extend(modes)
