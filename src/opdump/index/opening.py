"""Opens an index for reading, as a file that may have been made to harm.

SQLite files carry programs: views, triggers, generated columns, checks and expressions of indexes are computed by whoever
opens the file, and pages that refer to each other twice make more rows than the file has bytes. So nothing is computed but
our own queries on the tables of `index_schema`, whose text must be the file's, and a query ends when it takes more than a
file of this size can need.
"""

from __future__ import annotations

import atexit
import os
import re
import sqlite3
import stat
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from opdump.errors import CorruptDumpError
from opdump.index.schema import APPLICATION_ID, EXTRAS, FRAMES, SCHEMA_VERSION, SCHEMAS, TABLES

_PATIENCE_SECONDS = 30.0
_MAGIC: Final = b"SQLite format 3\0"
_ROLLBACK_JOURNAL: Final = (1, 1)  # bytes 18 and 19 of the file; a write-ahead log has 2
_SUPER_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")  # ends a journal that names a journal above it
_CHECKED_WHOLE: Final = 256 << 20
"""Larger files are not read from end to end before they are used: at 1.5 GB/s, that is what a person does not notice."""
_INSTRUCTIONS_A_CALL: Final = 20_000
_INSTRUCTIONS_A_BYTE: Final = 50
_LEAST_INSTRUCTIONS: Final = 2_000_000
_SPACE: Final = re.compile(r"[ \t\n\f\r]+")  # SQLite's: any other space is part of a name
_PRAGMAS: Final = frozenset({"application_id", "user_version", "quick_check", "trusted_schema", "cell_size_check"})


_FileKey = tuple[Path, int, int]
"""A path and the file that it led to: device and inode."""


class Idle:
    """The connection that was used last, for whoever uses the same file next: opening one takes longer than most reads, and than writing a step.

    It holds no lock of the file meanwhile, so that neither a capture which is still going on is held up nor a reader. One for all files and
    threads, for a dump may have thousands of ranks.
    """

    def __init__(self) -> None:
        # One at most, but where two threads put one at once. Nothing comes between what takes it out and who has it, no signal's handler either.
        self._kept: list[tuple[_FileKey, sqlite3.Connection]] = []

    def take(self, key: _FileKey) -> sqlite3.Connection | None:
        """The connection to that file, which is the caller's from now on; None where there is none."""
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
        """Closes the connection, or that to `path` alone."""
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
    """One thread at a time: in a transaction that writes, or with an index open by other means than SQLite.

    Where a process closes a file, the system drops all locks that it has on it, those of a transaction of another thread among them.
    """

    def __init__(self) -> None:
        self._lock = (
            threading.RLock()
        )  # a signal's handler may read a dump in the middle of a transaction of its own thread

    @contextmanager
    def take(self) -> Iterator[None]:
        with self._lock:
            yield

    def begin_anew(self) -> None:
        """In a child, which has no other thread: one may have held the lock."""
        self._lock = threading.RLock()


TURNS: Final = _Turns()
"""Of all indexes of this process."""
os.register_at_fork(after_in_child=TURNS.begin_anew)
_IDLE: Final = Idle()
os.register_at_fork(before=_IDLE.close)  # SQLite's connections must not be used, nor closed, in a child
atexit.register(_IDLE.close)


class IndexFile:
    """The index at `path`. A connection is in use as long as one call: a capture that is still going on is not held up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copy: Path | None = None
        weakref.finalize(self, _IDLE.close, path)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection that can read the tables of `index_schema` and do nothing else.

        Raises CorruptDumpError for what is no index or has another journal than opdump's, sqlite3.Error as SQLite does.
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
                # A killed capture leaves a journal that must be rolled back, which needs write access: do it in a copy.
                self._copy_with_journal()
        assert self._copy is not None
        return _open(self._copy / self.path.name, "rw")

    def size(self) -> int:
        """Bytes of the file now."""
        path = self.path if self._copy is None else self._copy / self.path.name
        return path.stat().st_size

    def _copy_with_journal(self) -> None:
        import shutil

        from opdump.sink.temporary_directories import remove_own, temporary_directory

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
    """Raises CorruptDumpError unless the file is an index of a version of `SCHEMAS`, with exactly its tables."""
    path = file.path
    with file.connect() as database:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID or version not in SCHEMAS:
            if application != APPLICATION_ID:
                remedy = "another program made it"
            elif version > SCHEMA_VERSION:
                remedy = "update opdump"
            else:
                remedy = "read it with the opdump that wrote it, or capture again"
            raise CorruptDumpError(
                f"{path}: an index of version {version} (application {application:#x}); this opdump reads versions "
                f"{min(SCHEMAS)} to {SCHEMA_VERSION} of application {APPLICATION_ID:#x}: {remedy}"
            )
        check_schema(database, path, version)
        # Without SQLite's limit of a value's length (Python 3.10) a page that follows itself would be read until memory ends.
        if file.size() <= _CHECKED_WHOLE or not hasattr(database, "setlimit"):
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise CorruptDumpError(f"{path}: the pages of the index are damaged ({str(found)[:200]})")


def check_schema(database: sqlite3.Connection, path: Path, version: int = SCHEMA_VERSION) -> None:
    """Raises CorruptDumpError unless the file holds our tables, each as `version` has it, and nothing but our views.

    The text of a table is all there is to it: columns and their types, keys, checks, collations, generated columns.
    """
    expected = _schema(version)
    missing = {name for kind, name, _ in expected if kind == "table"}
    for row in database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        kind, name, _, text = row
        if (kind, name, _plain(text)) not in expected:
            raise CorruptDumpError(
                f"{path}: the index has {str(kind)[:20]} {str(name)[:80]!r} made by {str(text)[:200]!r}; this opdump "
                f"makes nothing like it, and reads no index with tables, views, triggers or columns of others"
            )
        missing.discard(name)
    if missing:
        raise CorruptDumpError(f"{path}: the index has no table {min(missing)!r}")


@cache
def _schema(version: int) -> frozenset[tuple[str, str, str]]:
    """Type, name and text of all that SQLite keeps of the schema, its own indexes for keys included."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in SCHEMAS[version]:
            database.execute(statement)
        rows = database.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    return frozenset((kind, name, _plain(text)) for kind, name, text in rows)


