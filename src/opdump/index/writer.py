"""Writes the index of a rank, one transaction per step.

A step that repeats an earlier one is a single row. To make the check for repetition cheap, whole lists are looked up at once, and the only Python
code per operator or tensor is the one that reads its fields.
"""

from __future__ import annotations

import atexit
import json
import marshal
import os
import sqlite3
import stat
import time
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from opdump.degradation import Degradation
from opdump.errors import CorruptDumpError, DumpPathError
from opdump.index.batch import (
    Batch,
    Batches,
    IndexTemplate,
    Key,
    operator_keys,
    signature_keys,
)
from opdump.index.opening import (
    APPLICATION_ID,
    INDEX_NAME,
    SCHEMA_VERSION,
    SUMMARY,
    TABLES,
    TURNS,
    VIEWS,
    ConnectionCache,
    address_of,
    check_files,
    check_schema,
    key_of,
    may_lack_summaries,
)
from opdump.index.values import StoredStacks, memory_text
from opdump.records import FiledTensor, Memory, OpRecord, SkipReason, StatisticValue, TensorRecord, escaped
from opdump.sink.open_directories import link_error, reason_of, remedy_for
from opdump.step_table import NO_SUMMARY, OtherArguments, statistics_of

_MOST_HELD_OPERATORS = 50_000
_MOST_KNOWN_ROWS = 200_000
"""With more distinct operators, arguments, tensors or patterns than this, the rows are forgotten and stored again. A learning rate that changes
in every step produces new arguments in every step."""
_NUMBERED = ("operators", "stacks", "lines", "arguments", "signatures", "patterns")
_HIGHEST = "SELECT " + ", ".join(f"(SELECT MAX(id) FROM {table})" for table in _NUMBERED)  # noqa: S608  # our own names
# `json.dumps` would create an encoder in each call.
_ENCODE: Final = json.JSONEncoder(default=str, separators=(",", ":")).encode
NOTHING_COUNTED: Mapping[SkipReason, int] = {}
SPLIT_PAGES: Final = 4 * 4096
"""Bytes by which the file may grow for a step beyond its rows: it grows in pages, when those of a table are full."""
_ROWS_PER_STATEMENT = 50  # every SQLite accepts 999 values per statement


class RunFacts(NamedTuple):
    """The metadata of a run in the index."""

    rank_id: int
    device_target: str
    framework: str
    framework_version: str
    opdump_version: str
    command: Sequence[str]
    plan: str
    started: int = 0
    """Microseconds since the Unix epoch; 0 means now."""


def own_version() -> str:
    """Return the version of opdump, or "unknown" for a source tree that was never installed and while an installer replaces its files."""
    try:
        # None for truncated metadata, although the type does not allow it.
        found: str | None = metadata.version("opdump")
    except metadata.PackageNotFoundError:
        found = None
    return found or "unknown"


class _NoRoomError(Exception):
    """A transaction needs more space than a limit leaves for the file."""


class Constant(NamedTuple):
    """A constant that was written: its number, its record, and its file relative to the rank's directory."""

    data_id: int
    record: TensorRecord
    file: str


