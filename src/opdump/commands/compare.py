"""`opdump compare`: finds the operator that introduced the difference between two runs.

opdump compare /data/before /data/after
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opdump.commands import EXIT_INTERRUPTED, EXIT_USAGE
from opdump.commands.progress import progress_bar
from opdump.errors import OpdumpError
from opdump.interpreter.critical_sections import collected_rarely

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from opdump.comparison.result import Result

_EXITS: Final = {"identical": 0, "benign": 0, "divergent": 1, "incomparable": 3}


class _Steps(click.ParamType[tuple[int, int]]):
    """`3`, or `3:4` for step 3 of A and step 4 of B."""

    name = "N[:M]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        first, separator, second = value.partition(":")
        if not first.isdigit() or (separator and not second.isdigit()):
            self.fail(
                f"{value!r} is not a step; expected a number such as 3, or two such as 3:4 (step of A, step of B)",
                param,
                ctx,
            )
        return int(first), int(second) if separator else int(first)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  opdump compare /data/before /data/after            two versions of a program
  opdump compare /data/run --step 3:4                two steps of one run
  opdump compare /data/a /data/b --save-match m.yaml save the operator mapping
  opdump compare /data/a /data/b --json | jq '.introduced[0]'

\b
Exit codes:
  0  identical, or different only by rounding
  1  results differ, or an operator introduced a difference
  2  wrong command line, or a dump cannot be read
  3  not comparable: hardly any operator of A was found in B, or the ranks of
     the runs share the work differently

\b
Record both runs with --full to compare values; statistics prove less.
docs/compare.md explains the verdicts.""",
)
@click.argument("a")
@click.argument("b", required=False)
@click.option("--step", "steps", type=_Steps(), help="Only this step; N:M compares step N of A with step M of B.")
@click.option("--rank", type=int, metavar="R", help="Only this rank.  [default: all ranks that both have]")
@click.option(
    "-o", "--output", metavar="DIR", help="Write compare.json, .csv (every pair of outputs), .html and .txt to DIR."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Maximum number of divergences to show.",
)
@click.option("--save-match", metavar="FILE", help="Write the operator mapping to FILE (match.yaml).")
@click.option("--match", metavar="FILE", help="Use the operator mapping in FILE (match.yaml).")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Number of processes."
)
@click.option("--wide", is_flag=True, help="Do not truncate to the terminal width.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json/compare.json).")
def compare(
    *,
    a: str,
    b: str | None,
    steps: tuple[int, int] | None,
    rank: int | None,
    output: str | None,
    limit: int,
    save_match: str | None,
    match: str | None,
    jobs: int,
    wide: bool,
    as_json: bool,
) -> None:
    """Find the operator where the runs dumped in A and B diverge.

    Without B, two steps of A are compared: --step N:M.
    """
    from opdump.comparison.compare import compare as compare_dumps

    if b is None and (steps is None or steps[0] == steps[1]):
        raise click.UsageError("only one dump: name a second one, or two of its steps: --step 3:4")
    try:
        first, second = steps if steps is not None else (None, None)
        with collected_rarely(), progress_bar() as progress, _executor(jobs) as executor:
            result = compare_dumps(
                a,
                a if b is None else b,
                step=first,
                step_b=second,
                rank=rank,
                match=match,
                executor=executor,
                progress=progress,
            )
        if save_match is not None:
            result.save_matches(save_match)
        _report(result, output, limit, as_json=as_json, wide=wide)
        code = _EXITS[result.verdict]
    except OpdumpError as error:
        click.echo(f"opdump: error: {error}", err=True)
        code = EXIT_USAGE
    except KeyboardInterrupt:
        click.echo("opdump: interrupted: no verdict was reached, and nothing was written", err=True)
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _report(result: Result, output: str | None, limit: int, *, as_json: bool, wide: bool) -> None:
    from opdump.reports.comparison import print_comparison
    from opdump.reports.table import Printer

    if output is not None:
        from opdump.reports.comparison import write_comparison

        write_comparison(Path(output), result, limit=limit)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_comparison(Printer(wide=wide), result, limit=limit)


@contextmanager
def _executor(jobs: int) -> Iterator[Executor | None]:
    """A pool of processes; None for one job. On an interruption, waiting work is dropped and the processes end."""
    if jobs == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    executor = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin_job, initargs=(jobs,))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _begin_job(jobs: int) -> None:
    """Start one of several processes: only the main process handles Ctrl-C, and the processors are shared."""
    from opdump import kernels

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernels.set_threads(max(1, kernels.threads() // jobs))
