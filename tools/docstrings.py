"""Docstrings as the site needs them (an extension of griffe, named in mkdocs.yml).

A docstring may list arguments in two columns, as `opdump.capture` does:

    eager            capture inside functions that `torch.compile` compiled
    stop_after_dump  raise `DumpComplete` once the last wanted step is on disk

Markdown would run such lines together; on the site they are a table.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROW = re.compile(r"(?P<name>\w+)  +(?P<text>\S.*)")
_GOES_ON = re.compile(r" {4,}(?P<text>\S.*)")


def _table(paragraph: str) -> str:
    """The paragraph as a table of Markdown if each of its lines begins or continues a row, else unchanged."""
    rows: list[tuple[str, str]] = []
    for line in paragraph.splitlines():
        if row := _ROW.fullmatch(line):
            rows.append((row["name"], row["text"]))
        elif rows and (more := _GOES_ON.fullmatch(line)):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {more['text']}")
        else:
            return paragraph
    lines = [f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in rows]
    return "\n".join(["| argument | |", "|---|---|", *lines])


class ColumnsAsTables(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = "\n\n".join(map(_table, obj.docstring.value.split("\n\n")))
