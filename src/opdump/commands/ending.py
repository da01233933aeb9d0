"""What is printed when a program under capture has ended: its error as Python would print it, then the reports."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING

import click

from opdump.commands.tracebacks import comes_from_opdump, without_opdump_frames
from opdump.errors import OpdumpError

if TYPE_CHECKING:
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
    """For each report, print its warnings, the verdict, the completeness line, and why its dump is incomplete. `told` is an error
    that was printed before.
    """
    from opdump.reports.completeness import completeness_json, completeness_line, failure_line, verdict_line

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
        verdict = verdict_line(report, rank=rank)
        if verdict:
            click.echo(verdict, err=True)
        click.echo(completeness_line(report, rank=rank), err=True)


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
