"""The connection with which a process writes into the index of a rank."""

from __future__ import annotations

import atexit
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from opdump.index.opening import TURNS, Idle, address_of, key_of

# A reader of a running capture locks the index for one query; a writer waits for that and much longer.
_PATIENCE_SECONDS = 60.0
_MOST_PAGES: Final = 2**30
"""The default of SQLite."""
_KEPT_PAGES: Final = 2
"""Pages reserved for the last rows of a run: which limit was reached, and the end of the run."""

_IDLE: Final = Idle()
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
