"""`opdump overflow`: describes the overflows on Ascend devices.

opdump overflow /data/dump
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR
from opdump.commands.progress import format_options

if TYPE_CHECKING:
    from opdump.reports.formats import ReportFormat


@click.command(
    epilog="""\b
Examples:
  opdump overflow /data/dump                   which operators overflowed, and how
  opdump overflow /data/dump --json | jq .     as JSON

\b
Reads the files Opdebug.Node_OpDebug.* below DIR, and finds the dump of each operator
by its task and stream.

\b
Exit codes:
  0  done, with or without overflow
  1  a file is damaged, or DIR cannot be read
  2  wrong command line""",
)
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@click.option("--wide", is_flag=True, help="Do not truncate to the terminal width.")
@format_options(json_help="Print JSON; NaN and infinities are strings.")
def overflow(*, directories: tuple[str, ...], wide: bool, report_format: ReportFormat) -> None:
    """Show which operators overflowed in the Ascend dumps in DIR."""
    from opdump.conversion.overflow import find_overflows
    from opdump.reports.table import printable

    search = find_overflows(directories)
    report_format.overflows(search, wide=wide)
    if not search.failures:
        return
    if not report_format.tells_failures:
        for each in search.failures:
            tensor = f" {each.tensor}" if each.tensor else ""
            click.echo(f"opdump: problem: {printable(each.path)}{tensor}: {printable(each.reason)}", err=True)
    sys.exit(EXIT_ERROR)
