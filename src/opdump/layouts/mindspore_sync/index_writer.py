"""Writes the index of a rank, one transaction per step."""

from __future__ import annotations

import json
import marshal
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

from opdump.errors import DumpPathError
from opdump.layouts.mindspore_sync.index_schema import (
    APPLICATION_ID,
    INDEX_NAME,
    SCHEMA_VERSION,
    SUMMARY,
    TABLES,
    VIEWS,
)
from opdump.records import FiledTensor, Frame, OpRecord, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics

# A reader of a running capture holds its lock for the time of one query; a writer waits that long and much longer.
_PATIENCE_SECONDS = 60.0
_MOST_CACHED_STACKS = 20_000
_MOST_KNOWN_ROWS = 200_000
"""More distinct operators, arguments or tensors are forgotten and stored again: a learning rate that changes in every step
makes new arguments in every step."""
_ROWS_PER_STATEMENT = 50  # SQLite takes 999 values a statement everywhere


class RunFacts(NamedTuple):
    """What the index keeps of a run besides its records."""

    rank_id: int
    device_target: str
    framework: str
    framework_version: str
    opdump_version: str
    command: Sequence[str]
    plan: str


class Constant(NamedTuple):
    """A constant that was filed: its number, its record, and its file relative to the rank's directory."""

    data_id: int
    record: TensorRecord
    file: str


