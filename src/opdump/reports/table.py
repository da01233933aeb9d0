"""Tables for a terminal and for a pipe.

On a terminal a table fits its width: the one column that may give way loses the beginnings of its texts, because the end of
a scope or a path says most. In a pipe nothing is cut, drawn or coloured, so that grep and awk work on it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GAP = "  "
_LEAST = 12


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and how its cells are laid out. `gives_way` marks the column that is cut where the width does not do."""

    heading: str
    right: bool = False
    gives_way: bool = False


class Printer:
    """Writes text and tables to a stream. `width` is what a line may hold; None for as much as it needs."""

    def __init__(self, stream: TextIO | None = None, *, width: int | None = None) -> None:
        stream = stream or sys.stdout
        self._terminal = stream.isatty()
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.width = width if width is not None else self._console.width if self._terminal else None

    def text(self, text: str = "", *, style: str = "") -> None:
        self._console.print(Text(text, style=style))

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]], *, indent: str = "") -> None:
        """Print rows under headings; columns that are empty in every row are left out."""
        cells = [list(row) for row in rows]
        kept = [number for number in range(len(columns)) if any(row[number] for row in cells)]
        columns = [columns[number] for number in kept]
        cells = [[row[number] for number in kept] for row in cells]
        widths = [
            max([cell_len(column.heading), *(cell_len(row[number]) for row in cells)])
            for number, column in enumerate(columns)
        ]
        self._fit(columns, widths, len(indent))
        self.text(indent + _line([column.heading for column in columns], columns, widths), style="bold")
        for row in cells:
            self.text(indent + _line(row, columns, widths))

    def _fit(self, columns: Sequence[Column], widths: list[int], indent: int) -> None:
        if self.width is None:
            return
        excess = indent + sum(widths) + len(_GAP) * (len(widths) - 1) - self.width
        for number, column in enumerate(columns):
            if column.gives_way and excess > 0:
                widths[number] = max(min(_LEAST, widths[number]), widths[number] - excess)


def printable(text: str) -> str:
    """A name of a file that nobody vouches for, without the characters that move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    laid_out = []
    for text, column, width in zip(cells, columns, widths, strict=True):
        cut = _cut(text, width)
        padding = " " * (width - cell_len(cut))
        laid_out.append(padding + cut if column.right else cut + padding)
    return _GAP.join(laid_out).rstrip()


def _cut(text: str, width: int) -> str:
    """The end of a text that is too long, behind an ellipsis."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text
