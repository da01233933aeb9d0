"""`opdump show`: shows the contents of any dump.

opdump show /data/dump
opdump show /data/dump --op conv1-Conv2d/convolution-op7 --step 0
opdump show /data/dump --source train.py:175
opdump show /data/dump --graph ge_proto_00002_Build.txt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR
from opdump.commands.progress import format_options

if TYPE_CHECKING:
    from opdump.catalog.catalog import Catalog
    from opdump.index.runs import RunChoice
    from opdump.reports.computational_graph import GraphSearch
    from opdump.reports.formats import ReportFormat
    from opdump.reports.watch import WatchedOutput


@click.command(
    epilog="""\b
Examples:
  opdump show /data/dump                           runs, steps and the first operators
  opdump show /data/dump --step 2 --limit 0        all operators of step 2
  opdump show /data/dump --op convolution-op7      one operator: inputs, outputs, files
  opdump show /data/dump --op Conv2D --step 0      all convolutions of step 0
  opdump show /data/dump --op blocks.0.attn        all in a module
  opdump show /data/dump --source train.py:175     operators of a source line
  opdump show /data/dump --watch                   operators that changed watched memory
  opdump show /data/dump --json | jq .             everything, as JSON

\b
If a dump has several models, the computational graph is shown: the model whose
ge_proto_*_Build.txt contains IteratorV2, Iterator or GetNext. The file is searched
for in the dump, in the current directory, and in DUMP_GRAPH_PATH,
NPU_COLLECT_PATH and ASCEND_WORK_PATH.

\b
Exit codes:
  0  done
  1  PATH is not a dump, has no such operator, line, step or rank, or a file of it
     is damaged
  2  wrong command line""",
)
@click.argument("path")
@click.option(
    "--op",
    metavar="NAME",
    help="Only these operators: a module (blocks.0.attn), a type (mul, Conv2D), a kernel (aten::mul), FILE:LINE, a name or the end of one, "
    "a parameter, or name-regex(...).",
)
@click.option("--source", metavar="FILE:LINE", help="Only the operators of this source line.")
@click.option("--step", type=int, metavar="N", help="Only this step.")
@click.option("--rank", type=int, metavar="N", help="Only this rank.")
@click.option(
    "--run", metavar="N|all", default="latest", show_default=True, help="Run number, if PATH holds several runs."
)
@click.option("--skipped", is_flag=True, help="Include operators that were not recorded, with the reason.")
@click.option("--watch", is_flag=True, help="Show the operator that first changed each watched output (watch mode).")
@click.option(
    "--graph", "graph_file", metavar="FILE", help="Graph file of the computational graph, if it cannot be found."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Maximum number of rows; 0 for all.  [default: 20 in tables, all in JSON]",
)
@click.option("--wide", is_flag=True, help="Do not truncate to the terminal width.")
@format_options(json_help="Print JSON; NaN and infinities are strings.")
def show(
    *,
    path: str,
    op: str | None,
    source: str | None,
    step: int | None,
    rank: int | None,
    run: str,
    skipped: bool,
    watch: bool,
    graph_file: str | None,
    limit: int | None,
    wide: bool,
    report_format: ReportFormat,
) -> None:
    """Show the contents of the dump in PATH."""
    from opdump.catalog.catalog import open_dump
    from opdump.reports.formats import DumpReport
    from opdump.reports.shown_part import ShownPart

    chosen = run_choice(run)
    catalog = open_dump(path, run=chosen)
    if limit is None:
        limit = report_format.rows
    part = ShownPart(op=op, source=source, step=step, rank=rank, include_skipped=skipped, limit=limit)
    damaged: list[str] = []
    watched = _watched(catalog, step=step, rank=rank) if watch else None
    named = op is not None or source is not None
    search = None if watch or (named and graph_file is None) else _search_graphs(catalog, graph_file)
    report = DumpReport(catalog=catalog, part=part, damaged=damaged, run=chosen, search=search, watched=watched)
    report_format.dump(report, wide=wide)
    _tell_problems(catalog, damaged)


def _search_graphs(catalog: Catalog, graph_file: str | None) -> GraphSearch | None:
    if graph_file is None and not catalog.model_directories:
        return None
    from opdump.reports.computational_graph import search_graphs

    named = Path(graph_file) if graph_file is not None else None
    search = search_graphs(catalog, named=named, environ=os.environ, cwd=Path.cwd())
    for warning in search.warnings if search is not None else ():
        click.echo(f"opdump: warning: {warning}", err=True)
    return search


def _watched(catalog: Catalog, *, step: int | None, rank: int | None) -> list[WatchedOutput]:
    from opdump.errors import NotInDumpError
    from opdump.reports.watch import watched_outputs

    outputs = watched_outputs(catalog.executions(step=step, rank=rank, include_skipped=True))
    if not outputs:
        raise NotInDumpError(
            f"{catalog!r}: no operator is named A_To_C, as in a dump of watch mode; "
            "opdump.capture(watch=[...], path=...) makes such a dump"
        )
    return outputs


def _tell_problems(catalog: Catalog, damaged: Sequence[str] = ()) -> None:
    problems = dict.fromkeys([*map(str, catalog.problems), *damaged])
    for problem in problems:
        click.echo(f"opdump: problem: {problem}", err=True)
    if problems:
        sys.exit(EXIT_ERROR)


def run_choice(text: str) -> RunChoice:
    if text == "latest":
        return "latest"
    if text == "all":
        return "all"
    if text.isdecimal():
        return int(text)
    raise click.BadParameter(f"{text!r} is not a run; expected a number, latest or all", param_hint="--run")
