"""`opdump convert`: converts dump files of Ascend devices to files that other programs read.

opdump convert /data/dump/20261120101530/0/net/1/0 -o out
opdump convert /data/dump -o out --recursive --format NCHW
"""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from opdump.commands import EXIT_ERROR, EXIT_INTERRUPTED
from opdump.commands.progress import progress_bar
from opdump.interpreter.late_imports import imported_for_good

if TYPE_CHECKING:
    from opdump.conversion import Conversion, Failure, FileType

# Rows of the table of failures; --json lists all.
_MOST_SHOWN = 50


@click.command(
    epilog="""\b
Examples:
  opdump convert Conv2D.conv1.1.5.1732082705016774 -o out     a single file
  opdump convert /data/dump/20261120101530/0/net/1/0 -o out   a directory
  opdump convert /data/dump -o out --recursive --format NCHW  recursively, in NCHW
  opdump convert /data/dump -o out --recursive --layout mindspore
                                     readable by opdump show and Insight
  opdump convert Add.add.1.2.3 -o out --output 0 --to txt     as text
  opdump convert /data/dump -o out --json | jq .failures      list the failures

\b
Exit codes:
  0    everything was converted
  1    some files or tensors failed; each is listed with the reason
  2    wrong command line
  130  interrupted by Ctrl-C; every file in OUT is whole""",
)
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.option("-o", "--out", required=True, metavar="OUT", help="Output directory; created if missing.")
@click.option(
    "--to",
    "file_type",
    type=click.Choice(["npy", "bin", "pt", "txt"]),
    default="npy",
    show_default=True,
    help="File type; bin keeps the bytes of the device, pt needs PyTorch.",
)
@click.option("--layout", type=click.Choice(["mindspore"]), help="Arrange the files like a synchronous MindSpore dump.")
@click.option("--format", "format_", default="", metavar="NCHW", help="Convert the values to this format.")
@click.option("--shape", metavar="1,3,224,224", help="Shape in that format, if the file does not have it.")
@click.option("--input", "input_", type=click.IntRange(min=0), metavar="I", help="Only this input.")
@click.option("--output", type=click.IntRange(min=0), metavar="I", help="Only this output.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of processes.  [default: depends on the amount of work]",
)
@click.option("--recursive", is_flag=True, help="Include subdirectories of SRC; OUT gets the same structure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: files written, failures, totals.")
def convert(
    *,
    sources: tuple[str, ...],
    out: str,
    file_type: str,
    layout: str | None,
    format_: str,
    shape: str | None,
    input_: int | None,
    output: int | None,
    jobs: int | None,
    recursive: bool,
    as_json: bool,
) -> None:
    """Convert Ascend dump files, or directories of them, to files in OUT."""
    if input_ is not None and output is not None:
        raise click.UsageError("--input and --output each select one tensor; give only one of them")
    if shape is not None and not format_:
        raise click.UsageError("--shape is the shape in the target format; give --format, too")
    if layout is not None and (file_type != "npy" or input_ is not None or output is not None):
        raise click.UsageError(
            "--layout mindspore writes npy files of all tensors; leave out --to, --input and --output"
        )
    with imported_for_good("opdump.conversion"):
        from opdump.conversion import ConversionPlan
        from opdump.conversion import convert as convert_files

    plan = ConversionPlan(
        cast("FileType", file_type),
        format=_format(format_),
        shape=_shape(shape),
        io="input" if input_ is not None else "output" if output is not None else None,
        slot=input_ if input_ is not None else output or 0,
        layout="mindspore" if layout else "dumps",
    )
    with progress_bar("files") as tell:
        progress = partial(tell, "converting")
        done = convert_files(sources, Path(out), plan, recursive=recursive, jobs=jobs, progress=progress)
    _report(done, as_json=as_json)


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}(,[0-9]{1,18})*", text):
        raise click.BadParameter(f"{text!r} is not a shape; expected sizes such as 1,3,224,224", param_hint="--shape")
    sizes = tuple(map(int, text.split(",")))
    if 0 in sizes:
        raise click.BadParameter(f"{text!r} has a size of 0", param_hint="--shape")
    return sizes


