"""Dumps whose process is killed while SQLite writes their index, each at another point.

    python -m tests.layouts.killed_in_the_index ROOT LAYOUT MOST

forks a child for each point. ROOT/whole is complete. In ROOT/rows-N the process is killed at SQLite's N-th callback
(before a statement, and every few instructions within one; a small cache makes pages spill in the middle of a
transaction). In ROOT/pages-N the system kills it (SIGXFSZ) when a file would grow beyond N bytes: within a page, and
within a commit. There are at most about MOST points of each kind.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_in_layout

LAYOUTS: Final[dict[str, dict[str, Any]]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
}
STEPS: Final = 3
_INSTRUCTIONS: Final = 100


def run(root: Path, layout: str) -> None:
    """Write steps of made-up records with different graphs, so that each step adds rows."""
    steps = [sample_step(number, graph_id=number) for number in range(STEPS)]
    file_in_layout(DumpPlan(path=root, **LAYOUTS[layout]), steps)


def _looking(last: int) -> Callable[[], int]:
    """Make SQLite count its callbacks, and kill the process at number `last`; returns a function for the count so far."""
    connect, numbers, count = sqlite3.connect, itertools.count(1), 0

    def look(*_: object) -> int:
        nonlocal count
        count = next(numbers)
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def connecting(*args: Any, **keywords: Any) -> sqlite3.Connection:
        database: sqlite3.Connection = connect(*args, **keywords)
        database.execute("PRAGMA cache_size = 2")
        database.set_progress_handler(look, _INSTRUCTIONS)
        database.set_trace_callback(look)
        return database

    sqlite3.connect = connecting  # type: ignore[assignment]
    return lambda: count


def _in_a_child(task: Callable[[int], None]) -> int:
    """The number that the child wrote before it ended or was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        task(writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL, -signal.SIGXFSZ), code
    return int(text or 0)


def _killed_at_row(root: Path, layout: str, last: int) -> int:
    def task(writing: int) -> None:
        count = _looking(last)
        run(root, layout)
        os.write(writing, str(count()).encode())

    return _in_a_child(task)


def _killed_at_size(root: Path, layout: str, size: int) -> None:
    def task(_: int) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        run(root, layout)

    _in_a_child(task)


def main() -> None:
    """Fork a child for each point."""
    root, layout, most = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    looks = _killed_at_row(root / "whole", layout, -1)
    for number in range(1, looks + 1, max(1, looks // most)):
        _killed_at_row(root / f"rows-{number}", layout, number)
    size = max(path.stat().st_size for path in (root / "whole").rglob("index.sqlite"))
    for end in range(0, size, max(512, size // most // 512 * 512)):
        _killed_at_size(root / f"pages-{end}", layout, end)


if __name__ == "__main__":
    main()
