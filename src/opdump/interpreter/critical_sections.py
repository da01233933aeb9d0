"""The compiled part of this package (native/audit.cpp, frames.cpp, interrupts.cpp). It is separate from the kernels, so that no numpy is loaded at
start.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from threading import get_ident, main_thread
from types import ModuleType
from typing import Final, ParamSpec, TypeVar


def compiled() -> ModuleType | None:
    """Return the compiled module, or None if opdump was installed without a C++ compiler."""
    try:
        return import_module("opdump.interpreter._native")
    except ImportError:
        return None


# Critical sections: garbage collection is rarer, and KeyboardInterrupt is deferred until the end.

# Reduces garbage collection during work that creates many objects and little garbage.

_OBJECTS: Final = 50_000


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Collect garbage only after 50,000 new objects during the block.

    A comparison holds a record for each tensor of a step, without cycles; searching them for garbage would take a third of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during the block. Thousands of records are created and freed at once, and searching them for cycles would take
    longer.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# Defers KeyboardInterrupt until a critical section has finished.

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_COMPILED: Final = compiled()


def not_interrupted(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorate a function so that SIGINT waits until it has returned. A second SIGINT does not wait.

    Python runs signal handlers between any two of its instructions in the main thread. The handler of Ctrl-C raises KeyboardInterrupt there, which a
    program may catch to go on. After the function, any handler of SIGINT, in Python or not, is called as if the signal had just arrived. If opdump
    was installed without a C++ compiler, SIGINT does not wait.
    """
    if _COMPILED is None:
        return function
    hold, release = _COMPILED.hold_interrupts, _COMPILED.release_interrupts

    @wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        if get_ident() != main_thread().ident or not hold():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            release()

    return call
