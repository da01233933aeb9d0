"""The files that `opdump compare -o DIR` writes: compare.json, compare.csv (every pair of outputs), compare.html, compare.txt."""

from __future__ import annotations

import csv
import io
import json
from html import escape
from pathlib import Path
from typing import Any, Final

from opdump.comparison.result import Result
from opdump.errors import DumpPathError
from opdump.html_table import html_line, html_table
from opdump.reports.comparison import print_comparison
from opdump.reports.table import Printer
from opdump.sink.whole_files import whole_file

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
