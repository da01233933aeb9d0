"""`opdump run`: runs a script or module in this process, under capture.

opdump run train.py --lr 0.1
opdump run -c data_dump.json train.py --lr 0.1
opdump run -c data_dump.json -m package.train --lr 0.1
opdump run train_for_npu.py                 a TensorFlow program that asks for a dump itself
torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.abc import InspectLoader
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from opdump.commands import EXIT_ERROR, EXIT_INCOMPLETE, EXIT_INTERRUPTED, EXIT_OK
from opdump.commands.ending import (
    COMPLETE,
    ExitReport,
    load_reports,
    print_error,
    print_reports,
    print_warnings,
    tell_at_last,
    without_opdump_frames,
)
from opdump.commands.run_options import (
    RunOptions,
    bound_options,
    checked_layout,
    checking_options,
    first_option,
    rank_among_several,
)
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from opdump.capturing.report import CaptureReport
    from opdump.plan import DumpPlan

_EPILOG: Final = """\b
Examples:
  opdump run train.py --lr 0.1              statistics of all operators in all steps
  opdump run --path dump --full --steps "0|100-102" train.py
  opdump run --every 100 train.py           every 100th step
  opdump run --ring 3 train.py              write the last 3 steps at a NaN, infinity,
                                            exception or SIGUSR1
  opdump run --max-disk 20GB --max-overhead 10% train.py
  opdump run --kernels conv --kernels "name-regex(.*/attn/.*)" train.py
  opdump run --watch "gradient_vanishing abs_mean_lt=1e-9" train.py
  opdump run -c data_dump.json train.py --lr 0.1
  opdump run -c data_dump.json -m package.train --lr 0.1
  opdump run -c acl.json infer.py
  MINDSPORE_DUMP_CONFIG=data_dump.json opdump run train.py
  opdump run train_for_npu.py     a TensorFlow program with its own DumpConfig
  torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py

\b
Arguments after the script name are passed to the script. The exit code is that of
the script, or 1 if the config is invalid (the script does not start), 2 for a wrong
command line, 3 if the script succeeded and the dump is incomplete."""

_OPTION_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Program": ("as_module", "framework", "eager", "no_children", "stop_after_dump"),
    "What to record": ("config", "full", "kernels", "steps", "every", "ring", "triggers", "first", "reread"),
    "Where and how to write it": ("path", "layout", "short_names", "stream_in_names", "streams"),
    "Limits": ("max_disk", "min_free_disk", "max_memory", "max_overhead"),
    "Checks": ("check", "watch"),
    "Errors and output": ("strict", "on_error", "as_json"),
}
"""The sections of `--help`, by the names of the options in each; other options come last."""


class _CommandWithGroups(click.Command):
    """A command whose `--help` lists the options by topic."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {each.name: record for each in options if (record := each.get_help_record(ctx))}
        sections = {title: [records.pop(name) for name in names] for title, names in _OPTION_GROUPS.items()}
        for title, rows in {**sections, "Other": [*records.values()]}.items():
            with formatter.section(title):
                formatter.write_dl(rows)


