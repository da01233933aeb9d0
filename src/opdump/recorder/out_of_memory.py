"""Memory that ends while something is recorded: the copy of a tensor does not fit beside the program, which itself would go on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from opdump.errors import DumpPathError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class _TellsOfMemory(Protocol):
    def memory_ended(self, error: Exception) -> None: ...


_Recorder = TypeVar("_Recorder", bound=_TellsOfMemory)


def told_where_memory_ends(
    method: Callable[Concatenate[_Recorder, _Given], _Result],
) -> Callable[Concatenate[_Recorder, _Given], _Result]:
    """A recorder's method that tells `memory_ended` of it. Where that goes on, the method begins once more and finds the dump over."""

    @functools.wraps(method)
    def call(recorder: _Recorder, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return method(recorder, *args, **kwargs)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            recorder.memory_ended(error)
        return method(recorder, *args, **kwargs)

    return call


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or PyTorch says that memory could not be had."""
    if isinstance(error, MemoryError):
        return True
    words: Any = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or "allocate memory" in words or "not enough memory" in words


def no_memory(path: Path, error: BaseException) -> DumpPathError:
    """The failure of a dump for want of memory."""
    said = next(iter(str(error).splitlines()), "")
    told = DumpPathError(
        f"{path}: the dump cannot go on: there is no memory for what an operator reads and writes "
        f"({type(error).__name__}{': ' if said else ''}{said}): give the program more memory, or dump less (fewer steps, fewer operators, "
        "statistics alone); the files written so far are whole"
    )
    # Its frames hold what did not fit.
    error.__traceback__ = None
    told.__cause__ = error
    return told
