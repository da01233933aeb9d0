"""Reads the index of a rank. Trusts it no more than any other file."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from opdump.errors import CorruptDumpError
from opdump.kernels import Summary
from opdump.layouts.mindspore_sync.index_schema import APPLICATION_ID, SCHEMA_VERSION, SUMMARY, TABLE_NAMES
from opdump.layouts.mindspore_sync.payload import FilePayload
from opdump.layouts.mindspore_sync.runs import Run
from opdump.records import IO, Frame, OpRecord, Phase, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics

_PATIENCE_SECONDS = 30.0
_PHASES = frozenset(get_args(Phase))
_REASONS = frozenset(get_args(SkipReason))


class Batch(NamedTuple):
    """What one call of the writer filed: ranges of rows, the last not included."""

    run: int
    step: int
    first_execution: int
    last_execution: int
    first_tensor: int
    last_tensor: int


class BatchRecords(NamedTuple):
    """The records of a batch. `files` runs parallel to `tensors`; constants belong to no step."""

    ops: list[OpRecord]
    tensors: list[TensorRecord]
    files: list[str | None]
    constants: list[TensorRecord]
    constant_files: list[str | None]


@dataclass(frozen=True, slots=True)
class _Signature:
    io: IO
    slot: int
    dtype: str
    shape: tuple[int, ...]
    format: str
    data_size: int
    argument: str
    source: str
    skip: SkipReason


class IndexReader:
    """The index at `path`, whose files are below `root`. A connection lives as long as one call: a capture that is still
    going on is not held up.

    Raises CorruptDumpError where it is no index, is damaged, or is of a later version.
    """

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._copy: Path | None = None
        self._operators: dict[int, tuple[Any, ...]] = {}
        self._signatures: dict[int, _Signature] = {}
        self._arguments: dict[int, dict[str, Any]] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {0: ()}
        with self._named(), self._database() as database:
            self._check(database)
            self.runs = tuple(_run(row) for row in database.execute("SELECT * FROM runs ORDER BY id").fetchall())
            totals = database.execute("SELECT run, name, value FROM totals").fetchall()
            self.batches = tuple(
                Batch(*(_whole(value) for value in row))
                for row in database.execute(
                    "SELECT run, step, first_execution, last_execution, first_tensor, last_tensor FROM batches ORDER BY id"
                ).fetchall()
            )
        for run in self.runs:
            cast(dict[str, int], run.totals).update(
                {_text(name): _whole(value) for number, name, value in totals if number == run.id}
            )

    def read(self, batch: Batch) -> BatchRecords:
        """The records of a batch, in the order in which they were filed."""
        with self._named():
            return self._read(batch)

    def _read(self, batch: Batch) -> BatchRecords:
        with self._database() as database:
            executions = database.execute(
                "SELECT id, operator, timestamp FROM executions WHERE id >= ? AND id < ? ORDER BY id",
                (batch.first_execution, batch.last_execution),
            ).fetchall()
            tensors = database.execute(
                "SELECT execution, signature, summary, statistics, file, constant FROM tensors"
                " WHERE id >= ? AND id < ? ORDER BY id",
                (batch.first_tensor, batch.last_tensor),
            ).fetchall()
            self._load_what_is_new(database)
        ops = {
            _whole(number): self._op(_whole(operator), _whole(time), batch.step)
            for number, operator, time in executions
        }
        records = BatchRecords([], [], [], [], [])
        constants = set()
        for execution, signature, summary, statistics, file, constant in tensors:
            op = _known(ops, execution, "execution")
            record = self._tensor(op, _known(self._signatures, signature, "signature"), summary, statistics, file)
            if constant is None:
                records.tensors.append(record)
                records.files.append(file)
            else:
                constants.add(execution)
                records.constants.append(record)
                records.constant_files.append(file)
        records.ops.extend(op for number, op in ops.items() if number not in constants)
        return records

    def constants(self) -> list[tuple[int, TensorRecord]]:
        """The constants of every run, in the order in which they were filed: (run, record)."""
        with self._database() as database:
            rows = database.execute("SELECT id FROM tensors WHERE constant IS NOT NULL ORDER BY id").fetchall()
        numbers = [_whole(number) for (number,) in rows]
        found: list[tuple[int, TensorRecord]] = []
        for batch in self.batches:
            place = bisect_left(numbers, batch.first_tensor)
            if place < len(numbers) and numbers[place] < batch.last_tensor:
                found.extend((batch.run, record) for record in self.read(batch).constants)
        return found

    def op_names(self, graph_id: int) -> tuple[tuple[str, str], ...]:
        """(op_type, true name) of the operators of a graph, of all runs."""
        with self._named(), self._database() as database:
            rows = database.execute("SELECT DISTINCT op_type, op_name FROM operators WHERE graph_id = ?", (graph_id,))
            return tuple((_text(op_type), _text(name)) for op_type, name in rows.fetchall())

    def _op(self, operator: int, time: int, step: int) -> OpRecord:
        row = _known(self._operators, operator, "operator")
        (op_type, op_name, net_name, graph, rank, device, task, stream, phase, kernel, forward_op) = row[:11]
        position, occurrence, skip, stack, arguments = row[11:]
        return OpRecord(
            op_type=op_type,
            op_name=op_name,
            timestamp=time,
            step=step,
            net_name=net_name,
            graph_id=graph,
            rank_id=rank,
            device_id=device,
            task_id=task,
            stream_id=stream,
            order=position,
            occurrence=occurrence,
            phase=phase,
            kernel=kernel,
            forward_op=forward_op,
            stack=_known(self._stacks, stack, "stack"),
            arguments=dict(_known(self._arguments, arguments, "arguments")) if arguments else {},
            skip=skip,
        )

    def _tensor(self, op: OpRecord, signature: _Signature, summary: Any, statistics: Any, file: Any) -> TensorRecord:
        values: Mapping[str, StatisticValue] = _json_object(statistics) if statistics is not None else {}
        if summary is not None:
            if not isinstance(summary, bytes) or len(summary) != SUMMARY.size:
                raise CorruptDumpError(f"the index holds a summary that is not {SUMMARY.size} bytes")
            values = SummaryStatistics(Summary(*SUMMARY.unpack(summary)), cast(Mapping[str, str], values))
        payload = None
        if file is not None:
            payload = FilePayload(self._root, _text(file), signature.dtype, signature.shape)
        return TensorRecord(
            op=op,
            io=signature.io,
            slot=signature.slot,
            dtype=signature.dtype,
            shape=signature.shape,
            format=signature.format,
            payload=payload,
            statistics=values,
            argument=signature.argument,
            source=signature.source,
            data_size=signature.data_size,
            skip=signature.skip,
        )

    def _load_what_is_new(self, database: sqlite3.Connection) -> None:
        """Names, stacks, arguments and signatures are only ever added: read those past the last one known."""
        rows = database.execute("SELECT * FROM operators WHERE id > ?", (max(self._operators, default=0),))
        for number, *row in rows.fetchall():
            self._operators[_whole(number)] = _operator(row)
        rows = database.execute("SELECT * FROM signatures WHERE id > ?", (max(self._signatures, default=0),))
        for number, *row in rows.fetchall():
            self._signatures[_whole(number)] = _signature(row)
        rows = database.execute("SELECT id, json FROM arguments WHERE id > ?", (max(self._arguments, default=0),))
        for number, text in rows.fetchall():
            self._arguments[_whole(number)] = _json_object(text)
        frames: dict[int, list[Frame]] = {}
        rows = database.execute(
            "SELECT stack, file, line, function, code FROM frames WHERE stack > ? ORDER BY stack, position",
            (max(self._stacks),),
        )
        for stack, file, line, function, code in rows.fetchall():
            frame = Frame(_text(file), _whole(line), _text(function), _text(code))
            frames.setdefault(_whole(stack), []).append(frame)
        self._stacks.update((stack, tuple(lines)) for stack, lines in frames.items())

    def _check(self, database: sqlite3.Connection) -> None:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID or not 1 <= version <= SCHEMA_VERSION:
            raise CorruptDumpError(
                f"{self._path}: an index of version {version} (application {application:#x}); this opdump reads versions 1 "
                f"to {SCHEMA_VERSION} of application {APPLICATION_ID:#x}"
            )
        # A view or a generated column in the place of a table could compute for ever.
        found = dict(database.execute("SELECT name, upper(type || ' ' || sql) FROM sqlite_master").fetchall())
        for name in TABLE_NAMES:
            definition = str(found.get(name, "none"))
            if not definition.startswith("TABLE CREATE TABLE") or "GENERATED" in definition or " AS " in definition:
                raise CorruptDumpError(f"{self._path}: the index has no plain table {name!r}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except CorruptDumpError as error:
            if str(self._path) in str(error):
                raise
            raise CorruptDumpError(f"{self._path}: {error}") from error

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            database = self._connect()
            try:
                yield database
            finally:
                database.close()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise CorruptDumpError(f"{self._path}: the index cannot be read ({error})") from error

    def _connect(self) -> sqlite3.Connection:
        path = self._path if self._copy is None else self._copy / self._path.name
        try:
            return _open(path)
        except sqlite3.OperationalError:
            if self._copy is not None:
                raise
        # A killed capture leaves a journal that must be rolled back, which needs write access: do it in a copy.
        self._copy = Path(tempfile.mkdtemp(prefix="opdump-index-"))
        weakref.finalize(self, shutil.rmtree, self._copy, ignore_errors=True)
        for name in (self._path.name, self._path.name + "-journal"):
            source = self._path.with_name(name)
            if source.is_file():
                shutil.copyfile(source, self._copy / name)
        return _open(self._copy / self._path.name, mode="rw")


def _open(path: Path, mode: str = "ro") -> sqlite3.Connection:
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    database = sqlite3.connect(f"file:{quoted}?mode={mode}", uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # touches the file for the first time
    except sqlite3.Error:
        database.close()
        raise
    return database


def _run(row: tuple[Any, ...]) -> Run:
    number, started, ended, rank, target, framework, framework_version, opdump_version, process, command, plan = row
    parsed = json.loads(_text(command)) if command else []
    if not isinstance(parsed, list):
        raise CorruptDumpError(f"the index gives the command of run {number} as {parsed!r}")
    return Run(
        id=_whole(number),
        rank_id=_whole(rank),
        started=_whole(started),
        ended=None if ended is None else _whole(ended),
        device_target=_text(target),
        framework=_text(framework),
        framework_version=_text(framework_version),
        opdump_version=_text(opdump_version),
        process=_whole(process),
        command=tuple(str(part) for part in parsed),
        plan=_json_object(plan),
        totals={},
    )


def _operator(row: list[Any]) -> tuple[Any, ...]:
    texts = {0, 1, 2, 8, 9, 10, 13}
    checked = tuple(_text(value) if place in texts else _whole(value) for place, value in enumerate(row))
    if len(checked) != 16 or checked[8] not in _PHASES or checked[13] not in _REASONS:
        raise CorruptDumpError(f"the index describes an operator as {checked!r}")
    return checked


def _signature(row: list[Any]) -> _Signature:
    io, slot, dtype, shape, layout, data_size, argument, source, skip = row
    parts = _text(shape).split(",") if shape else []
    if io not in ("input", "output") or skip not in _REASONS or not all(p.isascii() and p.isdigit() for p in parts):
        raise CorruptDumpError(f"the index describes a tensor as {row!r}")
    return _Signature(
        io=io,
        slot=_whole(slot),
        dtype=_text(dtype),
        shape=tuple(int(part) for part in parts),
        format=_text(layout),
        data_size=_whole(data_size),
        argument=_text(argument),
        source=_text(source),
        skip=skip,
    )


def _json_object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(_text(text))
    except (ValueError, RecursionError) as error:
        raise CorruptDumpError(f"the index holds damaged JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where a JSON object was expected")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, int):
        return value
    raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where a whole number was expected")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where text was expected")


def _known(table: Mapping[int, Any], number: Any, what: str) -> Any:
    if isinstance(number, int) and number in table:
        return table[number]
    raise CorruptDumpError(f"the index refers to {what} {str(number)[:40]!r}, which it does not hold")
