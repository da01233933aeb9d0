"""What `opdump compare` prints: the verdict, its evidence, and the operators around the divergence; and the files that `-o DIR` writes."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from html import escape
from pathlib import Path
from typing import Any, Final

from opdump import amounts
from opdump.adapters.replay import replayer_of
from opdump.amounts import html_line, html_table
from opdump.comparison.result import WINDOW_HEADINGS, Result
from opdump.errors import DumpPathError
from opdump.records import OpRecord
from opdump.reports.table import Column, Printer
from opdump.sink.outside import whole_file

_COLUMNS: Final = (
    Column(WINDOW_HEADINGS[0]),
    Column(WINDOW_HEADINGS[1], right=True),
    Column(WINDOW_HEADINGS[2], right=True),
    Column(WINDOW_HEADINGS[3]),
    Column(WINDOW_HEADINGS[4], gives_way=True, spare=1),
    Column(WINDOW_HEADINGS[5], gives_way=True),
    Column(WINDOW_HEADINGS[6], right=True),
)
_OF_THE_KERNEL: Final = frozenset({"kernel", "precision", "argument"})
"""Kinds of difference that a replay of the operator confirms: its own result is in question."""


def print_comparison(printer: Printer, result: Result, *, limit: int) -> None:
    """Print the report, with at most `limit` sources."""
    printer.text(f"A  {result.a}")
    printer.text(f"B  {result.b}")
    _say(printer, _matched(result))
    printer.text()
    _say(printer, result.headline, style="bold")
    if result.introduced:
        _print_sources(printer, result, limit)
    for name, reason in result.missing_metrics.items():
        _say(printer, f"note: the metric {name!r} is missing: {reason}")
    for note in result.notes:
        _say(printer, f"note: {note}")
    if result.introduced:
        first = result.introduced[0]
        dump = result.b if first.b is not None else result.a
        rank = f" --rank {first.op.rank_id}" if len(result.ranks) > 1 else ""
        printer.text()
        can_run = not result.by_statistics and replayer_of(first.op) is not None
        verb = "replay" if first.kind in _OF_THE_KERNEL and can_run else "show"
        printer.text(f"next: opdump {verb} {dump} --step {first.op.step}{rank} --op {first.op.op_name}")


def _say(printer: Printer, text: str, *, indent: str = "", style: str = "") -> None:
    """Print a paragraph, wrapped at the width of the terminal."""
    lines = [indent + text]
    if printer.width is not None:
        lines = textwrap.wrap(
            text,
            printer.width,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    for line in lines:
        printer.text(line, style=style)


def _matched(result: Result) -> str:
    facts = [f"{amounts.count(result.matched, 'operator')} matched, {result.unmatched:,} without a counterpart"]
    if result.steps:
        facts.append(amounts.steps(tuple(result.steps)))
    if len(result.ranks) > 1:
        facts.append(f"ranks {', '.join(map(str, result.ranks))}")
    return "; ".join(facts)


def _print_sources(printer: Printer, result: Result, limit: int) -> None:
    first = result.introduced[0]
    _say(printer, first.evidence, indent="  ")
    for name, op in (("A", first.a), ("B", first.b)):
        if op is not None:
            _say(printer, f"{name}: {_place(op)}", indent="  ")
    if result.window:
        printer.text()
        printer.table(_COLUMNS, [each.cells() for each in result.window])
    others = result.introduced[1:limit]
    if others:
        printer.text()
        printer.text("then:")
    for each in others:
        _say(printer, each.headline, indent="  ")
        _say(printer, each.evidence, indent="    ")
    left = len(result.introduced) - 1 - len(others)
    if left > 0:
        printer.text(f"  and {left:,} more: --limit {len(result.introduced)} shows them")


def _place(op: OpRecord) -> str:
    code = f"  {op.stack[0].code}" if op.stack and op.stack[0].code else ""
    return f"{op.op_name}, step {op.step}, {op.phase}, {op.line or 'no line'}{code}"


# The files: compare.json, compare.csv (every pair of outputs), compare.html, compare.txt.

_ROWS_OF_A_PAGE: Final = 2000
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body{{font:14px/1.5 system-ui,sans-serif;margin:2em}}table{{border-collapse:collapse;margin:1em 0}}
td,th{{padding:.1em .7em;text-align:left;border-bottom:1px solid #8884;white-space:nowrap}}</style></head>
<body>{body}</body></html>
"""


def write_comparison(directory: Path, result: Result, *, limit: int) -> None:
    """Write the files, each completely or not at all. Raises DumpPathError if the directory cannot be written."""
    text = io.StringIO()
    print_comparison(Printer(text), result, limit=limit)
    files = {
        "compare.json": json.dumps(result.to_json(), indent=2) + "\n",
        "compare.csv": _csv(result.rows()),
        "compare.html": _html(result),
        "compare.txt": text.getvalue(),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with whole_file(directory / name) as unfinished:
                unfinished.write_text(content, encoding="utf-8")
    except OSError as error:
        raise DumpPathError(
            f"cannot write into {directory}: {error.strerror or error}; name a writable directory with -o"
        ) from error


def _csv(rows: list[dict[str, Any]]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    for row in rows:
        writer.writerow(["" if value is None else value for value in row.values()])
    return written.getvalue()


def _html(result: Result) -> str:
    """The result, and the outputs that are not identical."""
    rows = [row for row in result.rows() if row["state"] != "identical"]
    shown = rows[:_ROWS_OF_A_PAGE]
    left = f"; the first {len(shown):,} of {len(rows):,}, compare.csv has all" if len(shown) < len(rows) else ""
    table = html_table(
        list(shown[0]) if shown else (),
        [
            ["" if value is None else f"{value:.6g}" if isinstance(value, float) else value for value in row.values()]
            for row in shown
        ],
        caption=f"Outputs that are not identical{left}",
    )
    body = result._repr_html_() + (table if shown else html_line("Every output is identical."))
    return _PAGE.format(title=escape(result.headline), body=body)
