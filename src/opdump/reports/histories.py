"""Prints where NaN and infinities were born, how far they went, and what made them finite again.

inf  born    step 0  mm at t5.py:93 (wo-Linear/mm-op183): 33 inf of 128 elements
     passed on by 1 operator, in forward
     KILLED  step 0  clamp at t5.py:507 (0-T5Block/clamp-op192): 33 inf
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from opdump import amounts
from opdump.checks.histories import History, Place
from opdump.graph import shown_source, was_written_unseen
from opdump.reports.table import Printer, printable

_MOST_NAMED: Final = 3
"""Maximum number of kills, and of parameters, named per history."""


def print_histories(
    printer: Printer, histories: Sequence[History], *, limit: int, shows_all: str = "--limit 0"
) -> None:
    """Print a few lines per history, at most `limit` histories (all for 0)."""
    shown = histories[:limit] if limit else histories
    for history in shown:
        for number, line in enumerate(_lines(history)):
            printer.text(("     " if number else f"{history.kind:<5}") + line, style="bold" if "KILLED" in line else "")
    if len(histories) > len(shown):
        printer.text(f"... and {amounts.count(len(histories) - len(shown), 'birth')} more ({shows_all} shows all)")
    if shown:
        printer.text()


def _lines(history: History) -> Iterator[str]:
    if history.born is not None:
        yield f"born    {_told(history.born)}"
    else:
        given = printable(shown_source(history.given)) or "by what left no data"
        where = ", memory that no recorded operator wrote" if was_written_unseen(history.given) else ""
        yield f"given   step {history.first_step}  {given}{where}"
    if history.passed_on:
        last = f", up to step {history.last_step}" if history.last_step > history.first_step else ""
        yield f"passed on by {amounts.count(history.passed_on, 'operator')}, in {', '.join(history.phases)}{last}"
    killed: dict[str, list[Place]] = {}
    for place in history.killed:
        killed.setdefault(place.op_name, []).append(place)
    for places in list(killed.values())[:_MOST_NAMED]:
        yield f"KILLED  {_told(*places)}"
    if len(killed) > _MOST_NAMED:
        yield f"... and by {amounts.count(len(killed) - _MOST_NAMED, 'operator')} more"
    if history.parameters:
        names = list(history.parameters)
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        named = ", ".join(map(printable, names[:_MOST_NAMED]))
        yield f"kept    step {min(history.parameters.values())}  in {named}{more}: later steps read it"


def _told(place: Place, *later: Place) -> str:
    at = f" at {printable(os.path.basename(place.source))}" if place.source else ""
    name = "/".join(place.op_name.split("/")[-2:])
    steps = amounts.steps([place.step, *(each.step for each in later)])
    return f"{steps}  {printable(place.op_type)}{at} ({printable(name)}): {place.text}"
