"""`opdump replay`: runs one operator again, on its recorded inputs and arguments.

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
  opdump replay /data/dump --op addmm-op3                   an operator, by name
  opdump replay /data/dump --op blocks.0.attn.softmax       by module and type
  opdump replay /data/dump --op net.py:45 --step 2          by source line
  opdump replay /data/dump --op addmm-op3 --emit repro.py   as a stand-alone script

\b
Exit codes:
  0  the recorded outputs follow from the inputs, up to rounding
  1  they do not
  2  wrong command line, no such operator, or the dump cannot be read
  3  the operator cannot be replayed; standard error has the reason""",
)
@click.argument("dump")
@click.option(
    "--op", metavar="NAME", required=True, help="The operator, in any form of `opdump show --op` that matches only one."
)
@click.option(
    "--step", type=int, metavar="N", help="Step.  [default: the first with NaN or infinities in it, else the first]"
)
@click.option("--rank", type=int, metavar="R", help="Rank.  [default: the lowest]")
@click.option(
    "--occurrence",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Execution within the step, counted from 0.",
)
@click.option(
    "--dtype",
    type=click.Choice(["recorded", "float64", "float32", "bfloat16", "float16"]),
    default="recorded",
    show_default=True,
    help="Type in which floats are computed. The error against float64 is printed in any case.",
)
@click.option(
    "--emit",
    metavar="FILE.py",
    help="Write a script that runs the operator without opdump. Large inputs go to an npz file beside it.",
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
    """Run one operator of DUMP again, on its recorded inputs."""
    from opdump.replaying import replay as run_again
    from opdump.reports.replay import replay_lines

    try:
        result = run_again(dump, op, step=step, rank=rank, occurrence=occurrence, dtype=dtype, emit=emit)
    except CannotReplayError as error:
        click.echo(f"opdump: cannot be replayed: {error}", err=True)
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
