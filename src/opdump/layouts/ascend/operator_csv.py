"""Statistics of one operator that a device wrote instead of its tensors.

    Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,...
    Input,0,24,DT_FLOAT,ND,2x3,1.5,-2,0.25,6,0,0,0

The columns after Shape depend on the requested statistics. A statistic that a device could not compute is empty or `NA`, and such
a row may be one cell short (docs/files.md#the-csv-of-an-operator).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from opdump.dtypes.data_types import BY_NAME
from opdump.dump_file.dump_file import FORMAT_NUMBERS
from opdump.errors import CorruptDumpError
from opdump.kernels import Summary
from opdump.layouts.mindspore_sync.statistic_csv import cell, whole_number
from opdump.records import IO, FiledTensor, StatisticValue
from opdump.statistics import DEVICE_DEFAULT, OWN, Extremes, SummaryStatistics, name_of_heading, statistic

_FIXED: Final = ("Input/Output", "Index", "Data Size", "Data Type", "Format", "Shape")
_UNKNOWN: Final = ("", "-", "NA", "UNKNOW", "UNKNOWN")
_WIDEST_ROW: Final = 1 << 16

_OF_DEVICE: Final = tuple(name for name, each in OWN.items() if each.dump_stats or name == "count")
"""In the order of their columns. The classic table has all except `l2norm`, and also has `Count`."""
_CLASSIC: Final = tuple(name for name in _OF_DEVICE if name in (*DEVICE_DEFAULT, "count"))
_OF_SUMMARY: Final = tuple(function for name in _CLASSIC[2:] if (function := OWN[name].of_summary))
_OF_SUMMARIES: Final = tuple(
    function for name in _CLASSIC[2:] if (function := cast(Any, OWN[name].of_summaries or OWN[name].of_summary))
)
"""The same for many tensors: each function returns a column from columns."""
_CLASSIC_REST: Final = "".join(",%d" if OWN[name].kind is int else ",%g" for name in _CLASSIC[2:])
"""The columns after max and min."""
_CLASSIC_TYPES: Final = frozenset(
    ("float32", "float16", "float64", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)
_LAST_CLASSIC_NAME: Final = 25
_LAST_CLASSIC_FORMAT: Final = 40
_LAST_FORMAT: Final = 254
_MOST_CHOSEN_DIMENSIONS: Final = 25


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One tensor. `dtype` is `unknown` and `shape` empty if the device did not write them."""

    io: IO
    slot: int
    data_size: int
    dtype: str
    format: str
    shape: tuple[int, ...]
    statistics: Mapping[str, StatisticValue]


def encode_operator_csv(tensors: Sequence[FiledTensor], categories: Sequence[str]) -> bytes:
    """The table of an operator: inputs, then outputs. Tensors without statistics have a row without numbers.

    With DEVICE_DEFAULT it is the classic table, which has element types up to number 25 and leaves the numbers of others empty.
    With other categories it is the accelerated one: `Count` comes first, a missing value is `NA`, and the row of a tensor without
    any number has no `Count`.
    """
    classic, names, header = _columns(tuple(categories))
    row = _classic_row if classic else _chosen_row
    lines = [header]
    inputs = outputs = 0
    for tensor in tensors:
        if tensor.io == "input":
            lines.append(f"Input,{inputs},{row(tensor, names)}\n")
            inputs += 1
    for tensor in tensors:
        if tensor.io == "output":
            lines.append(f"Output,{outputs},{row(tensor, names)}\n")
            outputs += 1
    return "".join(lines).encode("utf-8", "backslashreplace")


def is_classic(categories: Sequence[str]) -> bool:
    """Whether these statistics select the classic table."""
    return _columns(tuple(categories))[0]