class IndexWriter:
    """Writes one run into the index of a rank. Strings that recur in every step are stored once.

    `arguments` of operators must not be changed after they were passed in: the same mapping object is assumed to be unchanged.

    Raises DumpPathError if the index cannot be written or has a different version. An index that cannot be read any more (a disk failure) is renamed
    to `index.sqlite.unreadable`, and a new one is created.
    """

    def __init__(self, metadata: Path, run: RunFacts) -> None:
        self._path = metadata / INDEX_NAME
        self._directory = metadata
        self._place = _identity(metadata)
        self.failed = False
        self._operators: dict[tuple[object, ...], int] = {}
        # The same with stack and arguments by identity, because comparing them would cost more than everything else here. Adapters
        # pass the same object for the same place. The objects are referenced, so that their identities stay unique.
        self._operators_by_identity: dict[tuple[object, ...], int] = {}
        self._held: list[OpRecord] = []
        self._stacks = StoredStacks()
        self._arguments: dict[bytes, int] = {}
        self._signatures: dict[tuple[object, ...], int] = {}
        self._patterns: dict[bytes, int] = {}
        self._batches = Batches()
        self._rows_of_templates: dict[IndexTemplate, int] = {}
        """The rows of templates in `patterns`."""
        self.bytes_added = 0
        """By how much the file has grown since this run began."""
        self._size_before = self._path.stat().st_size if self._path.exists() else 0
        weakref.finalize(self, close_idle, self._path)
        self.run_id = self._begin_run(run)

    def batch_of(self, ops: Sequence[OpRecord], tensors: Sequence[FiledTensor]) -> Batch:
        """Return the records of a step, or of a part of it, in the form that `write_batch` takes."""
        return self._batches.of(ops, tensors)

    def write_batch(
        self,
        step: int,
        batch: Batch,
        files: Sequence[str | None],
        constants: Sequence[Constant] = (),
        counted: Mapping[SkipReason, int] = NOTHING_COUNTED,
        room: int | None = None,
    ) -> bool:
        """Write the records of a step, or of a part of it. `files` is parallel to the tensors.

        `counted`: the number of operators without data whose records an earlier call wrote, by reason. `room`: the number of bytes by which the file
        may grow. Return False, having written nothing, if that is too little.

        Raises ValueError if `files` has the wrong length, and DumpPathError if the index cannot be written.
        """
        if len(files) != len(batch.table.tensors):
            raise ValueError(
                f"{len(files)} files were given for {len(batch.table.tensors)} tensors; expected one, or None, for each"
            )
        self._forget_if_many()
        timestamps, summaries, filed, statistics = _columns_of(batch, files)
        template = batch.template
        try:
            with self._transaction(room) as database:
                rows = _NewRows(self, database)
                if batch.table.ops or counted or not constants:
                    number = self._rows_of_templates.get(template)
                    if number is None:
                        operators = rows.operators(template.first_operators, template.operators)
                        number = rows.pattern(operators, template.places, rows.signatures(template.signatures))
                        for each in self._rows_of_templates.keys() - self._batches.recent:  # no longer needed
                            del self._rows_of_templates[each]
                        self._rows_of_templates[template] = number
                    database.execute(
                        "INSERT INTO batches VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (
                            *(self.run_id, step, number, timestamps, summaries, json.dumps(counted)),
                            *(json.dumps(rows.arguments(batch.arguments)), filed, statistics),
                        ),
                    )
                for constant in constants:
                    rows.add_constant(self.run_id, step, constant)
                rows.insert()
        except _NoRoomError:
            return False
        return True

    def _forget_if_many(self) -> None:
        # New rows are numbered after the highest in the file, so storing a row twice does no harm.
        for known in (self._operators, self._arguments, self._signatures, self._patterns):
            if len(known) > _MOST_KNOWN_ROWS:
                known.clear()
        if len(self._held) > _MOST_HELD_OPERATORS:
            self._operators_by_identity.clear()
            self._held.clear()

    def forget(self) -> None:
        """Release the memory for rows that were stored once. A later batch stores them again."""
        for known in (self._operators, self._operators_by_identity, self._arguments, self._signatures, self._patterns):
            known.clear()
        self._held.clear()
        self._stacks.forget()
        self._batches.forget()
        self._rows_of_templates.clear()

    def end_run(self, totals: Mapping[str, int], ended: int = 0) -> None:
        """Write the time (now if `ended` is 0) and the totals, which mark a run that ended regularly."""
        with self._transaction() as database:
            database.execute("UPDATE runs SET ended = ? WHERE id = ?", (ended or time.time_ns() // 1000, self.run_id))
            rows = [(self.run_id, name, int(value)) for name, value in totals.items()]
            database.executemany("INSERT OR REPLACE INTO totals VALUES (?, ?, ?)", rows)
        close_idle(self._path)

    def write_degradation(self, found: Degradation) -> None:
        """Record what is left out from a step on."""
        with self._transaction() as database:
            database.execute(
                "INSERT INTO degradations(run, step, time, bound, now, why) VALUES (?, ?, ?, ?, ?, ?)",
                (self.run_id, found.step, found.time, found.bound, found.now, found.why),
            )

    def forget_run(self) -> int:
        """Remove the run, of which nothing was written. Return the number of other runs in the index."""
        with self._transaction() as database:
            database.execute("DELETE FROM runs WHERE id = ?", (self.run_id,))
            others = int(database.execute("SELECT COUNT(*) FROM runs").fetchone()[0])
        close_idle(self._path)
        return others

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
                    run.started or time.time_ns() // 1000,
                    run.rank_id,
                    escaped(run.device_target),
                    escaped(run.framework),
                    escaped(run.framework_version),
                    escaped(run.opdump_version),
                    os.getpid(),
                    json.dumps([escaped(word) for word in run.command]),
                    escaped(run.plan),
                ),
            )
            return int(cursor.lastrowid or 0)

    def _create(self) -> None:
        with TURNS.take():
            self._create_in_turn()

    def _create_in_turn(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise link_error(self._path) if self._path.is_symlink() else self._failure(error) from error
        os.close(descriptor)
        try:
            check_files(self._path)
        except CorruptDumpError as error:
            raise DumpPathError(f"{error}; or dump into a new directory") from error
        database = connect(self._path, create=True)
        try:
            database.execute("BEGIN IMMEDIATE")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, SCHEMA_VERSION):
                remedy = "or update opdump" if version > SCHEMA_VERSION else "or remove the dump that is there"
                raise DumpPathError(
                    f"{self._path}: is an index of version {version}; this opdump writes version {SCHEMA_VERSION}: dump "
                    f"into a new directory, {remedy}"
                )
            if version == SCHEMA_VERSION:
                try:  # triggers and checks in an index would be executed by the process that writes into it
                    check_schema(database, self._path)
                except CorruptDumpError as error:
                    raise DumpPathError(
                        f"{error}: dump into a new directory, or remove the dump that is there"
                    ) from error
            if version == 0:
                for statement in (*TABLES, *VIEWS):
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            database.execute("COMMIT")
        finally:
            database.close()

    @contextmanager
    def _transaction(self, room: int | None = None) -> Iterator[sqlite3.Connection]:
        try:
            self._refuse_another_place()
            with transaction(self._path, room) as database:
                yield database
            self.bytes_added = self._path.stat().st_size - self._size_before
        except BaseException as error:
            self.forget()  # the rows of this transaction are not in the file: it failed, or Ctrl-C interrupted it
            if room is not None and isinstance(error, sqlite3.OperationalError) and "is full" in str(error):
                raise _NoRoomError from error
            self.failed = True
            if isinstance(error, DumpPathError) or not isinstance(error, Exception):
                raise
            raise self._failure(error) from error

    def _refuse_another_place(self) -> None:
        """Raise DumpPathError if the directory in which the index was created was replaced, or if the index is a link now."""
        if self._path.is_symlink():
            raise link_error(self._path)
        if _identity(self._directory) != self._place:
            raise DumpPathError(
                f"{self._path}: the index cannot be written (its directory was removed or replaced during the run); run the program "
                "again, and do not touch the directory meanwhile; the files written so far are complete"
            )

    def _failure(self, error: Exception) -> DumpPathError:
        reason, remedy = reason_of(error), remedy_for(error)
        if isinstance(error, sqlite3.Error):
            reason = str(error)
            remedy = "free space on the disk, make the directory writable, or dump into another directory"
            if not self._path.exists():
                remedy = (
                    "it was removed during the run; run the program again, and do not touch the directory meanwhile"
                )
            elif "locked" in reason:
                remedy = "another program holds it open; end that, and run this again"
        return DumpPathError(
            f"{self._path}: the index cannot be written ({reason}): {remedy}; the files written so far are complete"
        )


