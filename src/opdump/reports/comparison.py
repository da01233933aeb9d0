"""What `opdump compare` prints: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opdump import amounts
from opdump.comparison.result import Introduced, Result
from opdump.records import OpRecord

_VERDICTS: Final = {
    "identical": "IDENTICAL: the same operators gave the same bits",
    "benign": "BENIGN: nothing differs beyond rounding",
    "incomparable": "INCOMPARABLE: nothing of A was found in B",
}
_KINDS: Final = {
    "data": "input data differs",
    "parameter": "a parameter differs",
    "random": "other random numbers",
    "argument": "other arguments",
    "operator": "computes something else",
    "missing": "missing in B",
    "extra": "only in B",
    "input": "reads something else",
    "memory": "memory was changed behind it",
    "kernel": "other results for the same inputs",
    "precision": "a narrower type",
}
_OF_THE_KERNEL: Final = frozenset({"kernel", "precision", "argument"})
"""Kinds where the operator's own result is the question: running it again shows it."""


def comparison_lines(result: Result, *, limit: int) -> list[str]:
    """The report as lines of text. At most `limit` sources are listed."""
    lines = [
        f"A  {result.a}",
        f"B  {result.b}",
        f"{amounts.count(result.matched, 'operator')} matched, {result.unmatched:,} without a counterpart"
        + (f"; {amounts.steps(tuple(result.steps))}" if result.steps else ""),
        "",
    ]
    if result.verdict != "divergent":
        return [*lines, _VERDICTS[result.verdict], *(f"note: {note}" for note in result.notes)]
    first = result.introduced[0]
    lines += [f"FIRST DIVERGENCE {_headline(first)}", f"  {first.evidence}", *_places(first)]
    others = result.introduced[1:limit]
    sources = "source" if len(result.introduced) == 1 else "sources"
    lines += ["", f"{len(result.introduced):,} {sources}, {result.inherited:,} operators inherited a difference"]
    for each in others:
        lines.append(f"  {_headline(each)}")
        lines.append(f"    {each.evidence}")
    left = len(result.introduced) - 1 - len(others)
    if left > 0:
        lines.append(f"  and {left:,} more: --limit {len(result.introduced)} shows them")
    lines += [f"note: {note}" for note in result.notes]
    op = first.b or first.a
    if op is not None:
        dump = result.b if first.b is not None else result.a
        verb = "replay" if first.kind in _OF_THE_KERNEL else "show"
        lines += ["", f"next: opdump {verb} {dump} --step {op.step} --op {op.op_name}"]
    return lines


def _headline(each: Introduced) -> str:
    op = each.b or each.a
    assert op is not None, "a difference is introduced by an operator"
    score = f", {each.score:,.0f} times its rounding" if each.score is not None and each.score >= 1 else ""
    side = "" if each.b is not None else " of A"
    line = f" {op.line}" if op.line else ""
    return f"#{op.order} {op.op_type}{side}{line} {each.io}.{each.slot}: {_KINDS[each.kind]}{score}"


def _places(each: Introduced) -> Sequence[str]:
    return [f"  {name}: {_place(op)}" for name, op in (("A", each.a), ("B", each.b)) if op is not None]


def _place(op: OpRecord) -> str:
    code = f"  {op.stack[0].code}" if op.stack and op.stack[0].code else ""
    return f"{op.op_name}, step {op.step}, {op.phase}, {op.line or 'no line'}{code}"
