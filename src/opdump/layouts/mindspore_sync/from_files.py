"""Makes records only from file names and statistic.csv: for dumps of other tools, and for files that are not in an index."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from opdump.errors import CorruptDumpError
from opdump.graph import GraphNode
from opdump.index.payload import FilePayload, bytes_of, inside, is_sample, is_stored_as
from opdump.layouts.mindspore_sync.files import FoundFile, Place, PlaceFiles, read_table
from opdump.layouts.mindspore_sync.names import PARAMETER, FileName, dtype_of_token, sanitise
from opdump.layouts.mindspore_sync.program_lines import is_of_optimizer, program_stack
from opdump.layouts.mindspore_sync.statistic_csv import StatisticRow, decode_statistic_csv
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.records import Frame, OpRecord, Payload, TensorRecord

TensorKey = tuple[str, int, str, int]
"""op_type, timestamp, io, slot: the key that a tensor's file, its row in statistic.csv and its record share."""


class StoredFacts(Protocol):
    """The metadata of stored elements, from the header before them."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class PayloadWithHeader(Payload, Protocol):
    """Elements whose metadata is available before they are read."""

    def header(self) -> StoredFacts: ...


OpenFile: TypeAlias = Callable[[Path, str, str], PayloadWithHeader]
"""Opens the elements below a root at a path, with this element type."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor by its file, its row, or both."""

    name: FileName
    relative: str | None
    row: StatisticRow | None

    @property
    def key(self) -> TensorKey:
        name = self.name
        return (name.op_type, name.timestamp, name.io, name.slot)


@dataclass(frozen=True, slots=True)
class PlaceRecords:
    """The records of a place, operators in the order of their time stamps; and the read errors."""

    ops: tuple[OpRecord, ...]
    tensors: tuple[TensorRecord, ...]
    problems: tuple[CorruptDumpError, ...]


def keyed(records: Iterable[TensorRecord]) -> Iterator[tuple[TensorKey, TensorRecord]]:
    """Each record with its key."""
    types: dict[str, str] = {}  # a step has few of these, and very many records
    for record in records:
        op = record.op
        op_type = types.get(op.op_type)
        if op_type is None:
            op_type = types[op.op_type] = sanitise(op.op_type)
        yield (op_type, op.timestamp, record.io, record.slot), record


def records_of_place(
    root: Path,
    rank_id: int,
    place: Place,
    files: PlaceFiles,
    names: TrueNames,
    known: Mapping[TensorKey, TensorRecord],
    open_file: OpenFile = FilePayload,
) -> PlaceRecords:
    """The records of the files of a place, except those that are already `known`.

    An operator that ran several times in a step has one `occurrence` each: its files are separated by time stamp if the tensors
    of one execution share it, as in opdump's files, and otherwise where the inputs start again.

    A tensor whose file cannot be read is included, with the shape of its row in statistic.csv or else `()`; the error is added to
    `problems`, and its payload raises it.
    """
    problems: list[CorruptDumpError] = []
    rows: list[StatisticRow] = []
    if files.statistics is not None:
        try:
            path = inside(root, files.statistics)
            table = read_table(path)
            if table.count(b"\n") - 1 != _rows_of(place, known):
                rows = decode_statistic_csv(table, where=str(path))
        except CorruptDumpError as error:
            problems.append(error)
    # A file that MindSpore wrote has a time stamp of its own instead of its operator's: it is identified by its path.
    known_files = {record.payload.relative for record in known.values() if isinstance(record.payload, FilePayload)}
    executions = _executions(
        [found for found in _found(files.tensors, rows) if found.key not in known and found.relative not in known_files]
    )
    arguments = dict(_arguments(root, files.arguments, problems)) if executions else {}
    ops: list[OpRecord] = []
    tensors: list[TensorRecord] = []
    counts: dict[tuple[str, str], int] = {}
    true_names = [_true_name(group[0], names) for group in executions]
    described: dict[str, tuple[Sequence[Frame], Mapping[str, Any]]] = {}
    """The lines and the arguments of operators, by name."""
    for group, true_name in zip(executions, true_names, strict=True):
        first = group[0].name
        node = names.node(true_name) if first.op_type != PARAMETER else None
        if node is not None and true_name not in described:
            described[true_name] = (program_stack(node.stack), {**node.attributes, **names.constants(node)})
        stack, attributes = described.get(true_name, ((), {}))
        counts[first.op_type, true_name] = occurrence = counts.get((first.op_type, true_name), -1) + 1
        op = OpRecord(
            op_type=first.op_type,
            op_name=true_name,
            timestamp=first.timestamp,
            step=place.step or 0,
            net_name=place.net_name,
            graph_id=place.graph_id,
            rank_id=rank_id,
            task_id=first.task_id,
            stream_id=first.stream_id,
            order=len(ops),
            occurrence=occurrence,
            phase="backward"
            if true_name.startswith(("Gradients/", "Gradients_"))
            else "optimizer"
            if is_of_optimizer(stack)
            else "forward",
            stack=stack,
            arguments=arguments.get((first.op_type, first.op_name)) or attributes,
        )
        ops.append(op)
        records = (_record(root, op, found, problems, open_file) for found in group)
        tensors.extend(records if node is None else (_with_source(record, node, names) for record in records))
    return PlaceRecords(tuple(ops), tuple(tensors), tuple(problems))


