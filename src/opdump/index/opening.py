"""Opens an index for reading. The file may be malicious.

SQLite files contain programs: views, triggers, generated columns, checks and expressions of indexes are executed by the process that opens the
file, and pages with circular references yield more rows than the file has bytes. Therefore nothing is executed but our own queries on the tables of
the schema below, whose definitions must be identical in the file, and a query ends when it takes more steps than a file of this size can need.
"""

from __future__ import annotations

import atexit
import os
import re
import sqlite3
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from opdump.errors import CorruptDumpError

# The schema of the index of a rank, `.dump_metadata/index.sqlite`.
#
# It has true names, element types before widening, execution order, stacks, arguments, what was skipped and why, and every statistic in full precision.
# It is a plain SQLite file that other tools may query (`SELECT * FROM tensor_records`, from SQLite 3.38 on).
#
# A regular training runs the same operators on the same tensors in every step, so a step is one row of `batches`: the number of its pattern, and what
# differs from step to step. The way in which an operator ran is a row of `operators`, the description of a tensor a row of `signatures`, and the
# sequence of both in a step a row of `patterns`. Rows are only ever added to these three tables.
#
# The index has a rollback journal, not a write-ahead log: such a file can be read from a read-only directory and over a network file system. Each step
# is one transaction, so a killed process leaves the last finished step. The connection is kept for the next step, but closed before a fork.
#
# This file is the only definition of the content of an index. Readers reject a file with any other table, view or column (`opening.py`), so each
# change of `TABLES` or `VIEWS`, except of spaces, needs a new `SCHEMA_VERSION`. What a released version had instead goes to `SCHEMAS`, so that its dumps
# stay readable.

INDEX_NAME: Final = "index.sqlite"
SCHEMA_VERSION: Final = 8
APPLICATION_ID: Final = 0x6F706475  # "opdu"

SUMMARY: Final = struct.Struct("<11d")
"""A summary in a blob: the fields of `kernels.SUMMARY_FIELDS` in order."""

OPERATOR_FIELDS: Final = (
    *("op_type", "op_name", "net_name", "graph_id", "rank_id", "device_id", "task_id", "stream_id"),
    *("phase", "kernel", "forward_op", "order", "occurrence", "skip"),
)
"""The fields of an operator's record in the columns of `operators`, in order. They are followed by its stack and its arguments."""

