"""The files of one operator: its tensors as one dump file, its overflow file, and the table with its statistics."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from opdump.checks.overflow import OverflowStatus
from opdump.dtypes import BY_NAME
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, data_type
from opdump.dump_file.dump_file import FORMAT_NUMBERS, sample_attribute
from opdump.dump_file.opdebug import OpdebugRecord, atomic_status, overflow_dump_file, overflow_record
from opdump.errors import CorruptDumpError, UndecodableTensorError
from opdump.index.batch import Batch
from opdump.kernels import Summary, TableText
from opdump.layouts.mindspore_sync.statistic_csv import cell, lines_of_rows, table_text, whole_number
from opdump.records import IO, FiledTensor, OpRecord, StatisticValue, TensorRecord, escaped
from opdump.statistics import DEVICE_DEFAULT, OWN, Extremes, SummaryStatistics, name_of_heading, statistic

# An operator's tensors as one dump file, and the position of each tensor in it.
#
# A tensor whose elements cannot be written (text, or unreadable) is left out, and later tensors move up, as on a device.

_DEFAULT_FORMAT = "ND"


def operator_file(op: OpRecord, tensors: Sequence[TensorRecord], *, message: str = "") -> DumpFile:
    """The dump file of an operator: its tensors with a payload, and empty ones."""
    entries: dict[IO, list[DumpTensor]] = {"input": [], "output": []}
    samples = []
    for record in tensors:
        if is_filed(record):
            slot = len(entries[record.io])
            entries[record.io].append(_entry(record, slot))
            if record.sample:
                samples.append(sample_attribute(record.io, slot, record.shape))
    return DumpFile(
        inputs=tuple(entries["input"]),
        outputs=tuple(entries["output"]),
        op_name=escaped(op.op_name),
        dump_time=op.timestamp,
        attributes=tuple(samples),
        dfx_message=escaped(message),
    )


def places(tensors: Sequence[TensorRecord]) -> list[tuple[IO, int] | None]:
    """For each tensor its number among the inputs or outputs in the file; None if it is left out."""
    counts: dict[IO, int] = {"input": 0, "output": 0}
    found: list[tuple[IO, int] | None] = []
    for record in tensors:
        if is_filed(record):
            found.append((record.io, counts[record.io]))
            counts[record.io] += 1
        else:
            found.append(None)
    return found


def is_filed(record: TensorRecord) -> bool:
    """Whether a tensor has an entry in the file: it has elements, or is known to have none."""
    return record.payload is not None or record.skip == "empty"


def _entry(record: TensorRecord, slot: int) -> DumpTensor:
    format_name = record.format if record.format in FORMAT_NUMBERS else _DEFAULT_FORMAT
    kind = BY_NAME.get(record.dtype)
    if record.payload is None:
        number, shape, data = kind.number if kind is not None else 0, record.shape, HeldBytes(b"")
    else:
        array = record.payload.to_host()
        # A sample, or the values of a quantised tensor: the available elements, in their own type.
        if kind is None or (array.dtype.name != record.dtype and not _widens(record.dtype, array)):
            kind = BY_NAME[array.dtype.name]
        if array.dtype.name != kind.dtype:
            encode = partial(DumpTensor.of, record.io, slot, array, format=format_name, original_shape=array.shape)
            try:
                return encode(data_type=kind.name)
            except (
                UndecodableTensorError
            ):  # values that the type cannot represent, computed by some program: kept unchanged
                return encode()
        contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        elements = contiguous.reshape(-1).view(np.uint8).data if contiguous.size else b""
        number, shape, data = kind.number, array.shape, HeldBytes(elements)
    return DumpTensor(
        io=record.io,
        slot=slot,
        data_type=number,
        format=FORMAT_NUMBERS[format_name],
        shape=shape,
        data=data,
        original_shape=shape,
    )


def _widens(dtype: str, array: NDArray[Any]) -> bool:
    """Whether the array contains, widened, elements of that type."""
    kind = BY_NAME.get(dtype)
    if kind is None or not data_type(kind.number).bits:
        return False
    if dtype.startswith(("bfloat", "float8", "float6", "float4", "hifloat8")):
        return array.dtype == np.float32
    if dtype == "complex32":
        return array.dtype == np.complex64
    return dtype in ("int4", "int2", "uint2", "uint1", "uint4") and array.dtype.kind in "iu"


# The overflow file of an operator to be written, and its record in a dump that is read.
#
# Atomic additions have an accelerator and a status of their own (docs/overflow.md#atomic-additions).

_ATOMIC = "DHA Atomic Add"


@dataclass(frozen=True, slots=True, repr=False)
class OverflowRecord(OpRecord):
    """A record among the operators of a step, without tensors. `files` are below the directory of the device."""

    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, op: OpRecord, files: Sequence[str]) -> OverflowRecord:
        """Convert an operator to such a record; its arguments contain the paths of the files."""
        named: Mapping[str, Any] = {"file": files[0]} | ({"files": list(files)} if files[1:] else {})
        kept = {item.name: getattr(op, item.name) for item in fields(OpRecord)}
        return cls(**{**kept, "arguments": named}, files=tuple(files))


def overflow_of(op: OpRecord, status: OverflowStatus) -> OpdebugRecord:
    """The record of an operator that overflowed."""
    return overflow_record(**_report_of(op, status))


def overflow_file_of(op: OpRecord, status: OverflowStatus) -> DumpFile:
    """The dump file of that record."""
    return overflow_dump_file(**_report_of(op, status), dump_time=op.timestamp)


def _report_of(op: OpRecord, status: OverflowStatus) -> dict[str, Any]:
    is_atomic = status.kind == "atomic"
    return {
        "status": atomic_status(_ATOMIC) if is_atomic else status.bits,
        "accelerator": _ATOMIC if is_atomic else "AI Core",
        "model_id": max(op.graph_id, 0),  # operators of PyNative mode have the graph -1, and the field has no sign
        "stream_id": op.stream_id,
        "task_id": op.task_id,
    }


# Statistics of one operator that a device wrote instead of its tensors.
#
#     Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,...
#     Input,0,24,DT_FLOAT,ND,2x3,1.5,-2,0.25,6,0,0,0
#
# The columns after Shape depend on the requested statistics. A statistic that a device could not compute is empty or `NA`, and such
# a row may be one cell short (docs/device-dumps.md#the-csv-of-an-operator).

_FIXED: Final = ("Input/Output", "Index", "Data Size", "Data Type", "Format", "Shape")
_SIDES: Final[tuple[tuple[IO, str], ...]] = (("input", "Input"), ("output", "Output"))
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
    for io, title in _SIDES:
        of_side = [tensor for tensor in tensors if tensor.io == io]
        lines += [f"{title},{number},{row(tensor, names)}\n" for number, tensor in enumerate(of_side)]
    return "".join(lines).encode("utf-8", "backslashreplace")


def is_classic(categories: Sequence[str]) -> bool:
    """Whether these statistics select the classic table."""
    return _columns(tuple(categories))[0]


def classic_template(tensors: Sequence[FiledTensor], summarised: Collection[int]) -> tuple[str, list[int]]:
    """The classic table of an operator as a template for `%`, and the indices of the tensors whose numbers fill it, row by row.

    `summarised` are the indices of tensors with a summary; the others have no statistics at all.
    """
    lines, filled = [_literal(_columns(DEVICE_DEFAULT)[2])], []
    for io, title in _SIDES:
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
    lines = table_text(data, where).splitlines()
    table = list(csv.reader(list(lines_of_rows(lines, where, _WIDEST_ROW))))
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
        raise CorruptDumpError(f"{where}, line {line}: {len(cells)} cells for {expected} headings: cut off or damaged")
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


# Fills the tables of repeated operators, each of which is a file.
#
# The output equals that of `encode_operator_csv`, computed from the columns of all tensors' summaries at once.

_BETWEEN: Final = b"\0"
"""Separates two tables; no table contains it."""


@dataclass(frozen=True, slots=True)
class RepeatedTables:
    """The classic tables of every batch with one template whose tensors with summaries have the same indices."""

    owners: Sequence[int]
    """For each table, the index of its operator."""
    neighbours: Sequence[int]
    """For each table, the index of the first operator with the same directory: they share model and graph."""
    names: Sequence[str]
    """For each table, the part of its name before the time stamp."""
    template: TableText
    """All tables."""
    tensors: NDArray[np.intp]
    """For each row with numbers, the index of its tensor."""
    whole: Sequence[int]
    """The rows among them with integers."""

    def texts(self, batch: Batch) -> list[bytes]:
        """The tables of `batch`."""
        columns = classic_columns(batch.table.summaries[self.tensors], dict(self._extremes(batch)), self.whole)
        return self.template.fill(columns).split(_BETWEEN)

    def _extremes(self, batch: Batch) -> Iterator[tuple[int, Extremes]]:
        """Max and min by the rules of a device if they differ from the summary, by row."""
        known = batch.table.extremes
        if known:
            for row, tensor in enumerate(self.tensors.tolist()):
                if tensor in known:
                    yield row, known[tensor]


def repeated_tables(batch: Batch, name_before_time: Callable[[OpRecord], str | None]) -> RepeatedTables | None:
    """The filler for the tables of batches that repeat `batch`, for operators that leave data. None if there are none, or if
    `name_before_time` does not know a file name that is the same in every step.

    Every tensor with statistics must have a summary.
    """
    bare, ops, tensors = set(batch.table.bare), [*batch.table.ops], [*batch.table.tensors]
    of_operators: dict[int, list[int]] = {}
    for place, owner in enumerate(batch.template.places):
        if not ops[owner].skip:
            of_operators.setdefault(owner, []).append(place)
    owners: list[int] = []
    names: list[str] = []
    templates: list[str] = []
    rows: list[int] = []
    for owner, places in of_operators.items():
        own = [tensors[place] for place in places]
        if any(tensor.data_size for tensor in own):
            name = name_before_time(ops[owner])
            if name is None:
                return None
            names.append(name)
            template, filled = classic_template(own, [at for at, place in enumerate(places) if place not in bare])
            owners.append(owner)
            templates.append(template)
            rows += [places[at] for at in filled]
    if not owners:
        return None
    whole = [row for row, place in enumerate(rows) if is_whole(tensors[place])]
    first: dict[tuple[str, int], int] = {}
    neighbours = [first.setdefault((ops[owner].net_name, ops[owner].graph_id), owner) for owner in owners]
    return RepeatedTables(
        owners, neighbours, names, TableText(_BETWEEN.decode().join(templates)), np.array(rows, np.intp), whole
    )
