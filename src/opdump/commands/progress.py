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
from collections.abc import Iterator
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
    done = threading.Event()

    def report() -> None:
        shown, shown_at = 0, time.monotonic()
        # A terminal that went away, or no memory: the lines end, and nothing else does.
        with suppress(Exception):
            while not done.wait(_POLL):
                operators = dump.operators
                if operators != shown and time.monotonic() - shown_at >= _BETWEEN_LINES:
                    shown, shown_at = operators, time.monotonic()
                    console.print(f"opdump: {progress_text(dump)}", style="dim")

    reporter = threading.Thread(target=report, name="opdump-progress", daemon=True)
    try:
        reporter.start()
    except (RuntimeError, MemoryError):  # no thread is to be had: the script runs without lines of progress
        yield
        return
    try:
        yield
    finally:
        done.set()
        reporter.join()


def progress_text(dump: SupportsProgress) -> str:
    """`step 3, 3,216 operators, 48.1 MB`."""
    return f"step {dump.current_step}, {amounts.count(dump.operators, 'operator')}, {amounts.size(dump.bytes_written)}"