TABLES: Final = (
    """CREATE TABLE runs(
        id INTEGER PRIMARY KEY, started INTEGER NOT NULL, ended INTEGER, rank_id INTEGER NOT NULL,
        device_target TEXT NOT NULL, framework TEXT NOT NULL, framework_version TEXT NOT NULL,
        opdump_version TEXT NOT NULL, process INTEGER NOT NULL, command TEXT NOT NULL, plan TEXT NOT NULL)""",
    # What one call wrote: a step, or a part of it. `timestamps`: JSON array, one for each operator of the pattern.
    # `summaries`: eleven doubles for each tensor of the pattern, NULL if no tensor has any. `counted`: JSON object, the number of operators without
    # data that an earlier batch lists, by reason. `arguments`: JSON array of pairs, the index of an operator in the pattern and a row of `arguments`,
    # for each operator whose arguments differ from its row of `operators`. What only some tensors have is a JSON object by their indices in the
    # pattern, from 0, and NULL if none has any: `files`, relative to the rank's directory; `statistics`, objects with what is not in a summary
    # (digests, or all statistics of a tensor without a summary).
    """CREATE TABLE batches(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, pattern INTEGER NOT NULL,
        timestamps TEXT NOT NULL, summaries BLOB, counted TEXT NOT NULL, arguments TEXT NOT NULL,
        files TEXT, statistics TEXT)""",
    # JSON arrays. `operators`: a row of `operators` for each execution, in execution order. `tensors`: for each tensor, a
    # pair of the index of its execution in `operators`, from 0, and its row of `signatures`.
    "CREATE TABLE patterns(id INTEGER PRIMARY KEY, operators TEXT NOT NULL, tensors TEXT NOT NULL)",
    # Constants belong to no step: `step` is the one in which the constant was written.
    """CREATE TABLE constants(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, data_id INTEGER NOT NULL,
        operator INTEGER NOT NULL, timestamp INTEGER NOT NULL, signature INTEGER NOT NULL, summary BLOB, statistics TEXT,
        file TEXT NOT NULL)""",
    # One row for each distinct way in which an operator ran, which is the same in every step of a regular training. `stack`, `arguments`: rows of
    # `stacks` and `arguments`, 0 for none.
    """CREATE TABLE operators(
        id INTEGER PRIMARY KEY, op_type TEXT NOT NULL, op_name TEXT NOT NULL, net_name TEXT NOT NULL,
        graph_id INTEGER NOT NULL, rank_id INTEGER NOT NULL, device_id INTEGER NOT NULL, task_id INTEGER NOT NULL,
        stream_id INTEGER NOT NULL, phase TEXT NOT NULL, kernel TEXT NOT NULL, forward_op TEXT NOT NULL,
        position INTEGER NOT NULL, occurrence INTEGER NOT NULL, skip TEXT NOT NULL, stack INTEGER NOT NULL,
        arguments INTEGER NOT NULL)""",
    # `line`: a row of `lines`, the innermost one. `callers`: the row of the stack that called it, a smaller number, or 0.
    "CREATE TABLE stacks(id INTEGER PRIMARY KEY, callers INTEGER NOT NULL, line INTEGER NOT NULL)",
    """CREATE TABLE lines(
        id INTEGER PRIMARY KEY, file TEXT NOT NULL, line INTEGER NOT NULL, function TEXT NOT NULL, code TEXT NOT NULL)""",
    "CREATE TABLE arguments(id INTEGER PRIMARY KEY, json TEXT NOT NULL)",
    # `sample`: the number of elements, the first ones, in the file of the tensor; 0 if the file has all of them. `memory`: JSON array of
    # storage, offset, strides (an array) and version; empty if unknown.
    """CREATE TABLE signatures(
        id INTEGER PRIMARY KEY, io TEXT NOT NULL, slot INTEGER NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL,
        format TEXT NOT NULL, data_size INTEGER NOT NULL, argument TEXT NOT NULL, source TEXT NOT NULL,
        skip TEXT NOT NULL, sample INTEGER NOT NULL, memory TEXT NOT NULL)""",
    "CREATE TABLE totals(run INTEGER NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY(run, name))",
    # What a run left out from some step on because a limit was reached: the fields of `Degradation`.
    """CREATE TABLE degradations(
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, time INTEGER NOT NULL, bound TEXT NOT NULL,
        now TEXT NOT NULL, why TEXT NOT NULL)""",
)
VIEWS: Final = (
    # CROSS JOIN makes SQLite use this order, in which every later row is found by its number.
    """CREATE VIEW tensor_records AS
        SELECT batches.run, batches.step, operators.position, operators.op_type, operators.op_name,
               operators.occurrence,
               json_extract(batches.timestamps, '$[' || json_extract(tensors.value, '$[0]') || ']') AS timestamp,
               operators.graph_id, operators.phase, signatures.io, signatures.slot, signatures.dtype, signatures.shape,
               signatures.data_size, signatures.argument, signatures.source,
               json_extract(batches.files, '$."' || tensors.key || '"') AS file, signatures.sample,
               COALESCE(NULLIF(signatures.skip, ''), operators.skip) AS skip
        FROM batches CROSS JOIN patterns ON patterns.id = batches.pattern
        CROSS JOIN json_each(patterns.tensors) AS tensors
        CROSS JOIN operators
            ON operators.id = json_extract(patterns.operators, '$[' || json_extract(tensors.value, '$[0]') || ']')
        CROSS JOIN signatures ON signatures.id = json_extract(tensors.value, '$[1]')""",
)

SCHEMAS: Final = {SCHEMA_VERSION: (*TABLES, *VIEWS)}
"""The tables and views of each version that can be read."""


