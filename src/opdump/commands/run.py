"""`opdump run`: a script or module, in this process, under capture.

opdump run train.py --lr 0.1
opdump run -c data_dump.json train.py --lr 0.1
opdump run -c data_dump.json -m package.train --lr 0.1
opdump run train_for_npu.py                 a TensorFlow program that asks for a dump itself
torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from opdump.commands import EXIT_ERROR, EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_OK
from opdump.commands.ending import COMPLETE, print_error, print_reports
from opdump.commands.first_overflow import first_option
from opdump.commands.last_word import LastWord, tell_at_last
from opdump.commands.run_options import RunOptions, rank_among_several
from opdump.commands.script import Program, ProgramNotFoundError, load_module, load_script
from opdump.commands.tracebacks import without_opdump_frames
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdump.capturing.report import CaptureReport
    from opdump.plan import DumpPlan


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  opdump run train.py --lr 0.1              statistics of all it does, all steps
  opdump run --path dump --full --steps "0|100-102" train.py
  opdump run --kernels conv --kernels "name-regex(.*/attn/.*)" train.py
  opdump run -c data_dump.json train.py --lr 0.1
  opdump run -c data_dump.json -m package.train --lr 0.1
  opdump run -c acl.json infer.py
  MINDSPORE_DUMP_CONFIG=data_dump.json opdump run train.py
  opdump run train_for_npu.py     a TensorFlow program that asks for a dump itself
  torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py

\b
Options after the script's name are the script's. Its exit code is passed on;
a config that cannot be used ends with 1 before the script starts, a wrong
command line with 2. A script that ended well, and whose dump could not be
written to its end, gives 3.""",
)
@click.option(
    "-c",
    "--config",
    metavar="FILE",
    help="A data_dump.json, acl.json or npu_dump.json. Without it: what MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH names, what a "
    "TensorFlow program asks for in its DumpConfig or NpuOptimizer, or else statistics of everything.",
)
@click.option("-m", "--module", "as_module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.option(
    "--path", metavar="DIR", help="Dump into DIR instead of the config's path; without both into a new directory here."
)
@click.option("--full", is_flag=True, help="Elements too, and not statistics alone.")
@click.option("--steps", metavar="STEPS", help='These steps: "0|5-8|100-120" or "all"; instead of the config\'s.')
@click.option(
    "--kernels",
    metavar="NAME",
    multiple=True,
    help="Operators of this type or name alone, or name-regex(...); may be given several times.",
)
@click.option("--eager", is_flag=True, help="Run compiled regions eagerly and capture inside them.")
@click.option("--stop-after-dump", is_flag=True, help="End the script once the last wanted step is on disk.")
@first_option()
@click.option("--strict", is_flag=True, help="Unknown config keys and gaps in the capture are errors.")
@click.option(
    "--on-error",
    type=click.Choice(["continue", "stop"]),
    help="Where the dump cannot be written any more: run on without it (the default), or stop the script (under --strict).",
)
@click.option(
    "--layout",
    type=click.Choice(["mindspore-2.3", "mindspore-2.10"]),
    help="How files are named; default mindspore-2.3.",
)
@click.option(
    "--framework",
    metavar="NAME",
    default="auto",
    show_default=True,
    help="Whose operators are captured: torch, tensorflow, or one of `opdump extensions`; auto: of the one that SCRIPT imports.",
)
@click.option(
    "--stream-in-names",
    is_flag=True,
    help="TensorFlow's own dumps: five parts in the names of files, as newer versions.",
)
@click.option(
    "--streams", is_flag=True, help="TensorFlow sessions: hand over tensors one by one; less memory, more time."
)
@click.option("--short-names", is_flag=True, help="Leave class names out of the scopes of operators.")
@click.option("--no-children", is_flag=True, help="Count processes that SCRIPT starts, and do not capture them.")
@click.option("--json", "as_json", is_flag=True, help="Print the line at the end as JSON.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    as_module: bool,
    script: str,
    arguments: tuple[str, ...],
    **asked: Any,
) -> NoReturn:
    """Run SCRIPT with ARGUMENTS and dump what its operators read and write."""
    options = RunOptions(**asked)
    last_word = LastWord()
    from opdump.tensorflow.scripts import facts_of_script, prepared_for

    program = _load(script, arguments, as_module=as_module)
    facts = facts_of_script(program.source)
    file = options.file(os.environ, asks_itself=facts.asks_for_dumps)
    rank = rank_among_several(os.environ)
    if file is None and facts.asks_for_dumps:
        options.refuse_unfit(script)
        _tell_slow_kernels()
        target = None if options.path is None else Path(options.path)
        on_error = options.on_error or ("stop" if options.strict else None)
        names = options.stream_in_names
        with prepared_for(facts, path=target, stream_in_names=names, streams=options.streams, on_error=on_error):
            sys.exit(_run_by_itself(program, rank=rank, options=options))
    plan = options.plan(file, os.environ, program=script, directory=program.import_path)
    if rank in (None, 0):
        for warning in plan.warnings:
            click.echo(f"opdump: warning: {warning}", err=True)
        _tell_slow_kernels()
    plan = replace(plan, warnings=())  # said once, and not by every rank
    if options.framework == "auto":
        options = replace(options, framework=facts.framework)
    with prepared_for(facts, records=False):
        is_new = file is None and options.path is None and plan.mode.files_selected
        sys.exit(_run(program, plan, last_word, rank=rank, options=options, is_new=is_new))


