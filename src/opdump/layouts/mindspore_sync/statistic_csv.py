"""Writes and reads statistic.csv: one row per tensor of an iteration.

    Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2Norm Value
    MatMul,MatMul-op0,0,0,1795247154245448,input,0,96,float32,"(2,12)",0.449951,-1,2.39063

The columns after Shape are in the order of `statistic_category`, numbers have 6 significant digits as printed by C++, and shapes
are quoted (docs/files.md#statisticcsv). MindSpore ends every row except the header with an additional comma, which is written
only on request and always accepted.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from opdump.errors import CorruptDumpError
from opdump.index.batch import Batch, IndexTemplate
from opdump.kernels import Summary, TableText
from opdump.layouts.mindspore_sync.files import STATISTIC_NAME
from opdump.records import IO, FiledTensor, OpRecord, StatisticValue, format_statistic
from opdump.statistics import (
    OWN,
    Statistic,
    SummaryStatistics,
    name_of_heading,
    one_spelling,
    statistic,
)

if TYPE_CHECKING:
    from opdump.plan import DumpPlan

FIXED_HEADINGS: Final = (
    "Op Type",
    "Op Name",
    "Task ID",
    "Stream ID",
    "Timestamp",
    "IO",
    "Slot",
    "Data Size",
    "Data Type",
    "Shape",
)
NOT_COMPUTED: Final = "null"
"""The cell of a missing statistic."""

_WIDEST_ROW: Final = 1 << 20
_MOST_CACHED: Final = 50_000


@dataclass(frozen=True, slots=True)
class StatisticRow:
    """One row. `op_name` is as in the file; `statistics` has the columns that could be read, by category."""

    op_type: str
    op_name: str
    task_id: int
    stream_id: int
    timestamp: int
    io: IO
    slot: int
    data_size: int
    dtype: str
    shape: tuple[int, ...]
    statistics: Mapping[str, StatisticValue]


class StatisticEncoder:
    """Prints rows for one selection of categories.

    Two spellings of one category (`md5`, `hash:md5`) become one column, at the position of the first.
    """

    def __init__(self, categories: Sequence[str], *, trailing_comma: bool = False) -> None:
        self.categories = one_spelling(categories)
        self._statistics = {name: statistic(name) for name in self.categories}
        headings = (*FIXED_HEADINGS, *(cell(each.heading) for each in self._statistics.values()))
        self.header = ",".join(headings) + "\n"
        self._end = ",\n" if trailing_comma else "\n"
        conversions = (_conversion(name, each) for name, each in self._statistics.items())
        self._conversions = "".join("," + each for each in conversions) + self._end
        self._templates: dict[tuple[object, ...], str] = {}

    def start(self, op: OpRecord, op_name: str, timestamp: str | None = None) -> str:
        """The template for the beginning of all rows of an operator, for `text`.

        `timestamp` replaces the operator's own: `%d` if it is filled in later.
        """
        begin = _literal(f"{cell(op.op_type)},{cell(op_name)},{op.task_id},{op.stream_id},")
        return f"{begin}{op.timestamp if timestamp is None else timestamp},"

    def row(self, tensor: FiledTensor) -> str:
        """The template for the rest of a row: takes a value for each of the categories."""
        key = (tensor.io, tensor.slot, tensor.data_size, tensor.dtype, tensor.shape)
        template = self._templates.get(key)
        if template is None:
            template = _literal(_middle(tensor)) + self._conversions
            if len(self._templates) < _MOST_CACHED:
                self._templates[key] = template
        return template

    def text(self, starts: Sequence[str], tensors: Sequence[FiledTensor]) -> bytes:
        """The rows of tensors, in order; `starts` is parallel to them. None for those without statistics."""
        # One template for all rows, filled once.
        pieces: list[str] = []
        summaries: list[Summary] = []
        others: list[Mapping[str, StatisticValue]] = []
        row = self.row
        for start, tensor in zip(starts, tensors, strict=True):
            statistics = tensor.statistics
            # `type() is`: isinstance uses the abstract base class, and a step has thousands of rows.
            if type(statistics) is SummaryStatistics:
                pieces.append(start)
                pieces.append(row(tensor))
                summaries.append(statistics.summary)
                others.append(statistics.others)
            elif statistics:
                pieces.append(start)
                pieces.append(_literal(_middle(tensor) + self._from_mapping(statistics)))
        numbers = np.fromiter(chain.from_iterable(summaries), np.float64, len(summaries) * len(Summary._fields))
        columns = self.columns(numbers.reshape(len(summaries), len(Summary._fields)), others)
        return TableText("".join(pieces)).fill(columns)

    def columns(
        self, summaries: NDArray[np.float64], others: Sequence[Mapping[str, StatisticValue]]
    ) -> list[NDArray[np.float64] | list[Any]]:
        """The values for the templates of many rows: a column for each category. `summaries` and `others` have one row per
        tensor.
        """
        of_all = Summary._make(summaries.T)
        filled: list[NDArray[np.float64] | list[Any]] = []
        with np.errstate(all="ignore"):  # NaN and Inf are what the columns exist to show
            for name, each in self._statistics.items():
                function = (each.of_summaries or each.of_summary) if name in OWN else None
                if function is not None:
                    filled.append(function(of_all))  # type: ignore[arg-type]  # of columns it gives a column
                else:
                    cells = (given.get(name) for given in others)
                    filled.append([NOT_COMPUTED if value is None else format_statistic(value) for value in cells])
        return filled

    def _from_mapping(self, statistics: Mapping[str, StatisticValue]) -> str:
        cells = (format_statistic(statistics[name]) if name in statistics else NOT_COMPUTED for name in self.categories)
        return "," + ",".join(cells) + self._end


def merge_statistic_csv(earlier: bytes, header: str, rows: bytes, *, where: str) -> bytes:
    """`earlier` with `rows` appended, as in MindSpore.

    If the earlier file has other columns, the result has the new columns followed by the old ones that are no longer requested,
    and `null` for missing statistics. Raises CorruptDumpError for an invalid earlier file.
    """
    if earlier.startswith(header.encode()):
        return earlier + rows
    if not earlier:
        return header.encode("utf-8", "backslashreplace") + rows
    old_header, old_rows = _table(earlier, where)
    new_header, new_rows = _table(header.encode("utf-8", "backslashreplace") + rows, where)
    columns = [*new_header, *(heading for heading in old_header if heading not in new_header)]
    output = io.StringIO()
    output.write(",".join(columns) + "\n")
    for names, table in ((old_header, old_rows), (new_header, new_rows)):
        for _, row in table:
            values = dict(zip(names, row, strict=False))
            cells = (values.get(name, NOT_COMPUTED) for name in columns)
            output.write(",".join(f'"{text}"' if text.startswith("(") else cell(text) for text in cells) + "\n")
    return output.getvalue().encode("utf-8", "backslashreplace")


def decode_statistic_csv(data: bytes, *, where: str = "statistic.csv") -> list[StatisticRow]:
    """The rows of a file of any generation; headings are case-insensitive, with or without the trailing comma.

    Raises CorruptDumpError with the line for text that is not such a table.
    """
    header, table = _table(data, where)
    positions = {heading.lower(): index for index, heading in enumerate(header)}
    missing = [heading for heading in FIXED_HEADINGS if heading.lower() not in positions]
    if missing:
        raise CorruptDumpError(f"{where}: the header has no column {missing[0]!r}; found {', '.join(header)[:200]!r}")
    places = [positions[heading.lower()] for heading in FIXED_HEADINGS]
    categories = [(category, index) for index, heading in enumerate(header) if (category := name_of_heading(heading))]
    rows = []
    for line, cells in table:
        op_type, op_name, task, stream, time, direction, slot, size, dtype, shape = (cells[place] for place in places)
        if direction not in ("input", "output"):
            raise CorruptDumpError(f"{where}, line {line}: IO is {direction[:40]!r}, expected input or output")
        rows.append(
            StatisticRow(
                op_type=op_type,
                op_name=op_name,
                task_id=whole_number(task, where, line, "Task ID"),
                stream_id=whole_number(stream, where, line, "Stream ID"),
                timestamp=whole_number(time, where, line, "Timestamp"),
                io=cast(IO, direction),
                slot=whole_number(slot, where, line, "Slot"),
                data_size=whole_number(size, where, line, "Data Size"),
                dtype=dtype.lower(),
                shape=_shape(shape, where, line),
                statistics={
                    category: value
                    for category, index in categories
                    if (value := _value(category, cells[index], where, line)) is not None
                },
            )
        )
    return rows


def cell(text: str) -> str:
    """`text` as one cell: quoted only if necessary."""
    if '"' in text or "," in text or "\n" in text or "\r" in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def _middle(tensor: FiledTensor) -> str:
    shape = ",".join(map(str, tensor.shape))
    return f'{tensor.io},{tensor.slot},{tensor.data_size},{tensor.dtype},"({shape})"'


def _literal(text: str) -> str:
    """`text` as a literal part of a template."""
    return text.replace("%", "%%")


def _conversion(name: str, each: Statistic) -> str:
    if name not in OWN or each.of_summary is None:
        return "%s"
    return "%d" if each.kind is int else "%g"


def _table(data: bytes, where: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    lines = io.StringIO(table_text(data, where), newline="")
    reader = csv.reader(lines_of_rows(lines, where, _WIDEST_ROW), strict=True)
    rows: list[tuple[int, list[str]]] = []
    try:
        header = [heading.strip() for heading in next(reader, [])]
        if header and not header[-1]:
            header.pop()
        for row in reader:
            if not row:
                continue
            if len(row) == len(header) + 1 and not row[-1].strip():
                row.pop()
            if len(row) != len(header):
                raise CorruptDumpError(
                    f"{where}, line {reader.line_num}: {len(row)} cells for {len(header)} headings: cut off or damaged"
                )
            rows.append((reader.line_num, row))
    except csv.Error as error:
        raise CorruptDumpError(f"{where}, line {reader.line_num}: {error}") from error
    return header, rows


def table_text(data: bytes, where: str) -> str:
    """The text of a table. Raises CorruptDumpError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDumpError(f"{where}: is not UTF-8 text (byte {error.start})") from error


def lines_of_rows(lines: Iterable[str], where: str, widest: int) -> Iterator[str]:
    """The lines of a table. Raises CorruptDumpError at one that is wider, or has a NUL."""
    for number, line in enumerate(lines, start=1):
        if len(line) > widest or "\0" in line:
            raise CorruptDumpError(f"{where}, line {number}: {len(line)} characters that are not a row of a table")
        yield line


def whole_number(text: str, where: str, line: int, heading: str) -> int:
    """The integer in a cell. Raises CorruptDumpError for anything else."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) < 20:
        return int(stripped)
    raise CorruptDumpError(f"{where}, line {line}: {heading} is {text[:40]!r}, expected a whole number")


def _shape(text: str, where: str, line: int) -> tuple[int, ...]:
    inner = text.strip()
    if inner.startswith("(") and inner.endswith(")"):
        parts = [part.strip() for part in inner[1:-1].split(",") if part.strip()]
        if len(parts) <= 64 and all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            return tuple(int(part) for part in parts)
    raise CorruptDumpError(f'{where}, line {line}: Shape is {text[:60]!r}, expected the form "(2,3)"')


def _value(category: str, text: str, where: str, line: int) -> StatisticValue | None:
    stripped = text.strip()
    if not stripped or stripped == NOT_COMPUTED:
        return None
    each = statistic(category)
    try:
        return each.kind(stripped)
    except ValueError as error:
        raise CorruptDumpError(f"{where}, line {line}: {each.heading} is {text[:40]!r}, expected a number") from error


# Fills time stamps and statistics into rows of statistic.csv whose operators and tensors repeat.
#
# The output equals that of `StatisticEncoder.text`, computed from the columns of all tensors' summaries at once.

_NO_OTHERS: Final[Mapping[str, StatisticValue]] = {}


@dataclass(frozen=True, slots=True)
class RepeatedRows:
    """The rows of one file, for every batch with one template whose tensors with summaries have the same indices."""

    encoder: StatisticEncoder
    template: TableText
    op: int
    """The index of one of the operators: the file is in its directory."""
    owners: Sequence[int]
    """For each row, the index of its operator."""
    tensors: NDArray[np.intp]
    """For each row, the index of its tensor."""

    def text(self, batch: Batch) -> bytes:
        """The rows of `batch`."""
        numbers = batch.table.summaries
        if len(self.tensors) < len(numbers):
            numbers = numbers[self.tensors]
        others: Sequence[Mapping[str, StatisticValue]] = (_NO_OTHERS,) * len(numbers)
        if batch.table.others:
            others = [batch.table.others.get(place, _NO_OTHERS) for place in self.tensors.tolist()]
        times = [*map(batch.table.timestamps.__getitem__, self.owners)]
        return self.template.fill([times, *self.encoder.columns(numbers, others)])


def repeated_rows(
    batch: Batch,
    encoder: StatisticEncoder,
    *,
    directory_of: Callable[[OpRecord], str],
    written_as: Callable[[OpRecord], tuple[OpRecord, str]],
) -> list[RepeatedRows]:
    """The fillers for the files of batches that repeat `batch`, one for each directory with rows.

    Every tensor with statistics must have a summary.
    """
    bare, ops, tensors_of_batch = set(batch.table.bare), list(batch.table.ops), list(batch.table.tensors)
    starts = [encoder.start(*written_as(op), timestamp="%d") for op in ops]
    places: dict[str, list[int]] = {}
    for place, (tensor, owner) in enumerate(zip(tensors_of_batch, batch.template.places, strict=True)):
        if place not in bare and not tensor.skip and not ops[owner].skip:
            places.setdefault(directory_of(ops[owner]), []).append(place)
    tables = []
    for tensors in places.values():
        owners = [batch.template.places[place] for place in tensors]
        rows = [
            starts[owner] + encoder.row(tensors_of_batch[place]) for owner, place in zip(owners, tensors, strict=True)
        ]
        tables.append(RepeatedRows(encoder, TableText("".join(rows)), owners[0], owners, np.array(tensors, np.intp)))
    return tables


# Writes the statistic.csv of each directory of a dump: one row per tensor, appended to the existing rows.


class SupportsTables(Protocol):
    """A sink whose files can be read again, to append rows."""

    @property
    def root(self) -> Path: ...

    def read(self, relative: str) -> bytes:
        """The bytes of a file; empty if there is none."""

    def write_bytes(self, relative: str, data: bytes) -> None: ...


class StatisticFiles:
    """Writes the tables through `sink`, with the columns of the plan.

    `written_as` returns the numbers and the name in the rows of an operator. It and `directory_of` may only use attributes of an
    operator that a pattern compares, and its step.
    """

    def __init__(
        self,
        plan: DumpPlan,
        sink: SupportsTables,
        *,
        directory_of: Callable[[OpRecord], str],
        written_as: Callable[[OpRecord], tuple[OpRecord, str]],
    ) -> None:
        self._sink = sink
        self._directory_of = directory_of
        self._written_as = written_as
        self._encoder = StatisticEncoder(plan.statistic_category, trailing_comma=plan.trailing_comma)
        self._written: dict[str, bytes] = {}
        self._last: tuple[IndexTemplate, Sequence[int]] | None = None
        self._repeated: list[RepeatedRows] | None = None
        """The fillers for a batch that repeats the last one; created when needed."""

    def write_batch(self, batch: Batch) -> None:
        """`write` for a batch. A batch that repeats the last one takes a third of the time."""
        last, self._last = self._last, form_of(batch)
        if self._last is None or self._last != last:
            self._repeated = None
            self.write(batch.table.tensors)
            return
        if self._repeated is None:
            self._repeated = repeated_rows(
                batch, self._encoder, directory_of=self._directory_of, written_as=self._written_as
            )
        self._append({self._directory_of(batch.table.ops[rows.op]): rows.text(batch) for rows in self._repeated})

    def write(self, tensors: Sequence[FiledTensor]) -> None:
        """Append the rows of tensors, grouped by operator; none for those without statistics."""
        tables: dict[str, tuple[list[str], list[FiledTensor]]] = {}
        start = self._encoder.start
        op = None
        for tensor in tensors:
            if tensor.op is not op:
                op = tensor.op
                begin = start(*self._written_as(op))
                starts, kept = tables.setdefault(self._directory_of(op), ([], []))
            if not (tensor.skip or op.skip):
                starts.append(begin)
                kept.append(tensor)
        self._append({directory: self._encoder.text(*table) for directory, table in tables.items()})

    def _append(self, texts: Mapping[str, bytes]) -> None:
        written = {}
        for directory, rows in texts.items():
            if not rows:
                continue
            path = f"{directory}/{STATISTIC_NAME}"
            earlier = self._written[path] if path in self._written else self._sink.read(path)
            where = str(self._sink.root / path)
            written[path] = merge_statistic_csv(earlier, self._encoder.header, rows, where=where)
            self._sink.write_bytes(path, written[path])
        # The next call is for the same or a later step: older texts are not needed again.
        self._written = written


def form_of(batch: Batch) -> tuple[IndexTemplate, Sequence[int]] | None:
    """The common form of batches whose rows differ only in time stamps and statistics; None if rows must be printed one by one."""
    if not batch.table.has_summaries or not batch.table.others.keys().isdisjoint(batch.table.bare):
        return None
    # A directory belongs to a step, and patterns have no steps.
    if not batch.table.is_of_one_step:
        return None
    return batch.template, batch.table.bare
