"""What stops the capture beside its writer: memory that ends while a tensor is copied, a stack of calls that is full, a defect of opdump.

The program itself would go on, so it is told as what stops a writer is, and is no error of the operator that ran. A defect costs the operator
that met it, and the dump goes on; what the system or the disk refuses ends the dump.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from opdump import amounts
from opdump.errors import DumpPathError, OpdumpError
from opdump.recorder.capture_time import CaptureClock
from opdump.sink.failures import reason_of, remedy_for

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
    """A block that records one operator: a defect of opdump in it costs that operator, and neither the dump nor the program."""

    def __init__(self, recorder: _Stops, what: object) -> None:
        self._recorder, self._what = recorder, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._recorder.loses(self._what, error)
        return True


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


def lost_where_it_fails(
    method: Callable[Concatenate[_Recorder, _Given], _Result],
) -> Callable[Concatenate[_Recorder, _Given], _Result | None]:
    """A recorder's method that takes one operator, its first argument, or a part of it. Where a defect stops it, that operator is lost.

    None is given then.
    """

    @functools.wraps(method)
    def call(recorder: _Recorder, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result | None:
        with Losing(recorder, args[0] if args else None):
            return method(recorder, *args, **kwargs)
        return None

    return call


def beside_the_program(
    method: Callable[Concatenate[_Part, _Given], _Result],
) -> Callable[Concatenate[_Part, _Given], _Result | None]:
    """A method of an adapter that runs between the program's own calls, and nothing of the program. None where it was stopped.

    Its error goes to `loses` of the adapter's `_recorder`, with what the method was given first, and its time to the `clock` of that.
    """
    return _beside(method, lambda part, what, error: part._recorder.loses(what, error))


def whole_beside_the_program(
    method: Callable[Concatenate[_Part, _Given], _Result],
) -> Callable[Concatenate[_Part, _Given], _Result | None]:
    """The same of a method that belongs to more than one operator: its error ends the dump."""
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
        except Exception as error:  # noqa: BLE001  whatever it is, the program is not to blame
            failed(part, args[0] if args else None, error)
        finally:
            clock.spent = spent + now() - began
        return None

    return call


class LostOperators:
    """The operators that were not recorded, or not completely, because of defects of opdump, by reason. The first of each reason is logged."""

    def __init__(self) -> None:
        self._names: dict[str, Counter[str]] = {}

    def add(self, what: object, error: Exception) -> None:
        name, reason = _name_of(what), _defect_text(error)
        if reason not in self._names:
            if len(self._names) >= _MOST_REASONS:
                reason = "further defects"
            else:
                _LOG.error("opdump: %s is not recorded, or not whole: %s", name, reason, exc_info=error)
        self._names.setdefault(reason, Counter())[name] += 1

    def in_words(self) -> list[str]:
        """One line for each reason."""
        found = []
        for reason, names in self._names.items():
            several = f"; and {len(names) - 1:,} more" if len(names) > 1 else ""
            found.append(
                f"{min(names)}{several}: {amounts.count(names.total(), 'execution')} not recorded, or not whole: {reason}; this is a defect of "
                "opdump, please report it"
            )
        return found


def _name_of(what: object) -> str:
    """What a warning calls what was lost: an operator, or what an adapter holds of one."""
    if isinstance(what, str) and what:
        return what
    for each in (what, getattr(what, "op", None), getattr(what, "operator", None)):
        for name in ("op_name", "kernel", "name"):
            found = getattr(each, name, None)
            if isinstance(found, str) and found:
                return found
    return "an operator"


def _defect_text(error: BaseException) -> str:
    """A defect as one line: what it is, and the line that met it."""
    said = next(iter(str(error).splitlines()), "")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{type(error).__name__}{': ' if said else ''}{said}{where}"


def is_defect(error: Exception) -> bool:
    """Whether an error is a defect of opdump, rather than caused by the system, the disk or the program's settings."""
    return not (isinstance(error, OpdumpError) or is_out_of_memory(error)) and traceback_of(error) is not None


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
