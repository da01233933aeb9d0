"""What is said when a program that ran under capture has ended: its error as Python would print it, then the reports."""

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

COMPLETE = "opdump: the last wanted step has ended, the script ends here (--stop-after-dump)"
ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def print_warnings(texts: Iterable[str]) -> None:
    for text in texts:
        click.echo(f"opdump: warning: {text}", err=True)


def load_reports(*, checked: bool) -> None:
    """Imports what `print_reports` takes, before the program runs: at its end there may be no descriptor left to read a module by.

    `checked`: tensors are checked while it runs. Tables take as long to import as all else that is printed here, and most runs have none.
    """
    for name in ("completeness", "verdict_line", *(("checked",) if checked else ())):
        import_module(f"opdump.reports.{name}")


def print_reports(reports: Sequence[CaptureReport], *, rank: int | None, as_json: bool, told: str = "") -> None:
    """Print of each report its warnings, the verdict, the line of figures, and what kept its dump from being whole; `told` is an error that was printed before."""
    from opdump.reports.completeness import completeness_json, completeness_line, failure_line
    from opdump.reports.verdict_line import verdict_line

    if sys.stdout is not None:
        sys.stdout.flush()  # what the script printed comes first, also where both go to one file
    for report in reports:
        print_warnings(report.warnings)
        if report.failure:
            click.echo(failure_line(report, with_cause=report.failure != told), err=True)
        if as_json:
            click.echo(completeness_json(report, rank=rank), err=True)
            continue
        if report.checked is not None:
            from opdump.reports.checked import print_checked

            print_checked(report.checked, path=str(report.path), rank=rank)
        verdict = verdict_line(report, rank=rank)
        if verdict:
            click.echo(verdict, err=True)
        click.echo(completeness_line(report, rank=rank), err=True)


def print_error(error: BaseException, hook: ExceptHook) -> None:
    """Print an error that ended the program, by `hook`, which is the program's own where it has set one."""
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
