"""`opdump run`: runs a script or module in this process, under capture.

opdump run train.py --lr 0.1
opdump run -c data_dump.json train.py --lr 0.1
opdump run -c data_dump.json -m package.train --lr 0.1
opdump run train_for_npu.py                 a TensorFlow program that asks for a dump itself
torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

import click

from opdump.commands import EXIT_ERROR
from opdump.commands.ending import print_warnings
from opdump.commands.last_word import LastWord
from opdump.commands.program_run import run_by_itself, run_under_capture
from opdump.commands.run_options import (
    RunOptions,
    bound_options,
    checked_layout,
    checking_options,
    first_option,
    rank_among_several,
)
from opdump.commands.script import Program, ProgramNotFoundError, load_module, load_script
from opdump.commands.tracebacks import without_opdump_frames

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
    help="Framework to record: torch, tensorflow, jax, mindspore, one listed by `opdump extensions`, or auto (the one that SCRIPT imports).",
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
    last_word = LastWord()
    from opdump.tensorflow.scripts import facts_of_program, prepared_for

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
        sys.exit(run_under_capture(program, plan, last_word, rank=rank, options=options, is_new=is_new))


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