def may_lack_summaries(tensors: int, timestamps: str, extras: int) -> bool:
    """Return whether the summaries of a batch may be NULL: only if its row has two characters of `timestamps` for each tensor that is not in
    `extras`. This keeps a file from describing many more tensors than it has bytes.
    """
    return tensors - extras <= len(timestamps) // 2


_PATIENCE_SECONDS = 30.0
_MAGIC: Final = b"SQLite format 3\0"
_ROLLBACK_JOURNAL: Final = (1, 1)  # bytes 18 and 19 of the file; a write-ahead log has 2
_SUPER_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")  # ends a journal that refers to a super-journal
_CHECKED_WHOLE: Final = 256 << 20
"""Larger files are not verified completely before use. At 1.5 GB/s, verifying a file of this size takes an unnoticeable time."""
_INSTRUCTIONS_A_CALL: Final = 20_000
_INSTRUCTIONS_A_BYTE: Final = 50
_LEAST_INSTRUCTIONS: Final = 2_000_000
_SPACE: Final = re.compile(r"[ \t\n\f\r]+")  # what SQLite treats as spaces; any other space is part of a name
_PRAGMAS: Final = frozenset({"application_id", "user_version", "quick_check", "trusted_schema", "cell_size_check"})


_FileKey = tuple[Path, int, int]
"""A path and the identity of its file: device and inode."""


class ConnectionCache:
    """Keeps the last connection for the next use of the same file, because opening one takes longer than most reads, and than writing a step.

    It holds no lock of the file meanwhile, so it blocks neither a running capture nor a reader. There is one for all files and threads, because a
    dump may have thousands of ranks.
    """

    def __init__(self) -> None:
        # Normally one entry. Taking it out is atomic, also with respect to signal handlers.
        self._kept: list[tuple[_FileKey, sqlite3.Connection]] = []

    def take(self, key: _FileKey) -> sqlite3.Connection | None:
        """Take the connection to that file, which the caller owns from now on. Return None if there is none."""
        with suppress(IndexError):
            while True:
                found, database = self._kept.pop()
                if found == key:
                    return database
                database.close()
        return None

    def put(self, key: _FileKey, database: sqlite3.Connection) -> None:
        self.close()
        self._kept.append((key, database))

    def close(self, path: Path | None = None) -> None:
        """Close the connection, or only a connection to `path`."""
        others = []
        with suppress(IndexError):
            while True:
                kept = self._kept.pop()
                if path is None or kept[0][0] == path:
                    kept[1].close()
                else:
                    others.append(kept)
        self._kept += others


class _Turns:
    """Lets one thread at a time write in a transaction, or open an index by other means than SQLite.

    When a process closes a file, the system drops all locks of the process on that file, including those of a transaction in another thread.
    """

    def __init__(self) -> None:
        # Reentrant: a signal handler may read a dump in the middle of a transaction of its own thread.
        self._lock = threading.RLock()

    @contextmanager
    def take(self) -> Iterator[None]:
        with self._lock:
            yield

    def begin_anew(self) -> None:
        """Replace the lock in a forked process: it may be held by a thread that does not exist here."""
        self._lock = threading.RLock()


TURNS: Final = _Turns()
"""For all indexes of this process."""
os.register_at_fork(after_in_child=TURNS.begin_anew)
_IDLE: Final = ConnectionCache()
os.register_at_fork(before=_IDLE.close)  # a child must neither use nor close connections of SQLite
atexit.register(_IDLE.close)