def _format(text: str) -> str:
    """The format of that name, case-insensitive; empty if none was given."""
    if not text:
        return ""
    from opdump.formats import FORMATS

    for known in FORMATS:
        if known.upper() == text.upper():
            return known
    raise click.BadParameter(f"{text!r} is not a format; expected one of {', '.join(FORMATS)}", param_hint="--format")


def _report(done: Conversion, *, as_json: bool) -> None:
    if as_json:
        click.echo(_json(done))
    else:
        click.echo(_summary(done))
    if done.failures and not as_json:
        _print_failures(done.failures)
    if done.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if done.failures:
        sys.exit(EXIT_ERROR)
    if not done.sources:
        click.echo("opdump: error: SRC contains no dump file" + _hint(done), err=True)
        sys.exit(EXIT_ERROR)


def _hint(done: Conversion) -> str:
    if not done.subdirectories:
        return ""
    count = len(done.subdirectories)
    return f" ({count:,} director{'y' if count == 1 else 'ies'} skipped; use --recursive)"


def _summary(done: Conversion) -> str:
    from opdump import amounts

    words = [
        f"{amounts.count(done.converted, 'file')} converted",
        amounts.count(done.tensors, "tensor"),
        amounts.size(done.bytes),
        amounts.seconds(done.seconds),
    ]
    samples = sum(len(result.samples) for result in done.results)
    if samples:
        words.append(
            f"{amounts.count(samples, 'tensor')} recorded only in part: the dump has a sample, the first elements"
        )
    if done.failures:
        words.append(amounts.count(len(done.failures), "failure"))
    if done.skipped:
        words.append(f"{amounts.count(len(done.skipped), 'file')} skipped")
    if done.interrupted or done.stopped:
        left = done.sources - len(done.results)
        words.append(f"{'interrupted' if done.interrupted else 'stopped'} with {amounts.count(left, 'file')} left")
    summary = f"{', '.join(words)}: {_shown(str(done.output))}{_hint(done)}"
    return f"{summary}\n{_next(done)}" if done.tensors and not done.failures else summary


def _next(done: Conversion) -> str:
    """The suggested next command."""
    import shlex

    if done.layout == "mindspore":
        return _shown(f"next: opdump show {shlex.quote(str(done.output))}")
    first = next(name for result in done.results for name in result.outputs)
    path = shlex.quote(os.path.join(done.output, first))
    if not path.isprintable():
        return _shown(f"next: ls -l {shlex.quote(str(done.output))}")
    if first.endswith(".npy"):
        return f'next: python -c "import numpy, sys; print(numpy.load(sys.argv[1]))" {path}'
    return f"next: head {path}" if first.endswith((".txt", ".json")) else f"next: ls -l {shlex.quote(str(done.output))}"


def _print_failures(failures: list[Failure]) -> None:
    from opdump import amounts
    from opdump.reports.table import Column, Printer

    printer = Printer()
    printer.text()
    printer.table(
        [Column("not converted", gives_way=True), Column("tensor"), Column("reason")],
        [(_shown(each.path), each.tensor, _shown(each.reason)) for each in failures[:_MOST_SHOWN]],
    )
    if len(failures) > _MOST_SHOWN:
        printer.text(f"... and {amounts.count(len(failures) - _MOST_SHOWN, 'failure')} more; --json lists them all")


def _shown(text: str) -> str:
    """A file name from an untrusted source, without control characters that move the cursor."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def _json(done: Conversion) -> str:
    import json
    from dataclasses import asdict

    content = {
        "out": str(done.output),
        "converted": done.converted,
        "tensors": done.tensors,
        "bytes": done.bytes,
        "seconds": round(done.seconds, 3),
        "interrupted": done.interrupted,
        "stopped": done.stopped,
        "files": [{"path": result.path, "outputs": result.outputs} for result in done.results],
        "samples": [name for result in done.results for name in result.samples],
        "failures": [asdict(each) for each in done.failures],
        "skipped": done.skipped,
        "subdirectories": done.subdirectories,
    }
    return json.dumps(content, indent=2)