class _NewRows:
    """The rows of one transaction. Known rows are looked up, and new ones are collected and inserted."""

    def __init__(self, index: IndexWriter, database: sqlite3.Connection) -> None:
        self._index = index
        self._database = database
        self._rows: dict[str, list[tuple[object, ...]]] = {}
        self._next: dict[str, int] = {}

    def operators(self, ops: Sequence[OpRecord], keys: Sequence[Key]) -> list[int]:
        """Return the row of each operator. `keys` are its keys of `IndexTemplate.operators`, at the same indices."""
        known = self._index._operators_by_identity
        keys = [(*key, id(op.arguments) if op.arguments else 0) for op, key in zip(ops, keys, strict=True)]
        numbers = [*map(known.get, keys)]
        if None in numbers:
            for place, number in enumerate(numbers):
                if number is None:
                    op = ops[place]
                    numbers[place] = known[keys[place]] = self._operator(op, keys[place][:-2])
                    self._index._held.append(op)
        return cast(list[int], numbers)

    def arguments(self, given: OtherArguments) -> list[tuple[int, int]]:
        """Return pairs of the index of an operator and the row of its arguments."""
        known: dict[int, int] = {}
        for each in given.values():
            if id(each) not in known:
                known[id(each)] = self._argument(each) if each else 0
        return [(place, known[id(each)]) for place, each in given.items()]

    def signatures(self, keys: Sequence[Key]) -> list[int]:
        """Return the row of each tensor's signature, for the keys of `IndexTemplate.signatures`."""
        known = self._index._signatures
        numbers = [*map(known.get, keys)]
        if None in numbers:
            for place, key in enumerate(keys):
                number = known.get(key)
                if number is None:
                    number = known[key] = self._number("signatures")
                    shape = ",".join(map(str, cast(tuple[int, ...], key[3])))
                    memory = memory_text(cast(Memory | None, key[-1]))
                    self.add("signatures", number, *key[:3], shape, *key[4:-1], memory)
                numbers[place] = number
        return cast(list[int], numbers)

    def pattern(self, operators: Sequence[int], places: Sequence[int], signatures: Sequence[int]) -> int:
        """Return the row of a sequence of operators and of tensors, each with the index of its operator and its signature."""
        known = self._index._patterns
        # A digest, because the sequences themselves would fill the memory if every step differs.
        key = sha256(array("q", [len(operators), *operators, *places, *signatures]).tobytes()).digest()
        number = known.get(key)
        if number is None:
            number = known[key] = self._number("patterns")
            pairs = list(zip(places, signatures, strict=True))
            self.add("patterns", number, json.dumps(operators), json.dumps(pairs))
        return number

    def add_constant(self, run: int, step: int, constant: Constant) -> None:
        record = constant.record
        (operator,) = self.operators([record.op], operator_keys([record.op]))
        (signature,) = self.signatures(signature_keys([record]))
        summaries, others, _ = statistics_of([record])
        self.add(
            "constants(run, step, data_id, operator, timestamp, signature, summary, statistics, file)",
            *(run, step, constant.data_id, operator, record.op.timestamp, signature),
            None if summaries is None else _blob(summaries),
            _json(others[0]) if others else None,
            constant.file,
        )

    def add(self, table: str, *row: object) -> None:
        self._rows.setdefault(table, []).append(tuple(map(_storable, row)))

    def insert(self) -> None:
        # Inserting many rows per statement takes half the time of one statement per row.
        for table, rows in self._rows.items():
            marks = f"({', '.join('?' * len(rows[0]))})"
            for start in range(0, len(rows), _ROWS_PER_STATEMENT):
                part = rows[start : start + _ROWS_PER_STATEMENT]
                statement = f"INSERT INTO {table} VALUES {', '.join([marks] * len(part))}"  # noqa: S608  # our own names
                self._database.execute(statement, list(chain.from_iterable(part)))

    def _number(self, table: str) -> int:
        if not self._next:
            # Queried in every transaction that adds rows, because another run may have added some meanwhile.
            highest = self._database.execute(_HIGHEST).fetchone()
            self._next = {name: int(number or 0) + 1 for name, number in zip(_NUMBERED, highest, strict=True)}
        number = self._next[table]
        self._next[table] += 1
        return number

    def _operator(self, op: OpRecord, fields: tuple[object, ...]) -> int:
        known = self._index._operators
        stack = self._index._stacks.row(op.stack, self._number, self.add)
        key = (*fields, stack, self._argument(op.arguments) if op.arguments else 0)
        number = known.get(key)
        if number is None:
            number = known[key] = self._number("operators")
            self.add("operators", number, *key)
        return number

    def _argument(self, arguments: Mapping[str, Any]) -> int:
        index = self._index
        try:
            # Format 0 has neither references nor interned strings, so equal values give equal bytes. It is three times as
            # fast as the JSON that is stored.
            key = marshal.dumps(cast(Any, arguments), 0)
        except ValueError:
            key = _json(arguments).encode("utf-8", "surrogatepass")
        number = index._arguments.get(key)
        if number is None:
            number = index._arguments[key] = self._number("arguments")
            self.add("arguments", number, _json(arguments))
        return number