class IndexWriter:
    """One run's hand on the index of a rank. Strings that recur in every step are stored once.

    Raises DumpPathError where the index cannot be written. An index that no longer can be read (a disk that failed) is put
    aside as `index.sqlite.unreadable` and a new one is begun.
    """

    def __init__(self, metadata: Path, run: RunFacts) -> None:
        self._path = metadata / INDEX_NAME
        self.failed = False
        self._operators: dict[tuple[object, ...], int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {(): 0}
        # Hashing a stack of frames costs more than all else here; an adapter gives the same tuple for the same place.
        self._stacks_by_identity: dict[int, tuple[tuple[Frame, ...], int]] = {}
        self._arguments: dict[bytes, int] = {}
        self._arguments_by_identity: dict[int, tuple[Mapping[str, Any], int]] = {}
        self._signatures: dict[tuple[object, ...], int] = {}
        self.run_id = self._begin_run(run)

    def write_batch(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        constants: Sequence[Constant] = (),
    ) -> None:
        """File the records of (a part of) a step; `files` runs parallel to `tensors`."""
        self._forget_if_many()
        with self._transaction() as database:
            batch = _Batch(self, database, step)
            for op in ops:
                batch.add_op(op)
            for record, file in zip(tensors, files, strict=True):
                batch.add_tensor(record, file)
            for constant in constants:
                batch.add_tensor(constant.record, constant.file, constant.data_id)
            batch.insert(self.run_id)

    def _forget_if_many(self) -> None:
        # Numbers go on from the highest in the file, so rows that are stored twice do no harm.
        for known in (self._operators, self._arguments, self._signatures):
            if len(known) > _MOST_KNOWN_ROWS:
                known.clear()

    def end_run(self, totals: Mapping[str, int]) -> None:
        """Note the time and the totals: the mark of a run that ended in good order."""
        with self._transaction() as database:
            database.execute("UPDATE runs SET ended = ? WHERE id = ?", (time.time_ns() // 1000, self.run_id))
            rows = [(self.run_id, name, int(value)) for name, value in totals.items()]
            database.executemany("INSERT OR REPLACE INTO totals VALUES (?, ?, ?)", rows)

    def _begin_run(self, run: RunFacts) -> int:
        try:
            self._create()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise self._failure(error) from error
            self._path.replace(self._path.with_name(INDEX_NAME + ".unreadable"))
            self._create()
        with self._transaction() as database:
            cursor = database.execute(
                "INSERT INTO runs(started, rank_id, device_target, framework, framework_version, opdump_version, process,"
                " command, plan) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    time.time_ns() // 1000,
                    run.rank_id,
                    run.device_target,
                    run.framework,
                    run.framework_version,
                    run.opdump_version,
                    os.getpid(),
                    json.dumps(list(run.command)),
                    run.plan,
                ),
            )
            return int(cursor.lastrowid or 0)

    def _create(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.close(descriptor)
        database = _connect(self._path)
        try:
            database.execute("BEGIN IMMEDIATE")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise DumpPathError(
                    f"{self._path}: is an index of version {version}; this opdump writes version {SCHEMA_VERSION}: set 'path' "
                    "to a new directory, or update opdump"
                )
            if version == 0:
                for statement in (*TABLES, *VIEWS):
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            database.execute("COMMIT")
        finally:
            database.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            database = _connect(self._path, create=False)
            try:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")
            finally:
                database.close()
        except sqlite3.Error as error:
            self.failed = True
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> DumpPathError:
        return DumpPathError(
            f"{self._path}: the index cannot be written ({error}): free space on the disk, make the directory writable, or "
            "set 'path' to another directory; the files written so far are whole"
        )


class _Batch:
    """The rows of one transaction, collected and then inserted table by table."""

    def __init__(self, index: IndexWriter, database: sqlite3.Connection, step: int) -> None:
        self._index = index
        self._database = database
        self._step = step
        self._operators: list[tuple[object, ...]] = []
        self._executions: list[tuple[object, ...]] = []
        self._frames: list[tuple[object, ...]] = []
        self._arguments: list[tuple[object, ...]] = []
        self._signatures: list[tuple[object, ...]] = []
        self._tensors: list[tuple[object, ...]] = []
        self._extras: list[tuple[object, ...]] = []
        self._next_operator = self._next("operators")
        self._next_stack = self._next("frames", "stack")
        self._next_arguments = self._next("arguments")
        self._next_signature = self._next("signatures")
        self._first_execution = self._next("executions")
        self._first_tensor = self._next("tensors")
        self._execution_of: dict[int, int] = {}
        self._kept: list[OpRecord] = []

    def add_op(self, op: OpRecord) -> int:
        key = (
            op.op_type,
            op.op_name,
            op.net_name,
            op.graph_id,
            op.rank_id,
            op.device_id,
            op.task_id,
            op.stream_id,
            op.phase,
            op.kernel,
            op.forward_op,
            op.order,
            op.occurrence,
            op.skip,
            self._stack(op.stack) if op.stack else 0,
            self._argument(op.arguments) if op.arguments else 0,
        )
        known = self._index._operators
        operator = known.get(key)
        if operator is None:
            operator = known[key] = self._next_operator
            self._next_operator += 1
            self._operators.append((operator, *map(_storable, key)))
        execution = self._first_execution + len(self._executions)
        self._executions.append((execution, operator, op.timestamp))
        self._execution_of[id(op)] = execution
        self._kept.append(op)  # keeps id(op) from being given to another object
        return execution

    def add_tensor(self, record: FiledTensor, file: str | None, constant: int | None = None) -> None:
        execution = self._execution_of.get(id(record.op))
        if execution is None:
            execution = self.add_op(record.op)
        key = (
            record.io,
            record.slot,
            record.dtype,
            record.shape,
            record.format,
            record.data_size,
            record.argument,
            record.source,
            record.skip,
        )
        known = self._index._signatures
        signature = known.get(key)
        if signature is None:
            signature = known[key] = self._next_signature
            self._next_signature += 1
            shape = ",".join(map(str, record.shape))
            self._signatures.append((signature, *key[:3], shape, *map(_storable, key[4:])))
        statistics = record.statistics
        summary = rest = None
        if type(statistics) is SummaryStatistics:  # isinstance asks the abstract base class: slow
            summary = SUMMARY.pack(*statistics.summary)
            if statistics.digests:
                rest = _json(statistics.digests)
        elif statistics:
            rest = _json(statistics)
        tensor = self._first_tensor + len(self._tensors)
        self._tensors.append((tensor, execution, signature, summary))
        if file is not None or rest is not None or constant is not None:
            self._extras.append((rest, _storable(file), constant, tensor))

    def insert(self, run: int) -> None:
        self._insert("operators", 17, self._operators)
        self._insert("frames", 6, self._frames)
        self._insert("arguments", 2, self._arguments)
        self._insert("signatures", 10, self._signatures)
        self._insert("executions", 3, self._executions)
        self._insert("tensors(id, execution, signature, summary)", 4, self._tensors)
        self._database.executemany(
            "UPDATE tensors SET statistics = ?, file = ?, constant = ? WHERE id = ?", self._extras
        )
        last_execution = self._first_execution + len(self._executions)
        last_tensor = self._first_tensor + len(self._tensors)
        batch = (run, self._step, self._first_execution, last_execution, self._first_tensor, last_tensor)
        self._database.execute("INSERT INTO batches VALUES (NULL, ?, ?, ?, ?, ?, ?)", batch)

    def _insert(self, table: str, columns: int, rows: Sequence[tuple[object, ...]]) -> None:
        # Many rows a statement take half the time of as many statements.
        marks = f"({', '.join('?' * columns)})"
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            part = rows[start : start + _ROWS_PER_STATEMENT]
            statement = f"INSERT INTO {table} VALUES {', '.join([marks] * len(part))}"  # noqa: S608  # our own names
            self._database.execute(statement, list(chain.from_iterable(part)))

    def _next(self, table: str, column: str = "id") -> int:
        highest = self._database.execute(f"SELECT MAX({column}) FROM {table}").fetchone()[0]  # noqa: S608
        return int(highest or 0) + 1

    def _stack(self, stack: tuple[Frame, ...]) -> int:
        index = self._index
        known = index._stacks_by_identity.get(id(stack))
        if known is not None:
            return known[1]
        number = index._stacks.get(stack)
        if number is None:
            number = index._stacks[stack] = self._next_stack
            self._next_stack += 1
            self._frames.extend(
                (number, position, *map(_storable, (frame.file, frame.line, frame.function, frame.code)))
                for position, frame in enumerate(stack)
            )
        if len(index._stacks_by_identity) >= _MOST_CACHED_STACKS:
            index._stacks_by_identity.clear()
        index._stacks_by_identity[id(stack)] = (stack, number)
        return number

    def _argument(self, arguments: Mapping[str, Any]) -> int:
        index = self._index
        try:
            # Format 0 knows neither references nor interned strings, so equal values give equal bytes; and it is three
            # times as fast as the JSON that is stored.
            key = marshal.dumps(cast(Any, arguments), 0)
        except ValueError:
            key = _json(arguments).encode("utf-8", "surrogatepass")
        number = index._arguments.get(key)
        if number is None:
            number = index._arguments[key] = self._next_arguments
            self._next_arguments += 1
            self._arguments.append((number, _json(arguments)))
        return number


def _connect(path: Path, *, create: bool = True) -> sqlite3.Connection:
    mode = "rwc" if create else "rw"
    database = sqlite3.connect(
        f"file:{_quoted(path)}?mode={mode}", uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None
    )
    # Not to wait for the disk: what a killed process wrote is in the system's cache and arrives all the same.
    try:
        database.execute("PRAGMA synchronous = OFF")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _quoted(path: Path) -> str:
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _storable(value: object) -> object:
    """Text as SQLite takes it: a file name that is no UTF-8 reaches Python with lone surrogates."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _json(value: Mapping[str, Any] | Mapping[str, StatisticValue]) -> str:
    return json.dumps(dict(value), ensure_ascii=True, default=str)
