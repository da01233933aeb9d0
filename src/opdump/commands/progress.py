"""Progress of a capture while it runs, for a person at a terminal.

    opdump: step 3, 3,216 operators, 48.1 MB

Whole lines, at most one a second, and none where the error output is not a terminal. There is no live display that
redraws itself: the script may own the terminal (progress bars, prompts), and two writers with cursors of their own
would garble each other.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from opdump import amounts

_POLL = 0.25
_BETWEEN_LINES = 1.0


class SupportsProgress(Protocol):
    """A capture that can be asked where it stands, from another thread, at any time."""

    @property
    def current_step(self) -> int: ...
    @property
    def operators(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...


@contextmanager
def progress_lines(dump: SupportsProgress, *, enabled: bool = True) -> Iterator[None]:
    """Print where `dump` stands while the block runs, if the error output is a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)

    def report(has_ended: Callable[[float], bool]) -> None:
        shown, shown_at = 0, time.monotonic()
        while not has_ended(_POLL):
            operators = dump.operators
            if operators != shown and time.monotonic() - shown_at >= _BETWEEN_LINES:
                shown, shown_at = operators, time.monotonic()
                console.print(f"opdump: {progress_text(dump)}", style="dim")

    with reporting(report):
        yield


@contextmanager
def reporting(report: Callable[[Callable[[float], bool]], None]) -> Iterator[None]:
    """Run `report` in a thread beside the block. It is given what waits for so many seconds, and says whether the block has ended.

    If the error output goes away, memory ends or no thread can be started, the reports end, and nothing else does.
    """
    done = threading.Event()

    def run() -> None:
        with suppress(Exception):
            report(done.wait)

    thread = threading.Thread(target=run, name="opdump-progress", daemon=True)
    try:
        thread.start()
    except (RuntimeError, MemoryError):
        yield
        return
    try:
        yield
    finally:
        done.set()
        thread.join()


def progress_text(dump: SupportsProgress) -> str:
    """`step 3, 3,216 operators, 48.1 MB`."""
    return f"step {dump.current_step}, {amounts.count(dump.operators, 'operator')}, {amounts.size(dump.bytes_written)}"
