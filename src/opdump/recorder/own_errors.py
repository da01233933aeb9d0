"""What stops the capture beside its writer: memory that ends while a tensor is copied, a stack of calls that is full, a defect of opdump.

The program itself would go on, so it is told as what stops a writer is, and is no error of the operator that ran.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from opdump.errors import DumpPathError, OpdumpError
from opdump.recorder.capture_time import CaptureClock
from opdump.sink.failures import reason_of, remedy_for

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class _Stops(Protocol):
    def stopped(self, error: Exception) -> None: ...


class _StopsInTime(_Stops, Protocol):
    @property
    def clock(self) -> CaptureClock: ...


class _HasRecorder(Protocol):
    @property
    def _recorder(self) -> _StopsInTime: ...


_Recorder = TypeVar("_Recorder", bound=_Stops)
_Part = TypeVar("_Part", bound=_HasRecorder)


def told_where_it_stops(
    method: Callable[Concatenate[_Recorder, _Given], _Result],
) -> Callable[Concatenate[_Recorder, _Given], _Result]:
    """A recorder's method that tells `stopped` of an error. Where that goes on, the method begins once more and finds the dump over."""

    @functools.wraps(method)
    def call(recorder: _Recorder, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return method(recorder, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is, the program is not to blame
            recorder.stopped(error)
        return method(recorder, *args, **kwargs)

    return call


def beside_the_program(
    method: Callable[Concatenate[_Part, _Given], _Result],
) -> Callable[Concatenate[_Part, _Given], _Result | None]:
    """A method of an adapter that runs between the program's own calls, and nothing of the program. None where it was stopped.

    Its error goes to `stopped` of the adapter's `_recorder`, and its time to the `clock` of that.
    """

    @functools.wraps(method)
    def call(part: _Part, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        clock = part._recorder.clock
        now = clock.now
        spent, began = clock.spent, now()
        try:
            return method(part, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is, the program is not to blame
            part._recorder.stopped(error)
        finally:
            clock.spent = spent + now() - began
        return None

    return call


def stopped_by(path: Path, error: BaseException) -> DumpPathError:
    """The failure of a dump whose capture met `error`."""
    if is_out_of_memory(error):
        return no_memory(path, error)
    if isinstance(error, RecursionError):
        remedy = "the program stands at the recursion limit; raise it (sys.setrecursionlimit), or let the program call less deep"
    else:
        remedy = remedy_for(error)
    told = DumpPathError(
        f"{path}: the dump cannot go on ({reason_of(error)}): {remedy}; the files written so far are whole"
    )
    told.__cause__ = error
    return told


def cut_short(path: Path, step: int, error: BaseException) -> DumpPathError:
    """The failure of a dump whose step was not filed, since the program was to end in that moment."""
    return DumpPathError(
        f"{path}: {type(error).__name__} came while step {step} was filed, which is missing or not whole; run it again for that step. The "
        "steps before it are whole"
    )


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


def once_more(error: Exception) -> Exception:
    """The first cause once more: later ones follow from it. A new object: raising one twice would grow its traceback."""
    if not isinstance(error, OpdumpError):
        return error
    told = type(error)(str(error))
    told.__cause__ = error.__cause__
    return told


def traceback_of(error: Exception) -> BaseException | None:
    """The cause whose traceback is worth printing: a defect of opdump; None for what the system or the disk did."""
    cause = error if error.__cause__ is None else error.__cause__
    if isinstance(cause, OpdumpError | MemoryError | OSError | RecursionError | sqlite3.OperationalError):
        return None
    # That very class: a file that is damaged or none of SQLite's. Those below it are mistakes of who calls SQLite.
    return None if type(cause) is sqlite3.DatabaseError else cause


def failure_text(error: BaseException | None) -> str:
    """What kept a dump from being written, as one line; empty for None."""
    if error is None:
        return ""
    return str(error) if isinstance(error, OpdumpError) else f"{type(error).__name__}: {error}"