@cache
def _columns() -> frozenset[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in (*TABLES, EXTRAS, FRAMES):
            database.execute(statement)
        rows = database.execute(
            "SELECT m.name, c.name FROM sqlite_master AS m JOIN pragma_table_xinfo(m.name) AS c WHERE m.type = 'table'"
        ).fetchall()
    tables = {(table, "") for table, _ in rows}  # SQLite's name for "no column of it", as in COUNT(*)
    schema = {("sqlite_master", column) for column in ("", "type", "name", "tbl_name", "sql")}
    return frozenset({*rows, *tables, *schema})


def _plain(text: object) -> str:
    """The text of a definition, so that its line breaks do not matter. None, of a key's own index, is empty."""
    return _SPACE.sub(" ", text) if isinstance(text, str) else ""


def check_files(path: Path) -> None:
    """Raises CorruptDumpError for what SQLite must not touch: it would wait for a pipe, and apply a journal."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        raise CorruptDumpError(f"{path}: is no longer there") from None
    journal = path.with_name(path.name + "-journal")
    try:
        regular = {path: stat.S_ISREG(mode), journal: stat.S_ISREG(os.lstat(journal).st_mode)}
        for each, is_regular in regular.items():
            if not is_regular:
                raise CorruptDumpError(f"{each}: is not a regular file; an index and its journal are")
        _check_journal_end(journal)
    except FileNotFoundError:  # no journal, or no longer: a capture that is still going on has filed a step
        if not stat.S_ISREG(mode):
            raise CorruptDumpError(f"{path}: is not a regular file; an index is") from None
    except OSError as error:
        raise CorruptDumpError(f"{journal}: cannot be read ({error.strerror})") from error


def _check_index_head(path: Path) -> None:
    with TURNS.take(), path.open("rb") as stream:
        head = stream.read(20)
    if head and not head.startswith(_MAGIC):
        raise CorruptDumpError(f"{path}: is no SQLite file, as an index is; it begins with {head[:16]!r}")
    if head and tuple(head[18:20]) != _ROLLBACK_JOURNAL:
        raise CorruptDumpError(
            f"{path}: keeps a write-ahead log or another journal ({head[18:20].hex()}); opdump writes indexes with a rollback "
            "journal and reads no other. If it was converted, `PRAGMA journal_mode = DELETE` in sqlite3 turns it back"
        )


def _check_journal_end(journal: Path) -> None:
    with journal.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(stream.tell() - len(_SUPER_JOURNAL), 0))
        if stream.read() == _SUPER_JOURNAL:
            raise CorruptDumpError(
                f"{journal}: names a journal above it, which SQLite deletes when it is done; opdump writes no such journal. "
                "Remove the file to read the index as it was in the middle of its last step"
            )


def address_of(path: Path, mode: str) -> str:
    """A file's address as SQLite takes it; `mode` is "ro", "rw" or "rwc"."""
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{quoted}?mode={mode}"


def key_of(path: Path) -> _FileKey:
    """What `Idle` keeps a connection by."""
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
                check_same_thread=False,  # one thread at a time has it
            )
            _restrict(database)
        _limit(database, path.stat().st_size)
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # touches the file for the first time
    except BaseException:
        if database is not None:
            database.close()
        raise
    return key, database


def _restrict(database: sqlite3.Connection) -> None:
    """The connection reads our tables, and nothing else."""
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA cell_size_check = ON")
    if sys.version_info >= (3, 12):
        for name, value in (
            ("DEFENSIVE", True),
            ("TRUSTED_SCHEMA", False),
            ("ENABLE_TRIGGER", False),
            ("ENABLE_VIEW", False),
        ):
            option = getattr(sqlite3, f"SQLITE_DBCONFIG_{name}", None)  # by the version of SQLite
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
    """The connection gives up, from now on, where reading takes more than a file of `size` bytes can need."""
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