class IndexFile:
    """The index at `path`. A connection is used only during one call, so that a running capture is not blocked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copy: Path | None = None
        weakref.finalize(self, _IDLE.close, path)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that can only read the tables of the schema.

        Raises CorruptDumpError for a file that is not an index or has a different journal than opdump's, and sqlite3.Error like SQLite.
        """
        key, database = self._connected()
        try:
            yield database
        except BaseException:
            database.close()
            raise
        _IDLE.put(key, database)

    def _connected(self) -> tuple[_FileKey, sqlite3.Connection]:
        if self._copy is None:
            check_files(self.path)
            _check_index_head(self.path)
            try:
                return _open(self.path, "ro")
            except sqlite3.OperationalError:
                # A killed capture leaves a journal that must be rolled back, which needs write access: do that in a copy.
                self._copy_with_journal()
        assert self._copy is not None
        return _open(self._copy / self.path.name, "rw")

    def size(self) -> int:
        """Return the current size of the file in bytes."""
        path = self.path if self._copy is None else self._copy / self.path.name
        return path.stat().st_size

    def _copy_with_journal(self) -> None:
        import shutil

        from opdump.sink.outside import remove_own, temporary_directory

        copy = temporary_directory("index")
        weakref.finalize(self, remove_own, copy)
        weakref.finalize(self, _IDLE.close, copy / self.path.name)
        for name in (self.path.name, self.path.name + "-journal"):
            source = self.path.with_name(name)
            if source.is_file():
                with TURNS.take():
                    shutil.copyfile(source, copy / name)
        check_files(copy / self.path.name)
        _check_index_head(copy / self.path.name)
        self._copy = copy


def check_index(file: IndexFile) -> None:
    """Raise CorruptDumpError unless the file is an index of a version in `SCHEMAS`, with exactly its tables."""
    path = file.path
    with file.connect() as database:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID or version not in SCHEMAS:
            if application != APPLICATION_ID:
                remedy = "it was written by another program"
            elif version > SCHEMA_VERSION:
                remedy = "update opdump"
            else:
                remedy = "read it with the opdump that wrote it, or capture again"
            raise CorruptDumpError(
                f"{path}: an index of version {version} (application {application:#x}); this opdump reads version "
                f"{SCHEMA_VERSION} of application {APPLICATION_ID:#x}: {remedy}"
            )
        check_schema(database, path, version)
        # Without SQLite's limit for the length of a value (Python 3.10), a page that refers to itself would be read until memory is full.
        if file.size() <= _CHECKED_WHOLE or not hasattr(database, "setlimit"):
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise CorruptDumpError(f"{path}: the pages of the index are damaged ({str(found)[:200]})")


def check_schema(database: sqlite3.Connection, path: Path, version: int = SCHEMA_VERSION) -> None:
    """Raise CorruptDumpError unless the file has exactly the tables of `version`, and no views but ours.

    The text of a table defines it completely: columns and their types, keys, checks, collations, generated columns.
    """
    expected = _schema(version)
    missing = {name for kind, name, _ in expected if kind == "table"}
    for row in database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        kind, name, _, text = row
        if (kind, name, _plain(text)) not in expected:
            raise CorruptDumpError(
                f"{path}: the index has {str(kind)[:20]} {str(name)[:80]!r} made by {str(text)[:200]!r}; this opdump "
                f"creates nothing like it, and does not read an index with foreign tables, views, triggers or columns"
            )
        missing.discard(name)
    if missing:
        raise CorruptDumpError(f"{path}: the index has no table {min(missing)!r}")


@cache
def _schema(version: int) -> frozenset[tuple[str, str, str]]:
    """Return type, name and text of every entry in SQLite's schema, including its own indexes for keys."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in SCHEMAS[version]:
            database.execute(statement)
        rows = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return frozenset((kind, name, _plain(text)) for kind, name, text in rows)


@cache
def _columns() -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in TABLES:
            database.execute(statement)
        rows = database.execute(
            "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c WHERE m.type = 'table'"
        ).fetchall()
    tables = {(table, "") for table, _ in rows}  # "" is SQLite's name for "no column", as in COUNT(*)
    schema = {("sqlite_master", column) for column in ("", "type", "name", "tbl_name", "sql")}
    return frozenset({*rows, *tables, *schema})


def _plain(text: object) -> str:
    """Normalise the spaces in the text of a definition. The index of a key has the text None, which becomes empty."""
    return _SPACE.sub(" ", text) if isinstance(text, str) else ""


def check_files(path: Path) -> None:
    """Raise CorruptDumpError for files that SQLite must not open: it would wait for a pipe, and apply a journal."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        raise CorruptDumpError(f"{path}: no longer exists") from None
    journal = path.with_name(path.name + "-journal")
    try:
        regular = {path: stat.S_ISREG(mode), journal: stat.S_ISREG(os.lstat(journal).st_mode)}
        for each, is_regular in regular.items():
            if not is_regular:
                raise CorruptDumpError(f"{each}: is not a regular file, as an index and its journal must be")
        _check_journal_end(journal)
    except FileNotFoundError:  # no journal, or no longer one: a running capture has written a step
        if not stat.S_ISREG(mode):
            raise CorruptDumpError(f"{path}: is not a regular file, as an index must be") from None
    except OSError as error:
        raise CorruptDumpError(f"{journal}: cannot be read ({error.strerror})") from error


