"""Runs a program in this process, under capture or with a dump config of its own, and reports its outcome."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR, EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_OK
from opdump.commands.ending import COMPLETE, load_reports, print_error, print_reports
from opdump.commands.last_word import LastWord, tell_at_last
from opdump.commands.run_options import RunOptions
from opdump.commands.script import Program
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.capturing.report import CaptureReport
    from opdump.plan import DumpPlan


def run_under_capture(
    program: Program, plan: DumpPlan, last_word: LastWord, *, rank: int | None, options: RunOptions, is_new: bool
) -> int | str | None:
    """Run the program under capture; returns the argument for `sys.exit`. `is_new`: the dump directory was created for this run."""
    from opdump.capturing.capture import capture
    from opdump.capturing.report import told_elsewhere
    from opdump.commands.progress import progress_lines

    load_reports(checked=plan.checks is not None)
    dumps = []
    with (
        _Outcome() as outcome,
        capture(plan, framework=options.framework, **options.settings) as dump,
        progress_lines(dump, enabled=rank in (None, 0)),
    ):
        dumps.append(dump)

        def replaced(report: CaptureReport) -> None:
            dumps.clear()
            print_reports([report], rank=rank, as_json=options.as_json)

        dump.when_replaced, dump.when_ended, dump.may_wait = replaced, told_elsewhere, True
        outcome.execute(program)
    if dumps and dumps[0].awaits_children:
        last_word.leave_to_it(
            lambda: tell_at_last(dumps[0], rank=rank, as_json=options.as_json, strict=options.strict),
            ended_well=not outcome.result,
        )
        return outcome.result
    reports = [dump.report for dump in dumps if dump.report is not None]
    print_reports(reports, rank=rank, as_json=options.as_json, told=outcome.told)
    if is_new and rank is None and not any(report.left_data for report in reports):
        shutil.rmtree(plan.path, ignore_errors=True)  # the directory was not requested, and is empty
    return _result_of(outcome.result, reports)


def run_by_itself(program: Program, *, rank: int | None, options: RunOptions) -> int | str | None:
    """Run a program that has a dump config of its own; returns the argument for `sys.exit`."""
    from opdump.tensorflow import finish

    load_reports(checked=False)
    with _Outcome() as outcome:
        outcome.execute(program)
    reports: Sequence[CaptureReport] = ()
    with _Outcome(outcome.result) as ending:
        reports = finish()
        if reports:
            print_reports(reports, rank=rank, as_json=options.as_json)
        else:
            click.echo("opdump: nothing was dumped: the program did not enable a dump (enable_dump)", err=True)
        for report in reports if options.strict else ():
            report.raise_for_gaps()
    return _result_of(ending.result, reports)


def _result_of(result: int | str | None, reports: Sequence[CaptureReport]) -> int | str | None:
    """The result of the program, or the exit code for an incomplete dump if the program succeeded."""
    return EXIT_INCOMPLETE if not result and any(report.failure for report in reports) else result


class _Outcome(AbstractContextManager["_Outcome"]):
    """How a program ended: the argument for `sys.exit`. Errors are printed as the interpreter would print them."""

    def __init__(self, result: int | str | None = EXIT_OK) -> None:
        self.result = result
        self.told = ""
        """The error of opdump itself that was printed."""

    def execute(self, program: Program) -> None:
        """Run the program. It ends early if the dump is complete."""
        from opdump.adapters.base import DumpComplete

        try:
            program.execute()
        except DumpComplete:
            click.echo(COMPLETE, err=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is None:
            return True
        if isinstance(error, SystemExit):
            self.result = error.code
            return True
        print_error(error, sys.excepthook)
        self.told = str(error) if isinstance(error, OpdumpError) else ""
        self.result = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_ERROR
        return True
