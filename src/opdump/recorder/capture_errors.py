"""Handles errors in the capture itself, and measures how long the program has waited for its capture."""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from opdump import amounts
from opdump.errors import DumpPathError, OpdumpError
from opdump.sink.open_directories import reason_of, remedy_for

# Measures how long the program has waited for its capture.
#
# The time that an adapter needs is measured from the outermost call into opdump to its return (`isolated_from_program`). No operator of the
# program runs inside. If calls in several threads overlap, the longest one counts, so that the sum stays below the elapsed time.


class CaptureClock:
    """`spent` is the capture time in nanoseconds since creation. A call that ends sets it to its value at the start plus the time in between."""

    __slots__ = ("is_measured", "now", "spent")

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self.now = perf_counter_ns if now is None else now
        self.spent = 0
        self.is_measured = False
        """Whether the adapter can distinguish its own time from the program's; the adapter sets it."""

    @property
    def seconds(self) -> float | None:
        """The time spent in seconds, or None if it is not measured."""
        return self.spent / 1e9 if self.is_measured else None


# Handles errors in the capture itself: no memory to copy a tensor, a full call stack, a defect of opdump.
#
# The program itself would go on, so such an error is reported like a failure of the writer, not as an error of the running operator. A defect loses the
# operator in which it occurred, and the dump continues. An error of the system or the disk ends the dump.

_LOG = logging.getLogger("opdump")
_MOST_REASONS: Final = 20
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class _Stops(Protocol):
    def stopped(self, error: Exception) -> None: ...
    def loses(self, what: object, error: Exception) -> None: ...


class _StopsInTime(_Stops, Protocol):
    @property
    def clock(self) -> CaptureClock: ...


class _HasRecorder(Protocol):
    @property
    def _recorder(self) -> _StopsInTime: ...


_Recorder = TypeVar("_Recorder", bound=_Stops)
_Part = TypeVar("_Part", bound=_HasRecorder)


class Losing:
    """A block that records one operator. A defect of opdump in it loses that operator, but stops neither the dump nor the program."""

    def __init__(self, recorder: _Stops, what: object) -> None:
        self._recorder, self._what = recorder, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._recorder.loses(self._what, error)
        return True