def classic_template(tensors: Sequence[FiledTensor], summarised: Collection[int]) -> tuple[str, list[int]]:
    """The classic table of an operator as a template for `%`, and the indices of the tensors whose numbers fill it, row by row.

    `summarised` are the indices of tensors with a summary; the others have no statistics at all.
    """
    lines, filled = [_literal(_columns(DEVICE_DEFAULT)[2])], []
    sides: tuple[tuple[IO, str], ...] = (("input", "Input"), ("output", "Output"))
    for io, title in sides:
        places = [place for place, tensor in enumerate(tensors) if tensor.io == io]
        for number, place in enumerate(places):
            tensor = tensors[place]
            facts = _classic_facts(tensor.data_size, tensor.dtype, tensor.format, tensor.shape)
            if place in summarised and tensor.dtype in _CLASSIC_TYPES:
                filled.append(place)
                cells = (",%s,%s" if is_whole(tensor) else ",%g,%g") + _CLASSIC_REST
            else:
                cells = "," * len(_CLASSIC)
            lines.append(_literal(f"{title},{number},{facts}") + cells + "\n")
    return "".join(lines), filled


def classic_columns(
    summaries: NDArray[np.float64], extremes: Mapping[int, Extremes], whole: Sequence[int]
) -> list[NDArray[np.float64] | list[Any]]:
    """The values for rows of classic tables, column by column. `summaries` are rows of summaries, (n, 11), `whole` the rows of
    integers.

    `extremes` are, by row, max and min by the rules of a device if they differ from the summary.
    """
    of_all: Any = Summary._make(summaries.T)
    bounds: list[Any] = [of_all.max, of_all.min]
    if extremes or whole:
        bounds = [column.tolist() for column in bounds]
    for row, both in extremes.items():
        for column, value in zip(bounds, both, strict=True):
            column[row] = value
    for row in whole:
        for column in bounds:
            column[row] = _number(column[row], whole=True)
    with np.errstate(all="ignore"):  # NaN and Inf are what the columns exist to show
        return [*bounds, *(function(of_all) for function in _OF_SUMMARIES)]


def is_whole(tensor: FiledTensor) -> bool:
    """Whether max and min are printed as integers."""
    return not tensor.dtype.startswith("float")


def _literal(text: str) -> str:
    return text.replace("%", "%%")


@lru_cache(maxsize=16)  # of one plan, but called for every operator
def _columns(categories: tuple[str, ...]) -> tuple[bool, tuple[str, ...], str]:
    """Whether the table is the classic one; the statistics in its columns; its first line."""
    classic = frozenset(categories) == frozenset(DEVICE_DEFAULT)
    added = (name for name in categories if name not in OWN)
    of_device = (name for name in _OF_DEVICE if name in categories and name != "count")
    chosen = _CLASSIC if classic else (*of_device, *added)
    shown = [cell(each.device_heading or each.heading) for each in map(statistic, chosen)]
    headings = [*_FIXED, *(() if classic else ("Count",)), *shown]
    return classic, chosen, ",".join(headings) + "\n"


def _classic_row(tensor: FiledTensor, names: Sequence[str]) -> str:
    facts = _classic_facts(tensor.data_size, tensor.dtype, tensor.format, tensor.shape)
    statistics = tensor.statistics
    if tensor.dtype not in _CLASSIC_TYPES:
        return facts + "," * len(names)
    # isinstance would use the abstract base class: slow, and a model run has thousands of rows.
    if type(statistics) is SummaryStatistics:
        return facts + _classic_cells(statistics, whole=is_whole(tensor))
    if not statistics:
        return facts + "," * len(names)
    return ",".join((facts, *_cells(tensor, names, whole=is_whole(tensor))))


@lru_cache(maxsize=4096)  # the same in every step
def _classic_facts(data_size: int, dtype: str, format_name: str, shape: tuple[int, ...]) -> str:
    """The cells between the index and the numbers."""
    kind = BY_NAME.get(dtype)
    element = f"DT_{kind.name}" if kind is not None and kind.number <= _LAST_CLASSIC_NAME else "-"
    dimensions = "x".join(map(str, shape)) or "-"
    return f"{data_size},{element},{_format_of(format_name, _LAST_CLASSIC_FORMAT, '-')},{dimensions}"


def _classic_cells(statistics: SummaryStatistics, *, whole: bool) -> str:
    """The result of `_cells`, each cell after a comma, without a lookup of names."""
    summary = statistics.summary
    greatest, least = statistics.extremes or (summary.max, summary.min)
    shown = f",{_number(greatest, whole=True)},{_number(least, whole=True)}" if whole else f",{greatest:g},{least:g}"
    return shown + _CLASSIC_REST % tuple([function(summary) for function in _OF_SUMMARY])


