"""`opdump export`: the tensors of a dump as a table for other programs.

opdump export /data/dump
opdump export /data/dump --to csv -o outputs.csv --io output
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from opdump.commands import EXIT_ERROR
from opdump.commands.progress_bar import progress_bar

if TYPE_CHECKING:
    from opdump.conversion.table_export import TableKind, WrittenTable
    from opdump.records import IO

_KINDS = ("parquet", "arrow", "csv")


@click.command(
    epilog="""\b
Examples:
  opdump export /data/dump                          /data/dump becomes dump.parquet, here
  opdump export /data/dump --to csv --step 3        step 3 as dump.csv
  opdump export /data/dump -o all.parquet --op MatMul --io output
  python -c "import polars; print(polars.read_parquet('dump.parquet'))"

\b
One row is one tensor: its rank, step, operator, module and line, dtype, shape,
and every statistic. polars, pandas, DuckDB, Spark and Ray read the file.
Elements are not in it; `opdump show` names their files.
Needs polars: pip install 'opdump[polars]'.

\b
Ends with 0; with 1 where PATH holds no dump or nothing of what was asked for, a
file of it is damaged (the rest is in the table), or the table cannot be written;
with 2 for a wrong command line; with 130 after Ctrl-C, and then there is no file.""",
)
@click.argument("path")
@click.option("--to", "kind", type=click.Choice(_KINDS), default="parquet", show_default=True, help="The kind of file.")
@click.option("-o", "--out", metavar="FILE", help="The file.  [default: the name of PATH, in this directory]")
@click.option("--op", metavar="NAME", help="These operators alone, as `opdump show --op` takes them.")
@click.option("--source", metavar="FILE:LINE", help="The operators that a line of the program became.")
@click.option("--step", type=int, metavar="N", help="This step alone.")
@click.option("--rank", type=int, metavar="N", help="This rank alone.  [default: all]")
@click.option("--run", metavar="N|all", default="latest", show_default=True, help="Which of several runs into PATH.")
@click.option("--io", type=click.Choice(["input", "output"]), help="Inputs or outputs alone.")
@click.option("--skipped", is_flag=True, help="Also tensors that left no data.")
@click.option("--overwrite", is_flag=True, help="The file may be there already.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the file, its rows and columns, what was damaged.")
def export(
    *,
    path: str,
    kind: str,
    out: str | None,
    op: str | None,
    source: str | None,
    step: int | None,
    rank: int | None,
    run: str,
    io: str | None,
    skipped: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write the tensors of the dump in PATH as a table."""
    from opdump.catalog.catalog import open_dump
    from opdump.commands.show import run_choice
    from opdump.conversion.table_export import Selection, export_table

    catalog = open_dump(path, run=run_choice(run))
    file = Path(out) if out is not None else Path(f"{Path(path).resolve().name}.{kind}")
    selection = Selection(op, step, rank, source, cast("IO | None", io), skipped)
    with progress_bar("steps") as tell:
        done = export_table(catalog, file, cast("TableKind", kind), selection, overwrite=overwrite, progress=tell)
    problems = list(dict.fromkeys(map(str, catalog.problems)))
    _report(done, problems, as_json=as_json)
    if problems:
        sys.exit(EXIT_ERROR)


def _report(done: WrittenTable, problems: list[str], *, as_json: bool) -> None:
    from opdump import amounts
    from opdump.reports.table import printable

    if as_json:
        import json

        content = {"file": str(done.path), "rows": done.rows, "columns": list(done.columns), "bytes": done.bytes}
        click.echo(json.dumps({**content, "problems": problems}, indent=2))
        return
    rows = f"{amounts.count(done.rows, 'row')} of {amounts.count(len(done.columns), 'column')}"
    click.echo(printable(f"{done.path}: {rows}, {amounts.size(done.bytes)}"))
    for problem in problems:
        click.echo(f"opdump: problem: {printable(problem)}", err=True)
