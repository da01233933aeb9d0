"""Progress of long work: a bar at a terminal, and a line every ten seconds if the error output is not a terminal.

opdump: compare has run for 20 s: judging steps, 1 of 3; running Default/mm-op7 of step 1 again
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from opdump import doing
from opdump.commands.progress import reporting

_SHOWN_AFTER: Final = 0.5
_BETWEEN: Final = 0.1
_BETWEEN_LINES: Final = 10.0


@contextmanager
def progress_bar(unit: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function to call with (what is done, amount done, total). The bar is drawn only at a terminal."""
    began = shown = time.monotonic()
    is_drawn = sys.stderr.isatty()
    bar: Any = None

    def update(what: str, done: int, total: int) -> None:
        nonlocal bar, shown
        if not is_drawn:
            doing.note_progress(f"{what}, {done:,} of {total:,}", unit)
            return
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


@contextmanager
def signs_of_life(command: str) -> Iterator[None]:
    """While the block runs, print a line every ten seconds with the elapsed time and the current work, unless the error output is
    a terminal.
    """
    doing.forget()
    if sys.stderr is None or sys.stderr.isatty():
        yield
        return
    with reporting(lambda has_ended: tell_until(command, has_ended, time.monotonic, _say)):
        yield


def tell_until(
    command: str, has_ended: Callable[[float], bool], now: Callable[[], float], say: Callable[[str], object]
) -> None:
    """Print a line each time that `has_ended`, called with the seconds to wait, returns False; `now` is a clock."""
    began = now()
    while not has_ended(_BETWEEN_LINES):
        part = doing.noted()
        say(f"opdump: {command} has run for {now() - began:.0f} s" + (f": {part}" if part else ""))


def _say(line: str) -> None:
    click.echo(line, err=True)


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
