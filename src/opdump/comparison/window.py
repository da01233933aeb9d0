"""The operators around a divergence, in both runs, as a diff shows lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.nodes import Node
from opdump.comparison.pairs import Measured, Outputs, measured, outputs_of
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace, shown_scope
from opdump.records import OpRecord

_BEFORE: Final = 3
_AFTER: Final = 3

WINDOW_HEADINGS: Final = ("", "A", "B", "operator", "module", "line", "roundings apart")

Row = tuple[Node | None, Node | None]
OutputsOf = Callable[[Node, Node], Iterable[Outputs]]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A line of the window: an operator of A, of B, or of both. `outputs` are measured where both have it."""

    a: OpRecord | None
    b: OpRecord | None
    outputs: Sequence[Measured]
    is_source: bool
    told: str = ""
    """Of an operator that stands alone, and whose work is not missing in the other run: what that does instead."""

    @property
    def worst(self) -> Measured | None:
        """The output that is furthest apart; None where there is none to compare."""
        return max(self.outputs, key=_distance, default=None)

    def cells(self) -> tuple[str, ...]:
        """The line as cells of a table: a mark as in a diff, the place in either run, operator and line, the difference."""
        op = self.b or self.a
        assert op is not None, "a line has an operator"
        side = "" if self.told else "-" if self.b is None else "+" if self.a is None else ""
        mark = ("!" if self.is_source else "") + side
        orders = ("" if self.a is None else f"#{self.a.order}", "" if self.b is None else f"#{self.b.order}")
        return (mark, *orders, op.op_type, shown_scope(op), op.line, self._difference())

    def _difference(self) -> str:
        worst = self.worst
        if self.a is None or self.b is None:
            return self.told or ("only in B" if self.a is None else "only in A")
        if worst is None:
            return ""
        if worst.reason:
            return worst.reason
        if worst.identical:
            return "same bits" if worst.by_statistics is None else "same statistics"
        if worst.by_statistics is not None:
            return f"{worst.by_statistics:.1g} of its RMS"
        if worst.roundings is None:
            return "differs"
        return f"{worst.roundings:,.2g}" if worst.roundings < 10 else f"{worst.roundings:,.0f}"

    def to_json(self) -> dict[str, Any]:
        worst = self.worst
        return {
            "a": _named(self.a),
            "b": _named(self.b),
            "source": self.is_source,
            "identical": None if not self.outputs else all(each.identical for each in self.outputs),
            "roundings": None if worst is None else _finite(worst.roundings),
            "by_statistics": None if worst is None else _finite(worst.by_statistics),
            "metrics": {} if worst is None else {name: _finite(value) for name, value in worst.added.items()},
        }


def window(
    a: Trace,
    b: Trace,
    alignment: Alignment,
    suspect: Suspect,
    outputs: OutputsOf = outputs_of,
    told: tuple[Mapping[int, str], Mapping[int, str]] = ({}, {}),
) -> list[Neighbour]:
    """The operators before and after a suspect, in the order of B; those of A alone stand where A ran them. `outputs` says which of two
    matched operators' outputs belong together. `told` says why nodes of A and of B have no single counterpart.
    """
    rows = list(_merged(a, b, alignment))
    places = [place for place, row in enumerate(rows) if _is_of(suspect, row)]
    shown = {each for place in places for each in range(place - _BEFORE, place + _AFTER + 1)}
    return [
        _neighbour(*row, outputs, is_source=place in places, told=told)
        for place, row in enumerate(rows)
        if place in shown
    ]


def _merged(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Row]:
    """Both traces as one sequence. Operators that ran in another order stand where B has them; where both have some alone, A's come first."""
    next_a = 0
    waiting: list[Row] = []
    for node in b.nodes:
        index = alignment.a_of.get(node.index)
        if index is None:
            waiting.append((None, node))
            continue
        if index >= next_a:
            yield from _alone(a.nodes[next_a:index], alignment)
            next_a = index + 1
        yield from waiting
        waiting = []
        yield a.nodes[index], node
    yield from _alone(a.nodes[next_a:], alignment)
    yield from waiting


def _alone(nodes: Sequence[Node], alignment: Alignment) -> Iterator[Row]:
    return ((node, None) for node in nodes if node.index not in alignment.b_of)


def _is_of(suspect: Suspect, row: Row) -> bool:
    """Whether a row is the suspect's: of one that has no counterpart the node itself, and not what reads it."""
    one, other = row
    if suspect.kind == "missing":
        return one is not None and one is suspect.a
    return (one is not None and one is suspect.a) or (other is not None and other is suspect.b)


def _neighbour(
    one: Node | None,
    other: Node | None,
    outputs: OutputsOf,
    *,
    is_source: bool,
    told: tuple[Mapping[int, str], Mapping[int, str]],
) -> Neighbour:
    found: list[Measured] = []
    if one is not None and other is not None:
        found, _ = measured(list(outputs(one, other)))
    texts = [each.get(node.index, "") for node, each in zip((one, other), told, strict=True) if node is not None]
    text = "" if len(texts) > 1 else texts[0]
    return Neighbour(None if one is None else one.op, None if other is None else other.op, found, is_source, text)


def _distance(found: Measured) -> tuple[bool, float, float]:
    roundings = found.roundings if found.roundings is not None else float(not found.identical)
    return not found.identical, roundings, found.by_statistics or 0.0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _named(op: OpRecord | None) -> dict[str, Any] | None:
    return None if op is None else {"name": op.op_name, "op_type": op.op_type, "order": op.order, "source": op.line}
