"""`opdump run`: a script or module, in this process, under capture.

opdump run -c data_dump.json train.py --lr 0.1
opdump run -c data_dump.json -m package.train --lr 0.1
opdump run train_for_npu.py                 a TensorFlow program that asks for a dump itself
torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from opdump.commands import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK
from opdump.commands.first_overflow import first_option, with_first
from opdump.commands.script import Program, ProgramNotFoundError, load_module, load_script
from opdump.commands.tracebacks import comes_from_opdump, without_opdump_frames
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.plan import DumpPlan
    from opdump.session import CaptureReport


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  opdump run -c data_dump.json train.py --lr 0.1
  opdump run -c data_dump.json -m package.train --lr 0.1
  opdump run -c acl.json infer.py
  MINDSPORE_DUMP_CONFIG=data_dump.json opdump run train.py
  opdump run train_for_npu.py     a TensorFlow program that asks for a dump itself
  torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py

\b
Options after the script's name are the script's. Its exit code is passed on;
a config that cannot be used ends with 1 before the script starts, a wrong
command line with 2.""",
)
@click.option(
    "-c",
    "--config",
    metavar="FILE",
    help="The data_dump.json, acl.json or npu_dump.json; without it, what MINDSPORE_DUMP_CONFIG names, or what a TensorFlow "
    "program asks for in its DumpConfig or NpuOptimizer.",
)
@click.option("-m", "--module", "as_module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.option("--path", metavar="DIR", help="Dump into DIR instead of the config's path.")
@click.option("--eager", is_flag=True, help="Run compiled regions eagerly and capture inside them.")
@click.option("--stop-after-dump", is_flag=True, help="End the script once the last wanted step is on disk.")
@first_option()
@click.option("--strict", is_flag=True, help="Unknown config keys and gaps in the capture are errors.")
@click.option(
    "--layout",
    type=click.Choice(["mindspore-2.3", "mindspore-2.10"]),
    help="How files are named; default mindspore-2.3.",
)
@click.option(
    "--framework",
    type=click.Choice(["auto", "torch", "tensorflow"]),
    default="auto",
    show_default=True,
    help="Whose operators are captured; auto: of the one that SCRIPT imports.",
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
@click.option("--json", "as_json", is_flag=True, help="Print the line at the end as JSON.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    config: str | None,
    as_module: bool,
    path: str | None,
    eager: bool,
    stop_after_dump: bool,
    first: bool,
    strict: bool,
    layout: str | None,
    framework: Literal["auto", "torch", "tensorflow"],
    stream_in_names: bool,
    streams: bool,
    short_names: bool,
    as_json: bool,
    script: str,
    arguments: tuple[str, ...],
) -> NoReturn:
    """Run SCRIPT with ARGUMENTS and dump what its operators read and write."""
    overrides: dict[str, Any] = {}
    if path is not None:
        overrides["path"] = path
    if layout is not None:
        overrides["layout"] = layout
    if short_names:
        overrides["class_names_in_scope"] = False
    from opdump.tensorflow.scripts import facts_of_script, prepared_for

    program = _load(script, arguments, as_module=as_module)
    facts = facts_of_script(program.source)
    file = _config_file(config, os.environ, asks_itself=facts.asks_for_dumps)
    rank = _rank(os.environ)
    if file is None and facts.asks_for_dumps:
        unfit = [name for name, value in (("--eager", eager), ("--first", first), ("--layout", layout)) if value]
        if unfit:
            raise click.UsageError(
                f"{script} asks for its dumps itself; {', '.join(unfit)} needs a config: give -c FILE"
            )
        target = None if path is None else Path(path)
        with prepared_for(facts, path=target, stream_in_names=stream_in_names, streams=streams):
            sys.exit(_run_by_itself(program, rank=rank, strict=strict, as_json=as_json))
    plan = with_first(_plan(file, strict=strict, directory=program.import_path, overrides=overrides), first=first)
    if rank in (None, 0):
        for warning in plan.warnings:
            click.echo(f"opdump: warning: {warning}", err=True)
    plan = replace(plan, warnings=())  # said once, and not by every rank
    if framework == "auto":
        framework = facts.framework
    options = {"eager": eager, "stop_after_dump": stop_after_dump, "strict": strict, "framework": framework}
    with prepared_for(facts, records=False):
        sys.exit(_run(program, plan, rank=rank, as_json=as_json, options=options))


def _config_file(config: str | None, environ: Mapping[str, str], *, asks_itself: bool) -> str | None:
    """The file that the command line or the environment names; None where variables ask for failures without one, or the program asks."""
    file = config or environ.get("MINDSPORE_DUMP_CONFIG")
    if not file and not asks_itself and not (environ.get("ASCEND_DUMP_SCENE") or environ.get("NPU_COLLECT_PATH")):
        raise click.UsageError(
            "no config: give -c data_dump.json or set MINDSPORE_DUMP_CONFIG. "
            "To write one: opdump config new data_dump.json. (A TensorFlow program that imports npu_bridge or npu_device, or names "
            "NpuOptimizer, needs none.)"
        )
    return file or None


def _plan(file: str | None, *, strict: bool, directory: str, overrides: Mapping[str, Any]) -> DumpPlan:
    """Read the config and make its directory; the first thing that may touch the disk. `directory` is the script's."""
    from opdump.configs.acl import plan_from_environment
    from opdump.configs.dialects import load_plan

    asked = plan_from_environment(os.environ) if file is None else None
    if asked is not None:
        return replace(asked, **{**overrides, **({"path": Path(overrides["path"])} if "path" in overrides else {})})
    return load_plan(file, environ=os.environ, strict=strict, program_directory=directory, **overrides)


def _load(script: str, arguments: tuple[str, ...], *, as_module: bool) -> Program:
    try:
        return load_module(script, arguments) if as_module else load_script(script, arguments)
    except ProgramNotFoundError as error:
        raise click.UsageError(str(error)) from error
    except SyntaxError as error:
        sys.excepthook(type(error), without_opdump_frames(error), error.__traceback__)
        sys.exit(EXIT_ERROR)


def _rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this process where a launcher started several; None for one process by itself."""
    rank = environ.get("RANK", "")
    several = environ.get("WORLD_SIZE", "1") not in ("", "1")
    return int(rank) if several and rank.isdecimal() else None


def _run(
    program: Program, plan: DumpPlan, *, rank: int | None, as_json: bool, options: Mapping[str, Any]
) -> int | str | None:
    """Run the program under capture; what `sys.exit` is to be called with."""
    from opdump.commands.progress import progress_lines
    from opdump.session import capture

    dumps = []
    with _Outcome() as outcome, capture(plan, **options) as dump, progress_lines(dump, enabled=rank in (None, 0)):
        dumps.append(dump)
        outcome.execute(program)
    _print_reports([dump.report for dump in dumps if dump.report is not None], rank=rank, as_json=as_json)
    return outcome.result


def _run_by_itself(program: Program, *, rank: int | None, strict: bool, as_json: bool) -> int | str | None:
    """Run a program that asks for its dumps itself; what `sys.exit` is to be called with."""
    from opdump.tensorflow import finish

    with _Outcome() as outcome:
        outcome.execute(program)
    with _Outcome(outcome.result) as ending:
        reports = finish()
        if reports:
            _print_reports(reports, rank=rank, as_json=as_json)
        else:
            click.echo("opdump: nothing was dumped: the program asked for nothing (enable_dump)", err=True)
        for report in reports if strict else ():
            report.raise_for_gaps()
    return ending.result


class _Outcome(AbstractContextManager["_Outcome"]):
    """How a program ended: what `sys.exit` is to be called with. Errors are printed as the interpreter would."""

    def __init__(self, result: int | str | None = EXIT_OK) -> None:
        self.result = result

    def execute(self, program: Program) -> None:
        """Run the program; a dump that is complete ends it."""
        from opdump.adapters.settings import DumpComplete

        try:
            program.execute()
        except DumpComplete:
            click.echo("opdump: the last wanted step is on disk, the script ends here (--stop-after-dump)", err=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        if error is None:
            return True
        if isinstance(error, SystemExit):
            self.result = error.code
            return True
        _print_error(error)
        self.result = EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_ERROR
        return True


def _print_reports(reports: Sequence[CaptureReport], *, rank: int | None, as_json: bool) -> None:
    from opdump.reports.completeness import completeness_json, completeness_line

    if sys.stdout is not None:
        sys.stdout.flush()  # what the script printed comes first, also where both go to one file
    for report in reports:
        for warning in report.warnings:
            click.echo(f"opdump: warning: {warning}", err=True)
        line = completeness_json(report, rank=rank) if as_json else completeness_line(report, rank=rank)
        click.echo(line, err=True)


def _print_error(error: BaseException) -> None:
    """Print an error that ended the script, by the script's own excepthook where it has set one."""
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
    sys.excepthook(type(error), error, error.__traceback__)