def _tell_slow_kernels() -> None:
    from opdump.kernels import why_slow

    if reason := why_slow():
        click.echo(
            f"opdump: statistics take 20 to 100 times longer than with the compiled kernels: {reason}. Install a C++17 compiler (gcc or "
            "clang), then: pip install --force-reinstall --no-deps opdump; OPDUMP_ISA=numpy hides this line",
            err=True,
        )


def _load(script: str, arguments: tuple[str, ...], *, as_module: bool) -> Program:
    try:
        return load_module(script, arguments) if as_module else load_script(script, arguments)
    except ProgramNotFoundError as error:
        raise click.UsageError(str(error)) from error
    except SyntaxError as error:
        sys.excepthook(type(error), without_opdump_frames(error), error.__traceback__)
        sys.exit(EXIT_ERROR)


def _run(
    program: Program, plan: DumpPlan, last_word: LastWord, *, rank: int | None, options: RunOptions, is_new: bool
) -> int | str | None:
    """Run the program under capture; what `sys.exit` is to be called with. `is_new`: the dump's directory was made for this run."""
    from opdump.capturing.capture import capture
    from opdump.capturing.report import told_elsewhere
    from opdump.commands.progress import progress_lines

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
        shutil.rmtree(plan.path, ignore_errors=True)  # nobody asked for this directory, and nothing is in it
    return _result_of(outcome.result, reports)


def _run_by_itself(program: Program, *, rank: int | None, options: RunOptions) -> int | str | None:
    """Run a program that asks for its dumps itself; what `sys.exit` is to be called with."""
    from opdump.tensorflow import finish

    with _Outcome() as outcome:
        outcome.execute(program)
    reports: Sequence[CaptureReport] = ()
    with _Outcome(outcome.result) as ending:
        reports = finish()
        if reports:
            print_reports(reports, rank=rank, as_json=options.as_json)
        else:
            click.echo("opdump: nothing was dumped: the program asked for nothing (enable_dump)", err=True)
        for report in reports if options.strict else ():
            report.raise_for_gaps()
    return _result_of(ending.result, reports)


def _result_of(result: int | str | None, reports: Sequence[CaptureReport]) -> int | str | None:
    """What the program ended with; where that is success and a dump is not whole, another code."""
    return EXIT_INCOMPLETE if not result and any(report.failure for report in reports) else result


class _Outcome(AbstractContextManager["_Outcome"]):
    """How a program ended: what `sys.exit` is to be called with. Errors are printed as the interpreter would."""

    def __init__(self, result: int | str | None = EXIT_OK) -> None:
        self.result = result
        self.told = ""
        """The error of opdump's own that was printed."""

    def execute(self, program: Program) -> None:
        """Run the program; a dump that is complete ends it."""
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
