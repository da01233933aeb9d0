"""Statistics of one operator that a device wrote in place of its tensors.

    Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,...
    Input,0,24,DT_FLOAT,ND,2x3,1.5,-2,0.25,6,0,0,0

Source: section 4.1 of the dump specification. The columns after Shape follow what was asked for. What a device could not compute
is empty or `NA`, and such a row may be one cell short.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from opdump.dump_file.data_types import BY_NAME
from opdump.errors import CorruptDumpError
from opdump.records import IO, StatisticValue
from opdump.statistics import category_of_heading

_FIXED: Final = ("Input/Output", "Index", "Data Size", "Data Type", "Format", "Shape")
_UNKNOWN: Final = ("", "-", "NA", "UNKNOW", "UNKNOWN")
_HEADINGS: Final = {"l2norm": "l2norm"}
_WIDEST_ROW: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One tensor. `dtype` is `unknown` and `shape` empty where the device did not say."""

    io: IO
    slot: int
    data_size: int
    dtype: str
    format: str
    shape: tuple[int, ...]
    statistics: Mapping[str, StatisticValue]


def decode_operator_csv(data: bytes, *, where: str) -> list[OperatorRow]:
    """The rows of a file. Raises CorruptDumpError naming the line for text that is no such table."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDumpError(f"{where}: is not UTF-8 text (byte {error.start})") from error
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if len(line) > _WIDEST_ROW or "\0" in line:
            raise CorruptDumpError(f"{where}, line {number}: {len(line)} characters that are no row of a table")
    table = list(csv.reader(lines))
    header = [heading.strip() for heading in table[0]] if table else []
    if [heading.lower() for heading in header[: len(_FIXED)]] != [heading.lower() for heading in _FIXED]:
        raise CorruptDumpError(f"{where}: begins with {','.join(header)[:200]!r}; expected {','.join(_FIXED)!r}")
    categories = [_HEADINGS.get(heading.lower()) or category_of_heading(heading) for heading in header[len(_FIXED) :]]
    return [_row(cells, categories, where, line) for line, cells in enumerate(table[1:], start=2) if cells]


def _row(cells: list[str], categories: list[str | None], where: str, line: int) -> OperatorRow:
    values = cells[len(_FIXED) :]
    uncomputed = all(value.strip() in _UNKNOWN for value in values)
    if len(cells) < len(_FIXED) or (len(values) != len(categories) and not uncomputed):
        expected = len(_FIXED) + len(categories)
        raise CorruptDumpError(
            f"{where}, line {line}: {len(cells)} cells under {expected} headings: cut off or damaged"
        )
    io = cells[0].strip().lower()
    if io not in ("input", "output"):
        raise CorruptDumpError(f"{where}, line {line}: begins with {cells[0][:40]!r}, expected Input or Output")
    statistics = {
        category: _value(category, value.strip(), where, line)
        for category, value in zip(categories, values, strict=False)
        if category is not None and value.strip() not in _UNKNOWN
    }
    name = cells[3].strip().removeprefix("DT_")
    kind = BY_NAME.get(name)
    return OperatorRow(
        io=cast(IO, io),
        slot=_whole(cells[1], where, line, "Index"),
        data_size=_whole(cells[2], where, line, "Data Size"),
        dtype="unknown" if name in _UNKNOWN else kind.dtype if kind is not None else name.lower(),
        format="" if cells[4].strip() in _UNKNOWN else cells[4].strip().removeprefix("FORMAT_"),
        shape=_shape(cells[5].strip(), where, line),
        statistics={} if uncomputed else statistics,
    )


def _value(category: str, text: str, where: str, line: int) -> StatisticValue:
    try:
        return int(text) if category.endswith("count") else float(text)
    except ValueError as error:
        raise CorruptDumpError(f"{where}, line {line}: {category} is {text[:40]!r}, expected a number") from error


def _whole(text: str, where: str, line: int, heading: str) -> int:
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) < 20:
        return int(stripped)
    raise CorruptDumpError(f"{where}, line {line}: {heading} is {text[:40]!r}, expected a whole number")


def _shape(text: str, where: str, line: int) -> tuple[int, ...]:
    if text in _UNKNOWN:
        return ()
    parts = text.split("x")
    if len(parts) <= 64 and all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        return tuple(int(part) for part in parts)
    raise CorruptDumpError(f"{where}, line {line}: Shape is {text[:60]!r}, expected the form '2x3' or '-'")
