"""What is printed when a program under capture has ended: its error as Python would print it, then the reports."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR, EXIT_INCOMPLETE, EXIT_OK
from opdump.errors import IncompleteCaptureError, OpdumpError
from opdump.interpreter.frames import chained, clean_message, hands_on, innermost, is_own, stripped

if TYPE_CHECKING:
    from opdump.capturing.dump import Dump
    from opdump.capturing.report import CaptureReport

COMPLETE = "opdump: the last selected step has ended; the script ends here (--stop-after-dump)"
ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def print_warnings(texts: Iterable[str]) -> None:
    for text in texts:
        click.echo(f"opdump: warning: {text}", err=True)


def load_reports(*, checked: bool) -> None:
    """Import the modules of `print_reports` before the program runs: at its end there may be no file descriptor left to import
    them.

    `checked`: tensors are checked during the run. The table printer takes as long to import as everything else that is printed
    here, and most runs do not need it.
    """
    for name in ("completeness", *(("findings",) if checked else ())):
        import_module(f"opdump.reports.{name}")


def print_reports(reports: Sequence[CaptureReport], *, rank: int | None, as_json: bool, told: str = "") -> None:
    """For each report, print its warnings, why its dump is incomplete, and the closing lines. `told` is an error that was printed
    before.
    """
    from opdump.reports.completeness import closing_lines, completeness_json, failure_line

    if sys.stdout is not None:
        sys.stdout.flush()  # the script's own output comes first, even if both go to one file
    for report in reports:
        print_warnings(report.warnings)
        if report.failure:
            click.echo(failure_line(report, with_cause=report.failure != told), err=True)
        if as_json:
            click.echo(completeness_json(report, rank=rank), err=True)
            continue
        if report.checked is not None:
            from opdump.reports.findings import print_checked

            print_checked(report.checked, path=str(report.path), rank=rank)
        click.echo("\n".join(closing_lines(report, rank=rank)), err=True)


def print_error(error: BaseException, hook: ExceptHook) -> None:
    """Print the error that ended the program, using `hook`, the program's own hook if it has set one."""
    if sys.stdout is not None:
        sys.stdout.flush()
    if isinstance(error, OpdumpError):
        frames = traceback.extract_tb(without_opdump_frames(error).__traceback__)
        where = f"\n  at {frames[-1].filename}:{frames[-1].lineno}  {frames[-1].line}" if frames else ""
        click.echo(f"opdump: error: {error}{where}", err=True)
        return
    if comes_from_opdump(error) and not isinstance(error, KeyboardInterrupt):
        click.echo("opdump: the error below comes from opdump, not from the script; please report it", err=True)
    else:
        without_opdump_frames(error)
    hook(type(error), error, error.__traceback__)


# The report of a run whose processes outlive its program: Python waits for them when the interpreter ends, and so does the report.
# Pools of `concurrent.futures` and joblib, and processes that were not joined, continue after the last line of a program.


class ExitReport:
    """Prints the report of a capture after everything else in this process has ended.

    Create it before the program is loaded: handlers registered first are called last, after multiprocessing has waited for its
    processes.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._say: Callable[[], int] = lambda: EXIT_OK
        self._ended_well = False
        atexit.register(self._call)

    def leave_to_it(self, say: Callable[[], int], *, ended_well: bool) -> None:
        """Set what runs at the end. `say` returns an exit code, which is used if the program `ended_well`."""
        self._say, self._ended_well = say, ended_well

    def _call(self) -> None:
        if os.getpid() != self._process:
            return
        code = self._say()
        if code and self._ended_well:
            end_with(code)


def tell_at_last(dump: Dump, *, rank: int | None, as_json: bool, strict: bool) -> int:
    """Print the report of a capture whose processes have ended; returns the exit code."""
    report = dump.look_again()
    code = EXIT_INCOMPLETE if report.failure else EXIT_OK
    if strict:
        try:
            report.raise_for_gaps()
        except IncompleteCaptureError as error:
            print_error(error, sys.__excepthook__)
            code = EXIT_ERROR
    print_reports([report], rank=rank, as_json=as_json)
    return code


def end_with(code: int) -> None:
    """Flush the output streams and end the process at once."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


# Removes from a user's traceback the frames that opdump adds: it then reads as without opdump. An error raised by opdump itself is
# left complete, because its frames matter.


def comes_from_opdump(error: BaseException) -> bool:
    """Whether opdump's code raised the error unintentionally: a defect of opdump."""
    if error.__traceback__ is None or isinstance(error, OpdumpError):
        return False
    raised = innermost(error.__traceback__)
    return is_own(raised) and not hands_on(raised.tb_frame.f_code.co_filename, raised.tb_lineno)


def without_opdump_frames(error: BaseException) -> BaseException:
    """Remove opdump's frames, in place, from an error and from every error it is chained to."""
    for each in chained(error):
        each.__traceback__ = stripped(each.__traceback__)
        clean_message(each)
    return error