@click.command(
    cls=_CommandWithGroups,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
)
@click.option(
    "-c",
    "--config",
    metavar="FILE",
    help="A data_dump.json, acl.json or npu_dump.json.  [default: $MINDSPORE_DUMP_CONFIG or $MS_ACL_DUMP_CFG_PATH; the DumpConfig of a "
    "TensorFlow program; else statistics of all operators]",
)
@click.option("-m", "--module", "as_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@click.option(
    "--path", metavar="DIR", help="Dump directory.  [default: the path in the config, or a new directory here]"
)
@click.option("--full", is_flag=True, help="Record tensor values, not just statistics.")
@click.option(
    "--steps", metavar="STEPS", help='Steps to record, such as "0|5-8|100-120" or "all"; overrides the config.'
)
@click.option("--every", metavar="N", type=click.IntRange(1), help="Record every Nth selected step.")
@click.option(
    "--ring",
    metavar="N",
    type=click.IntRange(1),
    help="Keep the last N steps in memory, and write them and the current step when a trigger fires. With --full, set --max-memory.",
)
@click.option(
    "--trigger",
    "triggers",
    type=click.Choice(["nan", "inf", "exception", "signal", "loss-spike"]),
    multiple=True,
    help="Trigger of --ring: the first NaN, the first infinity outside a mask, an exception that ends SCRIPT, SIGUSR1, or a jump of the loss. "
    "dump.trigger() in the program always fires. Repeatable.  [default: all but loss-spike]",
)
@bound_options()
@click.option(
    "--reread",
    is_flag=True,
    help="Read every tensor at every use, even if no write to it was seen since the last read.",
)
@click.option(
    "--kernels",
    metavar="NAME",
    multiple=True,
    help="Record only operators of this type or name, or name-regex(...). Repeatable.",
)
@click.option("--eager", is_flag=True, help="Run compiled regions eagerly, and record the operators inside.")
@click.option("--stop-after-dump", is_flag=True, help="End the script after the last selected step is on disk.")
@first_option()
@checking_options()
@click.option("--strict", is_flag=True, help="Treat unknown config keys and gaps in the capture as errors.")
@click.option(
    "--on-error",
    type=click.Choice(["continue", "stop"]),
    help="If the dump can no longer be written, continue without it or stop the script.  [default: continue; stop with --strict]",
)
@click.option(
    "--layout",
    metavar="NAME",
    callback=checked_layout,
    help="Names and structure of the files: mindspore-2.3 (one file per tensor), mindspore-2.10, packed (one file for all values), or a layout "
    "listed by `opdump extensions`.  [default: packed for --full without a config, else from the config]",
)
@click.option(
    "--framework",
    metavar="NAME",
    default="auto",
    show_default=True,
    help="Framework to record: torch, tensorflow, jax, mindspore, onnxruntime, one listed by `opdump extensions`, or auto (the one that "
    "SCRIPT imports). ONNX Runtime is recorded beside each of them.",
)
@click.option(
    "--stream-in-names",
    is_flag=True,
    help="TensorFlow's own dumps: add the stream to file names, as newer versions do.",
)
@click.option(
    "--streams",
    is_flag=True,
    help="TensorFlow sessions: fetch tensors one at a time, which is slower and uses less memory.",
)
@click.option("--short-names", is_flag=True, help="Omit class names from operator scopes.")
@click.option("--no-children", is_flag=True, help="Do not record the processes that SCRIPT starts; count them.")
@click.option("--json", "as_json", is_flag=True, help="Print the closing line as JSON.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    *,
    as_module: bool,
    script: str,
    arguments: tuple[str, ...],
    **asked: Any,
) -> NoReturn:
    """Run SCRIPT with ARGUMENTS and record the inputs and outputs of its operators."""
    options = RunOptions(**asked)
    exit_report = ExitReport()
    from opdump.tensorflow.installation import facts_of_program, prepared_for

    program = _load(script, arguments, as_module=as_module)
    facts = facts_of_program(program.source, program.import_path)
    file = options.file(os.environ)
    rank = rank_among_several(os.environ)
    if file is None and facts.asks_for_dumps:
        options.refuse_unfit(script)
        _tell_slow_kernels()
        with prepared_for(facts, options.of_sessions):
            sys.exit(run_by_itself(program, rank=rank, options=options))
    plan = options.plan(file, os.environ, program=script, directory=program.import_path)
    if rank in (None, 0):
        print_warnings(plan.warnings)
        _tell_slow_kernels()
    plan = replace(plan, warnings=())  # one warning for all ranks
    if options.framework == "auto":
        options = replace(options, framework=facts.framework)
    with prepared_for(facts):
        is_new = file is None and options.path is None and plan.mode.files_selected
        sys.exit(run_under_capture(program, plan, exit_report, rank=rank, options=options, is_new=is_new))


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


# Runs a program in this process, under capture or with a dump config of its own, and reports its outcome.


