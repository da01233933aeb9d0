"""What `opdump compare` prints: the verdict, its evidence, and the operators around the divergence."""

from __future__ import annotations

import textwrap
from typing import Final

from opdump import amounts
from opdump.adapters.replay import replayer_of
from opdump.comparison.result import WINDOW_HEADINGS, Result
from opdump.records import OpRecord
from opdump.reports.table import Column, Printer

_COLUMNS: Final = (
    Column(WINDOW_HEADINGS[0]),
    Column(WINDOW_HEADINGS[1], right=True),
    Column(WINDOW_HEADINGS[2], right=True),
    Column(WINDOW_HEADINGS[3]),
    Column(WINDOW_HEADINGS[4], gives_way=True, spare=1),
    Column(WINDOW_HEADINGS[5], gives_way=True),
    Column(WINDOW_HEADINGS[6], right=True),
)
_OF_THE_KERNEL: Final = frozenset({"kernel", "precision", "argument"})
"""Kinds of difference that a replay of the operator confirms: its own result is in question."""


def print_comparison(printer: Printer, result: Result, *, limit: int) -> None:
    """Print the report, with at most `limit` sources."""
    printer.text(f"A  {result.a}")
    printer.text(f"B  {result.b}")
    _say(printer, _matched(result))
    printer.text()
    _say(printer, result.headline, style="bold")
    if result.introduced:
        _print_sources(printer, result, limit)
    for name, reason in result.missing_metrics.items():
        _say(printer, f"note: the metric {name!r} is missing: {reason}")
    for note in result.notes:
        _say(printer, f"note: {note}")
    if result.introduced:
        first = result.introduced[0]
        dump = result.b if first.b is not None else result.a
        rank = f" --rank {first.op.rank_id}" if len(result.ranks) > 1 else ""
        printer.text()
        can_run = not result.by_statistics and replayer_of(first.op) is not None
        verb = "replay" if first.kind in _OF_THE_KERNEL and can_run else "show"
        printer.text(f"next: opdump {verb} {dump} --step {first.op.step}{rank} --op {first.op.op_name}")


def _say(printer: Printer, text: str, *, indent: str = "", style: str = "") -> None:
    """Print a paragraph, wrapped at the width of the terminal."""
    lines = [indent + text]
    if printer.width is not None:
        lines = textwrap.wrap(
            text,
            printer.width,
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    for line in lines:
        printer.text(line, style=style)


def _matched(result: Result) -> str:
    facts = [f"{amounts.count(result.matched, 'operator')} matched, {result.unmatched:,} without a counterpart"]
    if result.steps:
        facts.append(amounts.steps(tuple(result.steps)))
    if len(result.ranks) > 1:
        facts.append(f"ranks {', '.join(map(str, result.ranks))}")
    return "; ".join(facts)


def _print_sources(printer: Printer, result: Result, limit: int) -> None:
    first = result.introduced[0]
    _say(printer, first.evidence, indent="  ")
    for name, op in (("A", first.a), ("B", first.b)):
        if op is not None:
            _say(printer, f"{name}: {_place(op)}", indent="  ")
    if result.window:
        printer.text()
        printer.table(_COLUMNS, [each.cells() for each in result.window])
    others = result.introduced[1:limit]
    if others:
        printer.text()
        printer.text("then:")
    for each in others:
        _say(printer, each.headline, indent="  ")
        _say(printer, each.evidence, indent="    ")
    left = len(result.introduced) - 1 - len(others)
    if left > 0:
        printer.text(f"  and {left:,} more: --limit {len(result.introduced)} shows them")


def _place(op: OpRecord) -> str:
    code = f"  {op.stack[0].code}" if op.stack and op.stack[0].code else ""
    return f"{op.op_name}, step {op.step}, {op.phase}, {op.line or 'no line'}{code}"