def in_execution_order(parts: Iterable[PlaceRecords]) -> PlaceRecords:
    """The records of several graphs of one step combined, numbered by their time stamps."""
    parts = list(parts)
    ops = sorted((op for part in parts for op in part.ops), key=lambda op: op.timestamp)
    numbered = {id(op): replace(op, order=position) for position, op in enumerate(ops)}
    tensors = [replace(record, op=numbered[id(record.op)]) for part in parts for record in part.tensors]
    tensors.sort(key=lambda record: record.op.order)
    problems = tuple(problem for part in parts for problem in part.problems)
    return PlaceRecords(tuple(numbered[id(op)] for op in ops), tuple(tensors), problems)


def _true_name(found: _Found, names: TrueNames) -> str:
    row, name = found.row, found.name
    # Since 2.7 statistic.csv has the full name.
    written = row.op_name if row is not None and row.op_name != name.op_name else ""
    return written or names.true_name(name.op_type, name.op_name)


def _with_source(record: TensorRecord, node: GraphNode, names: TrueNames) -> TensorRecord:
    """The record with its source, by the graph; without one if the graph has no such input, or one of another size."""
    if record.io != "input":
        return record
    given = names.source(node, record.slot)
    if given is None or not given.source or (given.dtype and not _agrees(given.shape, record.shape)):
        return record
    return replace(record, source=given.source)


def _agrees(expected: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the numbers of elements are equal: the graph may have another shape because a view, which leaves no file, lies
    between.
    """
    return min(expected, default=0) < 0 or math.prod(expected) == math.prod(shape)


def _rows_of(place: Place, known: Mapping[TensorKey, TensorRecord]) -> int:
    """The number of rows of statistic.csv if it has exactly the known ones: then it need not be read."""
    return sum(
        1
        for record in known.values()
        if record.statistics and (record.op.net_name, record.op.graph_id) == (place.net_name, place.graph_id)
    )


def _found(files: Sequence[FoundFile], rows: Sequence[StatisticRow]) -> list[_Found]:
    by_key: dict[TensorKey, StatisticRow] = {(sanitise(r.op_type), r.timestamp, r.io, r.slot): r for r in rows}
    found = []
    for file in files:
        name = file.name
        row = by_key.pop((name.op_type, name.timestamp, name.io, name.slot), None)
        found.append(_Found(name, file.relative, row))
    for row in by_key.values():
        name = FileName(
            op_type=sanitise(row.op_type),
            op_name=sanitise(row.op_name),
            task_id=row.task_id,
            stream_id=row.stream_id,
            timestamp=row.timestamp,
            io=row.io,
            slot=row.slot,
            format="DefaultFormat",
        )
        found.append(_Found(name, None, row))
    found.sort(key=lambda item: (item.name.timestamp, item.name.io, item.name.slot))
    return found


def _executions(found: Sequence[_Found]) -> list[list[_Found]]:
    stamps: dict[int, int] = {}
    for item in found:
        stamps[item.name.timestamp] = stamps.get(item.name.timestamp, 0) + 1
    shared = any(count > 1 for count in stamps.values())
    current: dict[tuple[str, str], list[_Found]] = {}
    executions: list[list[_Found]] = []
    for item in found:
        key = (item.name.op_type, item.name.op_name)
        group = current.get(key)
        if group is None or _begins_anew(group[-1].name, item.name, shared):
            group = current[key] = []
            executions.append(group)
        group.append(item)
    return executions


def _begins_anew(last: FileName, name: FileName, shared: bool) -> bool:
    if shared and last.timestamp != name.timestamp:
        return True
    # Within one execution inputs come by slot, then outputs by slot.
    return (name.io, name.slot) <= (last.io, last.slot)


def _record(
    root: Path, op: OpRecord, found: _Found, problems: list[CorruptDumpError], open_file: OpenFile
) -> TensorRecord:
    row, name = found.row, found.name
    shape = row.shape if row is not None else ()
    dtype = row.dtype if row is not None else dtype_of_token(name.dtype)
    payload: PayloadWithHeader | None = None
    sample = 0
    if found.relative is not None:
        payload = open_file(root, found.relative, dtype)
        try:
            header = payload.header()
        except CorruptDumpError as error:
            problems.append(error)
        else:
            if row is not None and is_sample(header.shape, shape):
                sample = header.shape[0]
            else:
                shape = header.shape
            if not is_stored_as(dtype, header.dtype):
                dtype = header.dtype
        payload = open_file(root, found.relative, dtype)
    return TensorRecord(
        op=op,
        io=name.io,
        slot=name.slot,
        dtype=dtype or "unknown",
        shape=shape,
        format=name.format,
        payload=payload,
        statistics=dict(row.statistics) if row is not None else {},
        data_size=row.data_size if row is not None else bytes_of(dtype, math.prod(shape)),
        sample=sample,
    )


def _arguments(
    root: Path, files: Iterable[tuple[str, str]], problems: list[CorruptDumpError]
) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    for full, relative in files:
        op_type, _, name = full.removesuffix(".json").partition(".")
        try:
            yield (op_type, name), _json_object(inside(root, relative))
        except CorruptDumpError as error:
            problems.append(error)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_table(path))
    except (ValueError, RecursionError) as error:
        raise CorruptDumpError(f"{path}: is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CorruptDumpError(f"{path}: holds {str(value)[:80]!r}; the arguments of an operator are a JSON object")
    return value
