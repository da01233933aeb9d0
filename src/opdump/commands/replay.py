"""`opdump replay`: one operator again, from its dumped inputs and arguments.

opdump replay /data/dump --op first-Linear/addmm-op3
"""

from __future__ import annotations

import json
import sys

import click

from opdump.commands import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from opdump.errors import CannotReplayError, OpdumpError

_EXIT_CANNOT = 3


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  opdump replay /data/dump --op addmm-op3                   one operator
  opdump replay /data/dump --op net.py:45 --step 2          by its line
  opdump replay /data/dump --op addmm-op3 --emit repro.py   as a program

\b
Ends with 0 where the recorded outputs are what the inputs give, within what
their types' rounding allows, with 1 where they are not, with 2 for a wrong
command line, a name that is not in the dump or a dump that cannot be read,
with 3 where the operator cannot be run again (standard error says why).""",
)
@click.argument("dump")
@click.option(
    "--op", metavar="NAME", required=True, help="Its name as `opdump show` prints it, or the end of that; or FILE:LINE."
)
@click.option("--step", type=int, metavar="N", help="In this step.  [default: the first that has it]")
@click.option("--rank", type=int, metavar="R", help="On this rank.  [default: the lowest]")
@click.option(
    "--occurrence", type=click.IntRange(min=0), default=0, metavar="N", help="Its N-th execution in the step, from 0."
)
@click.option(
    "--dtype",
    type=click.Choice(["recorded", "float64", "float32", "bfloat16", "float16"]),
    default="recorded",
    show_default=True,
    help="Compute floats in this type; outputs are held against float64 in any case.",
)
@click.option(
    "--emit",
    metavar="FILE.py",
    help="Write a program that runs it again without opdump; large inputs beside it, in an npz.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json/replay.json).")
def replay(
    *,
    dump: str,
    op: str,
    step: int | None,
    rank: int | None,
    occurrence: int,
    dtype: str,
    emit: str | None,
    as_json: bool,
) -> None:
    """Run one operator of DUMP again, from what it read."""
    from opdump.replaying.replay import replay as run_again
    from opdump.reports.replay import replay_lines

    try:
        result = run_again(dump, op, step=step, rank=rank, occurrence=occurrence, dtype=dtype, emit=emit)
    except CannotReplayError as error:
        click.echo(f"opdump: cannot be run again: {error}", err=True)
        sys.exit(_EXIT_CANNOT)
    except OpdumpError as error:
        click.echo(f"opdump: error: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        click.echo("opdump: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    lines = [json.dumps(result.to_json(), indent=2)] if as_json else replay_lines(result)
    for line in lines:
        click.echo(line)
    sys.exit(EXIT_OK if result.verdict == "agrees" else EXIT_ERROR)
