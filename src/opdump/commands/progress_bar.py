"""A bar for work of more than a moment, at a terminal alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_SHOWN_AFTER: Final = 0.5
_BETWEEN: Final = 0.1


@contextmanager
def progress_bar(unit: str = "") -> Iterator[Callable[[str, int, int], None] | None]:
    """Gives what is to be called with (what is done, how much of it, of how much); None where the error output is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    began = shown = time.monotonic()
    bar: Any = None

    def update(what: str, done: int, total: int) -> None:
        nonlocal bar, shown
        now = time.monotonic()
        if now - shown < _BETWEEN or now - began < _SHOWN_AFTER:
            return
        shown = now
        if bar is None:
            bar = _bar(unit)
        bar.update(bar.task_ids[0], description=what, completed=done, total=total)
        bar.refresh()

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()


def _bar(unit: str) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    bar.add_task("", total=None)
    bar.start()
    return bar
