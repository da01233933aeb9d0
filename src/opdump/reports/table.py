"""Tables for a terminal and for a pipe.

On a terminal, a table fits the width: the least important columns are hidden, and their number is printed at the end; flexible
columns lose the beginning of their text, because the end of a scope or path is the most specific. In a pipe, nothing is hidden,
cut, drawn or coloured, so that grep and awk work on it; `--wide` does the same on a terminal.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from opdump import amounts

if TYPE_CHECKING:
    from rich.console import Console

_GAP = "  "
_LEAST = 12
_READABLE = 28
"""Minimum width of a flexible column while other columns can be hidden."""


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and the layout of its cells. `gives_way` marks a flexible column, which is cut first if the table is too wide.

    If that is not enough, the columns with the highest `spare` are hidden; 0 is never hidden. Other text is cut last.
    """

    heading: str
    right: bool = False
    gives_way: bool = False
    spare: int = 0


class Printer:
    """Writes text and tables to a stream. `width` is the maximum width of a table; the default is the width of the terminal and,
    in a pipe or with `wide`, unlimited.
    """

    def __init__(self, stream: TextIO | None = None, *, width: int | None = None, wide: bool = False) -> None:
        self._stream = stream or sys.stdout
        terminal = self._stream.isatty()
        self._plain = not terminal and not _is_styled_anyway()
        self.width = width if width is not None else self._console.width if terminal and not wide else None
        self._left_out = 0

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=self._stream, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def text(self, text: str = "", *, style: str = "") -> None:
        if (
            self._plain and text.isprintable()
        ):  # what rich would write, but importing rich takes longer than reading many a dump
            self._stream.write(text + "\n")
            self._stream.flush()
            return
        from rich.text import Text

        self._console.print(Text(text, style=style))

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]], *, indent: str = "") -> None:
        """Print rows under headings. Columns that are empty in every row are left out."""
        cells = [list(row) for row in rows]
        filled = [number for number in range(len(columns)) if any(row[number] for row in cells)]
        columns, cells = _chosen(columns, cells, filled)
        widths = [
            max([cell_len(column.heading), *(cell_len(row[number]) for row in cells)])
            for number, column in enumerate(columns)
        ]
        fitting = self._fit(columns, widths, len(indent))
        columns, cells = _chosen(columns, cells, fitting)
        widths = [widths[number] for number in fitting]
        self.text(indent + _line([column.heading for column in columns], columns, widths), style="bold")
        for row in cells:
            self.text(indent + _line(row, columns, widths))

    def tell_left_out(self) -> None:
        """Print the number of columns hidden since the last call."""
        if self._left_out:
            self.text(f"{amounts.count(self._left_out, 'column')} hidden; use --wide")
        self._left_out = 0

    def _fit(self, columns: Sequence[Column], widths: list[int], indent: int) -> list[int]:
        """Narrow `widths` to the terminal; returns the indices of the visible columns."""
        kept = list(range(len(columns)))
        if self.width is None:
            return kept
        room = self.width - indent
        while _least(columns, widths, kept, _READABLE) > room:
            spare = max(kept, key=lambda number: columns[number].spare)
            if columns[spare].spare == 0:
                break
            kept.remove(spare)
            self._left_out += 1
        giving = [number for number in kept if columns[number].gives_way]
        for least in (_READABLE, _LEAST):
            for number in sorted(giving, key=lambda number: -widths[number]):
                excess = _least(columns, widths, kept, None) - room
                if excess > 0:
                    widths[number] = max(min(_floor(columns[number], least), widths[number]), widths[number] - excess)
        texts = [
            number for number in kept if not columns[number].right and widths[number] > _floor(columns[number], _LEAST)
        ]
        while texts and _least(columns, widths, kept, None) > room:
            widest = max(texts, key=lambda number: widths[number])
            widths[widest] -= 1
            if widths[widest] == _floor(columns[widest], _LEAST):
                texts.remove(widest)
        return kept


def _is_styled_anyway() -> bool:
    """Whether rich may style the text although the stream is not a terminal."""
    return "FORCE_COLOR" in os.environ or "TTY_COMPATIBLE" in os.environ or hasattr(builtins, "get_ipython")


def cell_len(text: str) -> int:
    """The number of terminal cells that a text takes."""
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len as measured

    return measured(text)


def _chosen(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], numbers: Sequence[int]
) -> tuple[list[Column], list[list[str]]]:
    return [columns[number] for number in numbers], [[row[number] for number in numbers] for row in cells]


def _floor(column: Column, least: int) -> int:
    return max(least, cell_len(column.heading))


def _least(columns: Sequence[Column], widths: Sequence[int], kept: Sequence[int], least: int | None) -> int:
    """The width of the kept columns if flexible columns are cut to `least`, or are uncut for None."""
    needed = sum(
        min(widths[number], _floor(columns[number], least))
        if columns[number].gives_way and least is not None
        else widths[number]
        for number in kept
    )
    return needed + len(_GAP) * (len(kept) - 1)


def printable(text: str) -> str:
    """A file name from an untrusted source, without control characters that move the cursor."""
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    laid_out = []
    for text, column, width in zip(cells, columns, widths, strict=True):
        cut = _cut(text, width)
        padding = " " * (width - cell_len(cut))
        laid_out.append(padding + cut if column.right else cut + padding)
    return _GAP.join(laid_out).rstrip()


def _cut(text: str, width: int) -> str:
    """The end of a text that is too long, after an ellipsis."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return "…" + text
