"""`opdump unpack`: writes the files that a packed dump would have in another layout.

opdump unpack /data/dump -o files
opdump unpack /data/dump -o files --layout mindspore-async
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR, EXIT_INTERRUPTED
from opdump.commands.progress import progress_bar

if TYPE_CHECKING:
    from opdump.conversion.unpack import Unpacked
    from opdump.plan import FileFormat

_LAYOUTS = ("mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl")


@click.command(
    epilog="""\b
Examples:
  opdump unpack /data/dump -o files                      one file per tensor
  opdump unpack /data/dump -o files --layout mindspore-async
                                     like an asynchronous MindSpore dump
  opdump unpack /data/dump -o files --json | jq .files   list the files

\b
In the MindSpore layouts the files are byte for byte those that a run with that layout
writes. In the acl layout, operators keep the names of the run, which differ from
those of a device. DUMP is not changed.

\b
Exit codes:
  0    done
  1    DUMP is not a packed dump, part of it is damaged (the rest is written), or OUT
       is not empty or cannot be written
  2    wrong command line
  130  interrupted by Ctrl-C; every file is whole""",
)
@click.argument("dump")
@click.option("-o", "--out", required=True, metavar="OUT", help="Output directory, new or empty.")
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    default=_LAYOUTS[0],
    show_default=True,
    help="Names and structure of the files.",
)
@click.option(
    "--file-format",
    type=click.Choice(["npy", "bin"]),
    default="npy",
    show_default=True,
    help="File type in the layouts of devices; bin writes one dump file per operator.",
)
@click.option(
    "--run",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run number, if DUMP holds several runs.  [default: the last]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: files written, and unreadable parts.")
def unpack(*, dump: str, out: str, layout: str, file_format: FileFormat, run: int | None, as_json: bool) -> None:
    """Write the tensors of the packed dump DUMP to separate files in OUT."""
    from opdump.conversion.unpack import unpack as unpack_dump

    with progress_bar("steps") as tell:
        done = unpack_dump(Path(dump), Path(out), layout, file_format=file_format, run=run, progress=tell)
    _report(done, as_json=as_json)
    if done.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if done.problems:
        sys.exit(EXIT_ERROR)


def _report(done: Unpacked, *, as_json: bool) -> None:
    from opdump import amounts
    from opdump.reports.table import printable

    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps({**asdict(done), "path": str(done.path)}, indent=2))
        return
    words = [
        amounts.count(done.steps, "step"),
        amounts.count(done.tensors, "tensor"),
        amounts.count(done.files, "file"),
    ]
    interrupted = ", interrupted" if done.interrupted else ""
    click.echo(printable(f"{done.path}: {', '.join(words)}, {amounts.size(done.bytes)}, as {done.layout}{interrupted}"))
    for problem in done.problems:
        click.echo(f"opdump: problem: {printable(problem)}", err=True)
