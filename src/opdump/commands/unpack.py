"""`opdump unpack`: the files that a packed dump would have in another layout.

opdump unpack /data/dump -o files
opdump unpack /data/dump -o files --layout mindspore-async
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opdump.commands import EXIT_ERROR, EXIT_INTERRUPTED
from opdump.commands.progress_bar import progress_bar

if TYPE_CHECKING:
    from opdump.conversion.unpack import Unpacked
    from opdump.plan import FileFormat

_LAYOUTS = ("mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl")


@click.command(
    epilog="""\b
Examples:
  opdump unpack /data/dump -o files                      a file for each tensor
  opdump unpack /data/dump -o files --layout mindspore-async
                                     as MindSpore's asynchronous dump has them
  opdump unpack /data/dump -o files --json | jq .files   for a program

\b
The files of MindSpore's layouts are those that opdump would have written while
the program ran, byte for byte; DUMP stays as it is. In the layout of acl operators
keep the names that the run gave them, which are not those of a device.

\b
Ends with 0; with 1 where DUMP is no packed dump, something of it is damaged (the
rest is written), or OUT holds something already or cannot be written; with 2 for a
wrong command line; with 130 after Ctrl-C. Whatever the end, every file is whole.""",
)
@click.argument("dump")
@click.option("-o", "--out", required=True, metavar="OUT", help="The directory to write into, new or empty.")
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    default=_LAYOUTS[0],
    show_default=True,
    help="How files are named and arranged.",
)
@click.option(
    "--file-format",
    type=click.Choice(["npy", "bin"]),
    default="npy",
    show_default=True,
    help="The kind of file, in the layouts of devices; bin is a dump file for each operator.",
)
@click.option(
    "--run", type=click.IntRange(min=1), metavar="N", help="Which of several runs into DUMP.  [default: the last]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what was written, and what could not be read.")
def unpack(*, dump: str, out: str, layout: str, file_format: FileFormat, run: int | None, as_json: bool) -> None:
    """Write the tensors of the packed DUMP as files into OUT."""
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