def _check_index_head(path: Path) -> None:
    with TURNS.take(), path.open("rb") as stream:
        head = stream.read(20)
    if head and not head.startswith(_MAGIC):
        raise CorruptDumpError(f"{path}: is not an SQLite file, as an index must be; it begins with {head[:16]!r}")
    if head and tuple(head[18:20]) != _ROLLBACK_JOURNAL:
        raise CorruptDumpError(
            f"{path}: has a write-ahead log or another journal ({head[18:20].hex()}); opdump writes indexes with a rollback "
            "journal and reads no others. If the index was converted, `PRAGMA journal_mode = DELETE` in sqlite3 restores it"
        )


def _check_journal_end(journal: Path) -> None:
    with journal.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - len(_SUPER_JOURNAL), 0))
        if stream.read() == _SUPER_JOURNAL:
            raise CorruptDumpError(
                f"{journal}: names a journal above it, which SQLite would delete at the end; opdump writes no such journal. "
                "Remove the file to read the index as it was in the middle of its last step"
            )


def address_of(path: Path, mode: str) -> str:
    """Return the path of a file as a URI for SQLite. `mode` is "ro", "rw" or "rwc"."""
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{quoted}?mode={mode}"


def key_of(path: Path) -> _FileKey:
    """Return the key by which `ConnectionCache` keeps a connection."""
    found = path.stat()
    return path, found.st_dev, found.st_ino


def _open(path: Path, mode: str) -> tuple[_FileKey, sqlite3.Connection]:
    key = key_of(path)
    database = _IDLE.take(key)
    try:
        if database is None:
            database = sqlite3.connect(
                address_of(path, mode),
                uri=True,
                timeout=_PATIENCE_SECONDS,
                isolation_level=None,
                check_same_thread=False,  # only one thread at a time uses it
            )
            _restrict(database)
        _limit(database, path.stat().st_size)
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # the first access to the file
    except BaseException:
        if database is not None:
            database.close()
        raise
    return key, database


def _restrict(database: sqlite3.Connection) -> None:
    """Restrict the connection to reading our tables."""
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        for name, value in (
            ("DEFENSIVE", True),
            ("TRUSTED_SCHEMA", False),
            ("ENABLE_TRIGGER", False),
            ("ENABLE_VIEW", False),
        ):
            option = getattr(sqlite3, f"SQLITE_DBCONFIG_{name}", None)  # depends on the version of SQLite
            if option is not None:
                database.setconfig(option, value)
    if sys.version_info >= (3, 11):
        database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
        database.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, 64)
        database.setlimit(sqlite3.SQLITE_LIMIT_COMPOUND_SELECT, 4)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    database.set_authorizer(_authorise)


def _limit(database: sqlite3.Connection, size: int) -> None:
    """Let the connection abort queries that take more steps than a file of `size` bytes can need."""
    if sys.version_info >= (3, 11):
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, 100_000), 2**31 - 1))
    calls = iter(range(max(_LEAST_INSTRUCTIONS, size * _INSTRUCTIONS_A_BYTE) // _INSTRUCTIONS_A_CALL))
    database.set_progress_handler(lambda: int(next(calls, None) is None), _INSTRUCTIONS_A_CALL)


def _authorise(action: int, first: Any, second: Any, _schema: Any, _trigger: Any) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and (first, second) in _columns():
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second in ("length", "count"):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY
