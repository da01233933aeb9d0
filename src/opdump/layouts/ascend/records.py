"""The records of one directory of a device's dump: headers of dump files, names and headers of npy files, rows of csv files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from opdump.dump_file import DumpFile, DumpTensor, data_type, read_dump_file
from opdump.dump_file.dump_file import samples_of
from opdump.dump_file.names import UNKNOWN_ID, ConvertedName, DumpName, ExceptionName, sanitise
from opdump.errors import CorruptDumpError, UndecodableTensorError
from opdump.index.payload import FilePayload, bytes_of, inside, is_sample, is_stored_as
from opdump.layouts.ascend.files import ExecutionFiles, PlaceFiles
from opdump.layouts.ascend.operator_csv import OperatorRow, decode_operator_csv
from opdump.layouts.ascend.overflow_files import OverflowRecord
from opdump.layouts.ascend.payload import DumpPayload
from opdump.layouts.ascend.places import Place
from opdump.layouts.mindspore_sync.files import read_table
from opdump.layouts.mindspore_sync.names import dtype_of_token
from opdump.layouts.mindspore_sync.statistic_csv import StatisticRow, decode_statistic_csv
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.records import IO, DamagedPayload, OpRecord, Payload, TensorRecord

_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")
# If a converter had to convert the format of a tensor, the name has the shape instead of the format.
_SHAPE_IN_NAME = re.compile(r"[0-9]+(?:x[0-9]+)*", re.ASCII)
_ORDER_OF_IO = {"input": 0, "output": 1}
_Row = TypeVar("_Row", StatisticRow, OperatorRow)


@dataclass(frozen=True, slots=True)
class Executed:
    """One execution of an operator, before its order and occurrence in the step are known."""

    op: OpRecord
    tensors: tuple[TensorRecord, ...]


class PlaceReader:
    """Reads places of one device. Unreadable parts are added to `problems`; everything else is still read."""

    def __init__(self, root: Path, rank_id: int, problems: list[CorruptDumpError]) -> None:
        self._root = root
        self._rank_id = rank_id
        self._problems = problems

    def read(self, place: Place, files: PlaceFiles, names: TrueNames) -> list[Executed]:
        """The executions of a place, in the order of their names."""
        rows = _Rows(self._rows(files.statistics, decode_statistic_csv))
        executed = [self._execution(place, files_of, names, rows) for files_of in files.executions]
        executed.extend(self._from_rows(place, group, names) for group in rows.left())
        return executed

    def _execution(self, place: Place, files: ExecutionFiles, names: TrueNames, rows: _Rows) -> Executed:
        header = self._header(files.dump)
        name = files.name
        op_type, op_name, task_id, stream_id = "Unknown", "", UNKNOWN_ID, UNKNOWN_ID
        timestamp = header.dump_time if header is not None else 0
        if isinstance(name, DumpName):
            name = name.in_true_order(header.op_name if header is not None else "")
            op_type, op_name, task_id, timestamp = name.op_type, name.op_name, name.task_id, name.microseconds
            stream_id = UNKNOWN_ID if name.stream_id is None else name.stream_id
        elif isinstance(name, ExceptionName):
            op_type = op_name = name.kernel
            task_id, stream_id, timestamp = name.task_id, name.stream_id, name.microseconds
        in_header = header.op_name if header is not None else ""
        is_overflow = isinstance(name, DumpName) and name.is_overflow
        true_name = op_name if is_overflow else in_header or names.true_name(op_type, op_name)
        known = rows.take(op_type, op_name, timestamp, task_id, stream_id)
        if header is None and known:
            written = next(iter(known.values())).op_name
            true_name = written if sanitise(written) == op_name else true_name
        op = self._op(place, names, op_type, true_name or str(files.dump), timestamp, task_id, stream_id)
        if is_overflow:
            return Executed(OverflowRecord.of(op, files.overflows if files.dump is None else [files.dump]), ())
        tensors: dict[tuple[IO, int], TensorRecord] = {}
        samples = samples_of(header) if header is not None else {}
        for tensor in header.tensors if header is not None and files.dump is not None else ():
            found = self._from_dump(op, str(files.dump), tensor)
            whole = samples.get(tensor.name)
            tensors[tensor.io, tensor.slot] = found if whole is None else _sample_of(found, whole)
        for key, (converted, relative) in files.tensors.items():
            if key not in tensors:
                row = known.get(key)
                tensors[key] = self._from_npy(op, relative, key, converted, row)
        for operator_row in self._rows(files.statistics, decode_operator_csv):
            key = (operator_row.io, operator_row.slot)
            tensors[key] = _with_statistics(op, tensors.get(key), operator_row, operator_row.format)
        for key, row in known.items():
            tensors[key] = _with_statistics(op, tensors.get(key), row, "DefaultFormat")
        return Executed(op, _in_order(tensors.values()))

    def _from_rows(self, place: Place, group: Sequence[StatisticRow], names: TrueNames) -> Executed:
        first = group[0]
        true_name = first.op_name if "/" in first.op_name else names.true_name(first.op_type, first.op_name)
        op = self._op(place, names, first.op_type, true_name, first.timestamp, first.task_id, first.stream_id)
        return Executed(op, _in_order(_with_statistics(op, None, row, "DefaultFormat") for row in group))

    def _op(
        self,
        place: Place,
        names: TrueNames,
        op_type: str,
        op_name: str,
        timestamp: int,
        task_id: int,
        stream_id: int,
    ) -> OpRecord:
        node = names.node(op_name)
        return OpRecord(
            op_type=_text(op_type),
            op_name=_text(op_name),
            timestamp=timestamp,
            step=place.step,
            net_name=place.net_name,
            graph_id=place.graph_id,
            rank_id=self._rank_id,
            device_id=self._rank_id,
            task_id=task_id,
            stream_id=stream_id,
            phase="backward" if op_name.startswith(("Gradients/", "Gradients_")) else "forward",
            stack=node.stack if node is not None else (),
        )

    def _header(self, relative: str | None) -> DumpFile | None:
        if relative is None:
            return None
        try:
            return read_dump_file(inside(self._root, relative))
        except CorruptDumpError as error:
            self._problems.append(error)
            return None

    def _from_dump(self, op: OpRecord, relative: str, tensor: DumpTensor) -> TensorRecord:
        bits = data_type(tensor.data_type).bits
        available = tensor.size * 8 // bits if bits else tensor.size
        shape = tensor.shape
        if bits == 0 or tensor.data_type == 0 or (not shape and available != 1):
            shape = (available,)
        count = math.prod(shape)
        payload: Payload | None = DumpPayload(self._root, relative, tensor.io, tensor.slot)
        if count > available > 0:
            said = (
                f"{self._root / relative}: {tensor.name} holds {tensor.size} bytes of {tensor.dtype}; its shape {shape} needs "
                f"{(count * bits + 7) // 8}: it cannot be decoded, the other tensors of the file can"
            )
            self._problems.append(CorruptDumpError(said))
            payload = DamagedPayload(os.path.join(self._root, relative), UndecodableTensorError(said))
        elif count > available:
            # No bytes for a non-empty shape: the device could not copy the tensor, or the writer omitted the size.
            payload = None
        return TensorRecord(
            op=op,
            io=tensor.io,
            slot=tensor.slot,
            dtype=tensor.dtype,
            shape=shape,
            format=tensor.format_name,
            payload=payload,
            data_size=(count * bits + 7) // 8 if bits else tensor.size,
        )

    def _from_npy(
        self, op: OpRecord, relative: str, key: tuple[IO, int], name: ConvertedName, row: StatisticRow | None
    ) -> TensorRecord:
        dtype = row.dtype if row is not None else dtype_of_token(name.dtype)
        shape = row.shape if row is not None else ()
        sample = 0
        payload: Payload
        try:
            header = FilePayload(self._root, relative, dtype).header()
        except CorruptDumpError as error:
            self._problems.append(error)
            payload = DamagedPayload(os.path.join(self._root, relative), error)
        else:
            shape = header.shape
            if not is_stored_as(dtype, header.dtype):
                dtype = header.dtype
            payload = FilePayload(self._root, relative, dtype)
        if row is not None and is_sample(shape, row.shape):
            sample, shape = shape[0], row.shape
        return TensorRecord(
            op=op,
            io=key[0],
            slot=key[1],
            dtype=dtype or "unknown",
            shape=shape,
            sample=sample,
            format="DefaultFormat" if not name.format or _SHAPE_IN_NAME.fullmatch(name.format) else name.format,
            payload=payload,
            data_size=bytes_of(dtype, math.prod(shape)),
        )

    def _rows(self, relative: str | None, decode: Callable[..., list[_Row]]) -> list[_Row]:
        if relative is None:
            return []
        try:
            path = inside(self._root, relative)
            return decode(read_table(path), where=str(path))
        except CorruptDumpError as error:
            self._problems.append(error)
            return []


class _Rows:
    """The rows of a statistic.csv by execution."""

    def __init__(self, rows: Iterable[StatisticRow]) -> None:
        self._by_execution: dict[tuple[int, int, int, str], dict[str, list[StatisticRow]]] = {}
        for row in rows:
            key = (row.timestamp, row.task_id, row.stream_id, sanitise(row.op_type))
            self._by_execution.setdefault(key, {}).setdefault(row.op_name, []).append(row)

    def take(
        self, op_type: str, op_name: str, timestamp: int, task_id: int, stream_id: int
    ) -> dict[tuple[IO, int], StatisticRow]:
        """The rows of an execution, which are then no longer in `left`. A row may have the last component of a name, or the whole
        name.
        """
        named = self._by_execution.get((timestamp, task_id, stream_id, op_type), {})
        for written in named:
            if sanitise(written) == op_name or sanitise(written.rpartition("/")[2]) == op_name:
                return {(row.io, row.slot): row for row in named.pop(written)}
        if len(named) == 1:
            written = next(iter(named))
            if op_name.endswith(sanitise(written)):
                return {(row.io, row.slot): row for row in named.pop(written)}
        return {}

    def left(self) -> list[list[StatisticRow]]:
        """The rows of executions without a file, by execution."""
        return [rows for named in self._by_execution.values() for rows in named.values()]


def _sample_of(tensor: TensorRecord, whole: tuple[int, ...]) -> TensorRecord:
    return replace(tensor, shape=whole, sample=tensor.shape[0], data_size=bytes_of(tensor.dtype, math.prod(whole)))


def _with_statistics(
    op: OpRecord, tensor: TensorRecord | None, row: StatisticRow | OperatorRow, format_: str
) -> TensorRecord:
    # The same NaN object everywhere, so that reading twice returns equal records.
    statistics = {name: math.nan if value != value else value for name, value in row.statistics.items()}  # noqa: PLR0124
    if tensor is None:
        return TensorRecord(
            op, row.io, row.slot, row.dtype, row.shape, format_ or "ND", None, statistics, data_size=row.data_size
        )
    return replace(tensor, statistics={**tensor.statistics, **statistics})


def _in_order(tensors: Iterable[TensorRecord]) -> tuple[TensorRecord, ...]:
    return tuple(sorted(tensors, key=lambda tensor: (_ORDER_OF_IO[tensor.io], tensor.slot)))


def _text(name: str) -> str:
    """A name without terminal control characters, and without the lone surrogates that represent bytes outside of UTF-8."""
    if name.isprintable():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace").translate(_CONTROLS)