def stops_capture_on_error(
    method: Callable[Concatenate[_Recorder, _Given], _Result],
) -> Callable[Concatenate[_Recorder, _Given], _Result]:
    """Decorate a recorder's method so that `stopped` receives its errors. If `stopped` returns, the method is called again and finds the dump
    ended.
    """

    @functools.wraps(method)
    def call(recorder: _Recorder, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return method(recorder, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever the error is, it is not the program's
            recorder.stopped(error)
        return method(recorder, *args, **kwargs)

    return call


def loses_operator_on_error(
    method: Callable[Concatenate[_Recorder, _Given], _Result],
) -> Callable[Concatenate[_Recorder, _Given], _Result | None]:
    """Decorate a recorder's method that records one operator (its first argument) or a part of it. A defect in it loses that operator.

    The method then returns None.
    """

    @functools.wraps(method)
    def call(recorder: _Recorder, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        with Losing(recorder, args[0] if args else None):
            return method(recorder, *args, **kwargs)
        return None

    return call


def isolated_from_program(
    method: Callable[Concatenate[_Part, _Given], _Result],
) -> Callable[Concatenate[_Part, _Given], _Result | None]:
    """Decorate an adapter's method that runs between the program's own calls and calls nothing of the program. It returns None if it was stopped.

    Its errors go to `loses` of the adapter's `_recorder`, with the method's first argument, and its time is added to the recorder's `clock`.
    """
    return _beside(method, lambda part, what, error: part._recorder.loses(what, error))


def isolated_as_a_whole(
    method: Callable[Concatenate[_Part, _Given], _Result],
) -> Callable[Concatenate[_Part, _Given], _Result | None]:
    """The same for a method that serves several operators: its error ends the dump."""
    return _beside(method, lambda part, _, error: part._recorder.stopped(error))


def _beside(
    method: Callable[Concatenate[_Part, _Given], _Result], failed: Callable[[_Part, object, Exception], None]
) -> Callable[Concatenate[_Part, _Given], _Result | None]:
    @functools.wraps(method)
    def call(part: _Part, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        clock = part._recorder.clock
        now = clock.now
        spent, began = clock.spent, now()
        try:
            return method(part, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever the error is, it is not the program's
            failed(part, args[0] if args else None, error)
        finally:
            clock.spent = spent + now() - began
        return None

    return call


class LostOperators:
    """The operators that defects of opdump kept from being recorded completely, by reason. The first operator of each reason is logged."""

    def __init__(self) -> None:
        self._names: dict[str, Counter[str]] = {}

    def add(self, what: object, error: Exception) -> None:
        name, reason = _name_of(what), _defect_text(error)
        if reason not in self._names:
            if len(self._names) >= _MOST_REASONS:
                reason = "further defects"
            else:
                _LOG.error("opdump: %s was not recorded, or only in part: %s", name, reason, exc_info=error)
        self._names.setdefault(reason, Counter())[name] += 1

    def in_words(self) -> list[str]:
        """Return one line for each reason."""
        found = []
        for reason, names in self._names.items():
            several = f"; and {len(names) - 1:,} more" if len(names) > 1 else ""
            found.append(
                f"{min(names)}{several}: {amounts.count(names.total(), 'execution')} not recorded, or only in part: {reason}; this is a defect of "
                "opdump, please report it"
            )
        return found


def _name_of(what: object) -> str:
    """Return the name for a warning about an operator, or about an adapter's object for one."""
    if isinstance(what, str) and what:
        return what
    for each in (what, getattr(what, "op", None), getattr(what, "operator", None)):
        for name in ("op_name", "kernel", "name"):
            found = getattr(each, name, None)
            if isinstance(found, str) and found:
                return found
    return "an operator"


def _defect_text(error: BaseException) -> str:
    """Describe a defect in one line: the error and the line that raised it."""
    said = next(iter(str(error).splitlines()), "")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{type(error).__name__}{': ' if said else ''}{said}{where}"


def is_defect(error: Exception) -> bool:
    """Return whether an error is a defect of opdump, rather than caused by the system, the disk or the program's settings."""
    return not (isinstance(error, OpdumpError) or is_out_of_memory(error)) and traceback_of(error) is not None


def stopped_by(path: Path, error: BaseException) -> DumpPathError:
    """Return the error for a dump whose capture was stopped by `error`."""
    if is_out_of_memory(error):
        return no_memory(path, error)
    if isinstance(error, RecursionError):
        remedy = "the program is at the recursion limit; raise it (sys.setrecursionlimit), or nest fewer calls"
    else:
        remedy = remedy_for(error)
    told = DumpPathError(
        f"{path}: the dump cannot continue ({reason_of(error)}): {remedy}; the files written so far are complete"
    )
    told.__cause__ = error
    return told


def cut_short(path: Path, step: int, error: BaseException) -> DumpPathError:
    """Return the error for a dump in which a step was not written because the program ended at that moment."""
    return DumpPathError(
        f"{path}: {type(error).__name__} interrupted the writing of step {step}, which is missing or incomplete; to record it, run the program "
        "again. The steps before it are complete"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or PyTorch reports that memory could not be allocated."""
    if isinstance(error, MemoryError):
        return True
    words: Any = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or "allocate memory" in words or "not enough memory" in words


def no_memory(path: Path, error: BaseException) -> DumpPathError:
    """Return the error for a dump that ran out of memory."""
    said = next(iter(str(error).splitlines()), "")
    told = DumpPathError(
        f"{path}: the dump cannot continue: not enough memory for what an operator reads and writes "
        f"({type(error).__name__}{': ' if said else ''}{said}): give the program more memory, or dump less (fewer steps, fewer operators, "
        "only statistics); the files written so far are complete"
    )
    # The frames of its traceback keep the large arrays alive.
    error.__traceback__ = None
    told.__cause__ = error
    return told


def once_more(error: Exception) -> Exception:
    """Return the first cause as a new object: later errors follow from it, and raising one object twice would grow its traceback."""
    if not isinstance(error, OpdumpError):
        return error
    told = type(error)(str(error))
    told.__cause__ = error.__cause__
    return told


def traceback_of(error: Exception) -> BaseException | None:
    """Return the cause if its traceback is worth printing, that is, a defect of opdump. Return None for errors of the system or the disk."""
    cause = error if error.__cause__ is None else error.__cause__
    if isinstance(cause, OpdumpError | MemoryError | OSError | RecursionError | sqlite3.OperationalError):
        return None
    # Exactly this class: the file is damaged or not an SQLite file. Subclasses are mistakes in calls of SQLite.
    return None if type(cause) is sqlite3.DatabaseError else cause


def failure_text(error: BaseException | None) -> str:
    """Return in one line why a dump could not be written. Return an empty string for None."""
    if error is None:
        return ""
    return str(error) if isinstance(error, OpdumpError) else f"{type(error).__name__}: {error}"