def _columns_of(batch: Batch, files: Sequence[str | None]) -> tuple[str, bytes | None, str | None, str | None]:
    """The time stamps, summaries, files and other statistics of a batch as they are stored."""
    table = batch.table
    timestamps = json.dumps(table.timestamps)
    filed: dict[int, object] = {}
    if files.count(None) < len(files):  # usually all are None, and a step has thousands of tensors
        filed = {place: _storable(file) for place, file in enumerate(files) if file is not None}
    statistics = {place: dict(others) for place, others in sorted(table.others.items()) if others}
    summaries = _blob(table.summaries) if table.has_summaries else None
    if summaries is None and not may_lack_summaries(len(files), timestamps, len({*filed, *statistics})):
        summaries = SUMMARY.pack(*NO_SUMMARY) * len(files)
    return timestamps, summaries, _ENCODE(filed) if filed else None, _ENCODE(statistics) if statistics else None


def _blob(summaries: NDArray[np.float64]) -> bytes:
    """Return the summaries as little-endian bytes, as `opening.SUMMARY` reads them."""
    return summaries.astype("<f8", copy=False).tobytes()


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return the identity of a directory. Return None if it does not exist or is a link."""
    try:
        found = os.lstat(directory)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _storable(value: object) -> object:
    """Escape text that SQLite does not accept: Python represents a file name that is not UTF-8 with lone surrogates."""
    return escaped(value) if isinstance(value, str) and not value.isascii() else value


def _json(value: Mapping[str, Any] | Mapping[str, StatisticValue]) -> str:
    return _ENCODE(dict(value))


# The connection with which a process writes into the index of a rank.

# A reader of a running capture locks the index for one query; a writer waits for that and much longer.
_PATIENCE_SECONDS = 60.0
_MOST_PAGES: Final = 2**30
"""The default of SQLite."""
_KEPT_PAGES: Final = 2
"""Pages reserved for the last rows of a run: which limit was reached, and the end of the run."""

_IDLE: Final = ConnectionCache()
os.register_at_fork(before=_IDLE.close)  # a child must neither use nor close connections of SQLite
atexit.register(_IDLE.close)

close_idle: Final = _IDLE.close
"""Closes the connection that is kept for the next transaction in the index at a path."""


@contextmanager
def transaction(path: Path, room: int | None = None) -> Iterator[sqlite3.Connection]:
    """Run the block in one transaction, which is rolled back if the block raises. Raises sqlite3.Error like SQLite.

    `room`: the number of bytes by which the file may grow. If it is too small, SQLite reports that the database is full.

    The connection of the last transaction is used again, unless its path is a different file by now: opening one takes longer than writing a step.
    """
    with TURNS.take():
        try:
            kept = _IDLE.take(key_of(path))
        except FileNotFoundError:
            kept = None
        database = kept or connect(path)
        try:
            database.execute("BEGIN IMMEDIATE")
            if room is not None:
                _limit(database, room)
            yield database
            database.execute("COMMIT")
            if room is not None:
                database.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
            _IDLE.put(key_of(path), database)
        except BaseException:
            database.close()
            raise


def _limit(database: sqlite3.Connection, room: int) -> None:
    pages, size = (database.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    database.execute(f"PRAGMA max_page_count = {pages + max(room // size - _KEPT_PAGES, 0)}")


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open a new connection."""
    address = address_of(path, "rwc" if create else "rw")
    # Only one thread at a time uses it.
    database = sqlite3.connect(
        address, uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None, check_same_thread=False
    )
    # Do not wait for the disk: what a killed process wrote is in the system's cache and reaches the disk all the same.
    try:
        database.execute("PRAGMA synchronous = OFF")
    except sqlite3.Error:
        database.close()
        raise
    return database
