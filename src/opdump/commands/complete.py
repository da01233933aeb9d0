"""`opdump complete`: adds what opdump records to a dump that MindSpore wrote.

opdump complete /data/dump
opdump complete /data/dump -o /tmp/completed --statistics max,min,avg,md5
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR, EXIT_INTERRUPTED
from opdump.commands.progress import progress_bar
from opdump.interpreter.late_imports import imported_for_good

if TYPE_CHECKING:
    from opdump.conversion.completion import CompletedRank, Completion


@click.command(
    epilog="""\b
Examples:
  opdump complete /data/dump                    in place
  opdump complete /data/dump -o out             complete a copy
  opdump complete /data/dump --statistics max,min,avg,md5
  opdump show /data/dump                        then show its contents

\b
DIR is the `path` in the data_dump.json that MINDSPORE_DUMP_CONFIG named. MindSpore
is not needed. This adds a statistic.csv to every iteration and an index in
.dump_metadata, and converts bfloat16 files, which numpy cannot read, to float32.
Everything else stays the same. You can run it again to finish an interrupted run.

\b
Exit codes:
  0    done
  1    a file could not be read (the rest is done), or DIR is not such a dump
  2    wrong command line
  130  interrupted by Ctrl-C; every file is whole, and DIR can be read""",
)
@click.argument("directory", metavar="DIR")
@click.option(
    "-o", "--out", metavar="OUT", help="Leave DIR unchanged and complete a copy in OUT, a new or empty directory."
)
@click.option(
    "--statistics",
    metavar="NAME,...",
    help="Columns of statistic.csv, named as in statistic_category.  [default: those in the dump's data_dump.json]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the work done in each rank, and unreadable files.")
def complete(*, directory: str, out: str | None, statistics: str | None, as_json: bool) -> None:
    """Add statistics and an index to the dump that MindSpore wrote in DIR."""
    with imported_for_good("opdump.conversion.completion"):
        from opdump.conversion.completion import complete as complete_dump
        from opdump.conversion.completion import copy_dump

    names = [name.strip() for name in statistics.split(",")] if statistics is not None else []
    if statistics is not None and not all(names):
        raise click.BadParameter(
            f"{statistics!r} is not a list of statistics; expected names such as max,min,avg", param_hint="--statistics"
        )
    path = Path(directory)
    with progress_bar("files") as tell:
        if out is not None:
            path = copy_dump(path, Path(out), progress=tell)
        done = complete_dump(path, names, progress=tell)
    _report(done, as_json=as_json)


def _report(done: Completion, *, as_json: bool) -> None:
    from opdump.reports.table import printable

    for warning in done.warnings:
        click.echo(f"opdump: warning: {printable(warning)}", err=True)
    if as_json:
        click.echo(_json(done))
    else:
        for rank in done.ranks:
            click.echo(printable(_line(rank, done)))
        for problem in done.problems:
            click.echo(f"opdump: problem: {printable(str(problem))}", err=True)
    if done.interrupted:
        if not as_json:
            click.echo("opdump: interrupted; the dump can be read, and a second run completes the rest", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if all(rank.is_empty for rank in done.ranks):
        click.echo(
            f"opdump: error: {printable(str(done.path))}: MindSpore left no tensors in it: it only dumps compiled code (GRAPH_MODE, "
            "@ms.jit), for the iterations and kernels in its data_dump.json, and nothing if the compilation ended with "
            "`Unexpected type Complex`",
            err=True,
        )
        sys.exit(EXIT_ERROR)
    if done.problems:
        sys.exit(EXIT_ERROR)
    if not as_json:
        import shlex

        click.echo(printable(f"next: opdump show {shlex.quote(str(done.path))}"))


def _line(rank: CompletedRank, done: Completion) -> str:
    from opdump import amounts

    if rank.is_empty:
        return f"rank {rank.rank_id}: no tensors, nothing was changed: {rank.path}"
    if rank.was_complete:
        return f"rank {rank.rank_id}: complete already, nothing was changed: {rank.path}"
    words = [
        amounts.count(rank.steps, "step"),
        f"{amounts.count(rank.operators, 'operator')}, {rank.with_lines:,} with their line",
        amounts.count(rank.tensors, "tensor"),
        f"{rank.statistics:,} statistic.csv written ({', '.join(done.statistics)})",
    ]
    if rank.repaired:
        words.append(f"{amounts.count(rank.repaired, 'file')} of bfloat16 rewritten as float32")
    return f"rank {rank.rank_id}: {', '.join(words)}, {amounts.seconds(done.seconds)}: {rank.path}"


def _json(done: Completion) -> str:
    import json
    from dataclasses import asdict

    content = {
        "path": str(done.path),
        "statistics": list(done.statistics),
        "ranks": [asdict(rank) for rank in done.ranks],
        "problems": [str(problem) for problem in done.problems],
        "warnings": done.warnings,
        "seconds": round(done.seconds, 3),
        "interrupted": done.interrupted,
    }
    return json.dumps(content, indent=2)
