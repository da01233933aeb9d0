"""`opdump run`: a script or module, in this process, under capture.

opdump run train.py --lr 0.1
opdump run -c data_dump.json train.py --lr 0.1
opdump run -c data_dump.json -m package.train --lr 0.1
opdump run train_for_npu.py                 a TensorFlow program that asks for a dump itself
torchrun --nproc-per-node 2 -m opdump run -c data_dump.json train.py
"""

from __future__ import annotations

import os
import sys
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
  opdump run train.py --lr 0.1              statistics of all it does, all steps
  opdump run --path dump --full --steps "0|100-102" train.py
  opdump run --every 100 train.py           each hundredth step
  opdump run --ring 3 train.py              the last 3 steps, filed when a NaN, an infinity,
                                            an exception or SIGUSR1 comes
  opdump run --max-disk 20GB --max-overhead 10% train.py
  opdump run --kernels conv --kernels "name-regex(.*/attn/.*)" train.py
  opdump run --watch "gradient_vanishing abs_mean_lt=1e-9" train.py
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
written to its end, gives 3."""


@click.command(
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
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
@click.option("--every", metavar="N", type=click.IntRange(1), help="Of the wanted steps the multiples of N.")
@click.option(
    "--ring",
    metavar="N",
    type=click.IntRange(1),
    help="Keep the last N steps in memory, and file them, and the one that runs, when a trigger fires; with --full give --max-memory.",
)
@click.option(
    "--trigger",
    "triggers",
    type=click.Choice(["nan", "inf", "exception", "signal", "loss-spike"]),
    multiple=True,
    help="With --ring: what fires. The first NaN, the first infinity that is none of a mask, an exception that ends SCRIPT, SIGUSR1: all of these "
    "by default; loss-spike: the loss leaps up; and dump.trigger() of the program in any case. May be given several times.",
)
@bound_options()
@click.option(
    "--reread",
    is_flag=True,
    help="Read a tensor each time that an operator has it, also where nothing is known to have written into it since it was read.",
)
@click.option(
    "--kernels",
    metavar="NAME",
    multiple=True,
    help="Operators of this type or name alone, or name-regex(...); may be given several times.",
)
@click.option("--eager", is_flag=True, help="Run compiled regions eagerly and capture inside them.")
@click.option("--stop-after-dump", is_flag=True, help="End the script once the last wanted step is on disk.")
@first_option()
@checking_options()
@click.option("--strict", is_flag=True, help="Unknown config keys and gaps in the capture are errors.")
@click.option(
    "--on-error",
    type=click.Choice(["continue", "stop"]),
    help="Where the dump cannot be written any more: run on without it (the default), or stop the script (under --strict).",
)
@click.option(
    "--layout",
    metavar="NAME",
    callback=checked_layout,
    help="How files are named and arranged: mindspore-2.3 (a file for each tensor), mindspore-2.10, packed (one file for all elements: the "
    "default of --full without a config), or a layout of `opdump extensions`.",
)
@click.option(
    "--framework",
    metavar="NAME",
    default="auto",
    show_default=True,
    help="Whose operators are captured: torch, tensorflow, jax, mindspore, or one of `opdump extensions`; auto: of the one that SCRIPT imports.",
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
    plan = replace(plan, warnings=())  # said once, and not by every rank
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
