"""Progress of a capture during the run, for a user at a terminal.

    opdump: step 3, 3,216 operators, 48.1 MB

Prints whole lines, at most one per second, and none if the error output is not a terminal. A live display would collide with a
script that redraws the terminal itself (progress bars, prompts).
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
    """A capture whose progress can be read from another thread at any time."""

    @property
    def current_step(self) -> int: ...
    @property
    def operators(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...


@contextmanager
def progress_lines(dump: SupportsProgress, *, enabled: bool = True) -> Iterator[None]:
    """Print the progress of `dump` while the block runs, if the error output is a terminal."""
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
    """Run `report` in a thread beside the block. Its argument is a function that waits N seconds and returns whether the block
    has ended.

    If the error output disappears, memory is exhausted or no thread can be started, only the reports end.
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