def run_under_capture(
    program: Program, plan: DumpPlan, exit_report: ExitReport, *, rank: int | None, options: RunOptions, is_new: bool
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
        exit_report.leave_to_it(
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


# A user's program, prepared to run in this process as `python train.py` or `python -m package.module` would run it. Everything that
# a script can see of its start is as Python makes it: `sys.argv`, `sys.path[0]`, and a fresh `__main__` module in `sys.modules`,
# which its own classes need for pickling, and from which `multiprocessing` derives what a spawned child must import. The process
# belongs to the script from then on: `__main__` stays in place after the script ends, for its `atexit` functions.


class ProgramNotFoundError(Exception):
    """The given script or module cannot be found or is not Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled program, and the attributes of its `__main__` module."""

    code: CodeType
    module: ModuleType
    argv: tuple[str, ...]
    import_path: str
    source: str = ""
    """Its source text; empty if not available."""

    def execute(self) -> None:
        """Run the program to its end. Everything that it raises passes through, including SystemExit."""
        sys.argv[:] = self.argv
        if not getattr(sys.flags, "safe_path", False):  # with -P there is no entry to replace
            sys.path[0] = self.import_path
        sys.modules["__main__"] = self.module
        exec(self.code, self.module.__dict__)  # noqa: S102  running the user's program is the point


def load_script(path: str, arguments: Sequence[str]) -> Program:
    """Compile the script at `path`. As in Python, a directory stands for its `__main__.py`.

    Raises ProgramNotFoundError if there is no such file, and SyntaxError and ValueError like `compile`.
    """
    filename = os.path.join(os.getcwd(), path)  # not normalised: `python ./train.py` keeps the dot, too
    if os.path.isdir(filename):
        import_path = filename
        filename = os.path.join(filename, "__main__.py")
    else:
        import_path = os.path.dirname(os.path.realpath(filename))
    try:
        with io.open_code(filename) as file:
            source = file.read()
    except OSError as error:
        raise ProgramNotFoundError(
            f"cannot open the script '{path}': {error.strerror}. To run a module: opdump run -m NAME"
        ) from error
    if b"\0" in source:
        raise ProgramNotFoundError(f"'{path}' is not Python source: it contains null bytes")
    loader = importlib.machinery.SourceFileLoader("__main__", filename)
    return Program(
        code=compile(source, filename, "exec", dont_inherit=True),
        module=_main_module(__file__=filename, __loader__=loader, __spec__=None, __package__=None, __cached__=None),
        argv=(path, *arguments),
        import_path=import_path,
        source=importlib.util.decode_source(source),
    )


def load_module(name: str, arguments: Sequence[str]) -> Program:
    """Find and compile the module `name`, or `name.__main__` if `name` is a package, as `python -m` does.

    Parent packages are imported. Raises ProgramNotFoundError if there is no such module.
    """
    import_path = os.getcwd()
    before = sys.path[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = import_path  # the current directory comes first in the search for the module
    try:
        spec = _find(name)
        if spec.submodule_search_locations is not None:
            spec = _find(f"{name}.__main__")
    except ProgramNotFoundError:
        sys.path[0] = before
        raise
    loader = spec.loader
    code = loader.get_code(spec.name) if isinstance(loader, InspectLoader) else None
    if code is None or loader is None:
        raise ProgramNotFoundError(f"the module '{name}' has no Python code ({spec.origin})")
    origin = spec.origin or name
    return Program(
        code=code,
        module=_main_module(
            __file__=origin, __loader__=loader, __spec__=spec, __package__=spec.parent, __cached__=spec.cached
        ),
        argv=(origin, *arguments),
        import_path=import_path,
        source=(loader.get_source(spec.name) or "") if isinstance(loader, InspectLoader) else "",
    )


def _find(name: str) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:  # a parent is missing, is not a package, or has no spec
        raise ProgramNotFoundError(f"no module named '{name}': {error}") from error
    if spec is None:
        hint = f"; to run the file: opdump run {name}" if name.endswith(".py") else ""
        raise ProgramNotFoundError(f"no module named '{name}' from {os.getcwd()}{hint}")
    return spec


def _main_module(**attributes: Any) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(attributes, __builtins__=builtins, __annotations__={})
    return module
