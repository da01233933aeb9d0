"""`opdump export`: writes the tensors of a dump to a table for other programs.

opdump export /data/dump
opdump export /data/dump -o outputs.csv --io output
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from opdump.commands import EXIT_ERROR
from opdump.commands.progress import progress_bar

if TYPE_CHECKING:
    from opdump.conversion.table_export import TableKind, WrittenTable
    from opdump.records import IO

_KINDS = ("parquet", "arrow", "csv")


@click.command(
    epilog="""\b
Examples:
  opdump export /data/dump                          write dump.parquet here
  opdump export /data/dump --step 3 -o step3.csv    step 3, as CSV
  opdump export /data/dump -o all.parquet --op MatMul --io output
  python -c "import polars; print(polars.read_parquet('dump.parquet'))"

\b
Each row is one tensor: rank, step, operator, module, source line, dtype, shape and
all statistics. polars, pandas, DuckDB, Spark and Ray read the files. Values are
not exported; `opdump show` prints the files that hold them.
Requires polars: pip install 'opdump[polars]'.

\b
Exit codes:
  0    done
  1    PATH is not a dump, nothing matched, a file is damaged (the rest is in the
       table), or the table cannot be written
  2    wrong command line
  130  interrupted by Ctrl-C; no file was written""",
)
@click.argument("path")
@click.option(
    "--to",
    "kind",
    type=click.Choice(_KINDS),
    help="File type.  [default: from the suffix of --out, else parquet]",
)
@click.option("-o", "--out", metavar="FILE", help="Output file.  [default: the name of PATH, in the current directory]")
@click.option("--op", metavar="NAME", help="Only these operators, as in `opdump show --op`.")
@click.option("--source", metavar="FILE:LINE", help="Only the operators of this source line.")
@click.option("--step", type=int, metavar="N", help="Only this step.")
@click.option("--rank", type=int, metavar="N", help="Only this rank.  [default: all]")
@click.option(
    "--run", metavar="N|all", default="latest", show_default=True, help="Run number, if PATH holds several runs."
)
@click.option("--io", type=click.Choice(["input", "output"]), help="Only inputs, or only outputs.")
@click.option("--skipped", is_flag=True, help="Include tensors that were not recorded.")
@click.option("--overwrite", is_flag=True, help="Overwrite the output file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the file, its rows and columns, damaged files.")
def export(
    *,
    path: str,
    kind: str | None,
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
    """Export the statistics of the tensors in PATH to a table."""
    from opdump.catalog.catalog import open_dump
    from opdump.commands.show import run_choice
    from opdump.conversion.table_export import Selection, export_table

    catalog = open_dump(path, run=run_choice(run))
    suffix = Path(out or "").suffix.lower().removeprefix(".")
    kind = kind or (suffix if suffix in _KINDS else "parquet")
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
    from opdump.sink.outside import is_stream

    if as_json:
        import json

        content = {"file": str(done.path), "rows": done.rows, "columns": list(done.columns), "bytes": done.bytes}
        click.echo(json.dumps({**content, "problems": problems}, indent=2))
        return
    rows = f"{amounts.count(done.rows, 'row')} of {amounts.count(len(done.columns), 'column')}"
    # The table may have gone to standard output.
    click.echo(printable(f"{done.path}: {rows}, {amounts.size(done.bytes)}"), err=is_stream(done.path))
    for problem in problems:
        click.echo(f"opdump: problem: {printable(problem)}", err=True)
