"""Progress of a capture during the run, and of long work, on the error output.

    opdump: step 3, 3,216 operators, 48.1 MB

Prints whole lines, at most one per second, and none if the error output is not a terminal. A live display would collide with a
script that redraws the terminal itself (progress bars, prompts).
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

import click

from opdump import amounts, doing
from opdump.interpreter.late_imports import imported_for_good

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


# Progress of long work: a bar at a terminal, and a line every ten seconds if the error output is not a terminal.

_SHOWN_AFTER: Final = 0.5
_BETWEEN: Final = 0.1
_BETWEEN_SIGNS: Final = 10.0


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
    while not has_ended(_BETWEEN_SIGNS):
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


# `--format NAME` and `--json` of the commands that print reports.


def format_options(*, json_help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options; the command receives the chosen format as `report_format`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--format",
            "format_name",
            metavar="NAME",
            help="text, json, or a format of an installed package.  [default: text]",
        )
        @click.option("--json", "as_json", is_flag=True, help=json_help)
        @functools.wraps(command)
        def with_format(*, format_name: str | None, as_json: bool, **given: Any) -> None:
            command(report_format=_format(format_name, as_json=as_json), **given)

        return with_format

    return decorate


def _format(name: str | None, *, as_json: bool) -> Any:
    from opdump.reports.formats import FORMATS

    if as_json and name not in (None, "json"):
        raise click.UsageError(f"--json means --format json, but --format {name} was given, too; remove one of them")
    name = "json" if as_json else name or "text"
    if name not in FORMATS:
        from opdump.plan.unmatched_names import with_nearest

        known = FORMATS.names()
        text = f"{name!r} is not a format; expected one of {', '.join(map(repr, known))}"
        raise click.BadParameter(with_nearest(text, name, known), param_hint="--format")
    with imported_for_good("opdump.catalog.catalog"):
        return FORMATS.load(name)