def _chosen_row(tensor: FiledTensor, names: Sequence[str]) -> str:
    kind = BY_NAME.get(tensor.dtype)
    dtype = "UNKNOW" if kind is None else f"DT_{kind.name}"
    shape = "x".join(map(str, tensor.shape)) or "-"
    if len(tensor.shape) > _MOST_CHOSEN_DIMENSIONS:
        shape = "NA"
    statistics = tensor.statistics
    if statistics:
        count = str(math.prod(tensor.shape))
        cells = [count, *_cells(tensor, names, whole=not tensor.dtype.startswith(("float", "bfloat", "hifloat")))]
    else:
        cells = ["NA"] * len(names)
    return ",".join((str(tensor.data_size), dtype, _format_of(tensor.format, _LAST_FORMAT, "UNKNOW"), shape, *cells))


def _cells(tensor: FiledTensor, names: Sequence[str], *, whole: bool) -> list[str]:
    """The numbers of a tensor; max and min by the rules of a device if a reader computed them, as integers with `whole`."""
    statistics: dict[str, StatisticValue] = {name: tensor.statistics.get(name, "NA") for name in names}
    extremes = getattr(tensor.statistics, "extremes", None)
    if extremes is not None:
        statistics.update((name, value) for name, value in zip(("max", "min"), extremes, strict=True) if name in names)
    return [_number(value, whole=whole and name in ("max", "min")) for name, value in statistics.items()]


def _format_of(name: str, last: int, unknown: str) -> str:
    if name == "DefaultFormat":
        name = "ND"
    return name if FORMAT_NUMBERS.get(name, last + 1) <= last else unknown


def _number(value: StatisticValue, *, whole: bool) -> str:
    if whole and isinstance(value, float) and math.isfinite(value):
        return str(int(value))
    # C++ prints a double with six digits, like %g.
    return f"{value:g}" if isinstance(value, float) else str(value)


def decode_operator_csv(data: bytes, *, where: str) -> list[OperatorRow]:
    """The rows of a file. Raises CorruptDumpError with the line for text that is not such a table."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDumpError(f"{where}: is not UTF-8 text (byte {error.start})") from error
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if len(line) > _WIDEST_ROW or "\0" in line:
            raise CorruptDumpError(f"{where}, line {number}: {len(line)} characters that are not a row of a table")
    table = list(csv.reader(lines))
    header = [heading.strip() for heading in table[0]] if table else []
    if [heading.lower() for heading in header[: len(_FIXED)]] != [heading.lower() for heading in _FIXED]:
        raise CorruptDumpError(f"{where}: begins with {','.join(header)[:200]!r}; expected {','.join(_FIXED)!r}")
    categories = [name_of_heading(heading) for heading in header[len(_FIXED) :]]
    for place, category in enumerate(categories):
        if category is not None and category in categories[:place]:
            first, second = (header[len(_FIXED) + at] for at in (categories.index(category), place))
            raise CorruptDumpError(
                f"{where}: two columns of {category}, {first[:40]!r} and {second[:40]!r}; expected one of each: remove the wrong one"
            )
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
        slot=whole_number(cells[1], where, line, "Index"),
        data_size=whole_number(cells[2], where, line, "Data Size"),
        dtype="unknown" if name in _UNKNOWN else kind.dtype if kind is not None else name.lower(),
        format="" if cells[4].strip() in _UNKNOWN else cells[4].strip().removeprefix("FORMAT_"),
        shape=_shape(cells[5].strip(), where, line),
        statistics={} if uncomputed else statistics,
    )


def _value(category: str, text: str, where: str, line: int) -> StatisticValue:
    try:
        return int(text) if statistic(category).kind is int else float(text)
    except ValueError as error:
        raise CorruptDumpError(f"{where}, line {line}: {category} is {text[:40]!r}, expected a number") from error


def _shape(text: str, where: str, line: int) -> tuple[int, ...]:
    if text in _UNKNOWN:
        return ()
    parts = text.split("x")
    if len(parts) <= 64 and all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        return tuple(int(part) for part in parts)
    raise CorruptDumpError(f"{where}, line {line}: Shape is {text[:60]!r}, expected the form '2x3' or '-'")
