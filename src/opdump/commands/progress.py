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
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from opdump.reports import amounts

_POLL = 0.25
_BETWEEN_LINES = 1.0
_SIGN_OF_LIFE = 10.0


class Progress(NamedTuple):
    """Where a capture stands; `step` is None before the first wanted step."""

    step: int | None
    operators: int
    bytes: int


class SupportsProgress(Protocol):
    """A capture that can be asked where it stands, from another thread, at any time."""

    @property
    def progress(self) -> Progress: ...


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
        shown, shown_at = Progress(None, 0, 0), time.monotonic()
        while not done.wait(_POLL):
            now = dump.progress
            waited = time.monotonic() - shown_at
            new_step = now.step != shown.step and waited >= _BETWEEN_LINES
            still_there = now.operators != shown.operators and waited >= _SIGN_OF_LIFE
            if now.step is not None and (new_step or still_there):
                shown, shown_at = now, time.monotonic()
                console.print(f"opdump: {progress_text(now)}", style="dim")

    reporter = threading.Thread(target=report, name="opdump-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()


def progress_text(progress: Progress) -> str:
    """`step 3, 3,216 operators, 48.1 MB`."""
    return f"step {progress.step}, {amounts.count(progress.operators, 'operator')}, {amounts.size(progress.bytes)}"
