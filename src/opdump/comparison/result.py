"""The result of a comparison: the verdict, the introduced differences, and the operators around the first one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from opdump import amounts
from opdump.amounts import html_facts, html_line, html_table
from opdump.call_stacks import shortened
from opdump.comparison.alignment import Alignment
from opdump.comparison.nodes import Kind, Node, Suspect, scope_of
from opdump.comparison.pairs import Measured, Outputs, PairRow, StepMatches, measured, outputs_of, write_matches
from opdump.comparison.trace import Trace, shown_scope
from opdump.records import IO, OpRecord

# The window shows the operators around a divergence in both runs, like a diff.

_BEFORE: Final = 3
_AFTER: Final = 3

WINDOW_HEADINGS: Final = ("", "A", "B", "operator", "module", "line", "roundings apart")

Row = tuple[Node | None, Node | None]
OutputsOf = Callable[[Node, Node], Iterable[Outputs]]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A line of the window: an operator of A, of B, or of both. `outputs` has measurements only if both runs have it."""

    a: OpRecord | None
    b: OpRecord | None
    outputs: Sequence[Measured]
    is_source: bool
    told: str = ""
    """Text for an operator without a counterpart that is not missing in the other run, such as `other operators in A`."""

    @property
    def worst(self) -> Measured | None:
        """The output with the largest distance; None if there is nothing to compare."""
        return max(self.outputs, key=_distance, default=None)

    def cells(self) -> tuple[str, ...]:
        """The cells of the line: a mark as in a diff, the order in each run, operator, module, source line, difference."""
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
    """The operators before and after a suspect, in the order of B; operators of only A stand where A ran them. `outputs` pairs the outputs of two
    matched operators. `told` has a text for each node of A and of B that has no single counterpart but is not missing in the other run.
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
    """Both traces as one sequence, in the order of B. At one position, operators of only A precede those of only B."""
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
    """Whether a row has the suspect. If it is missing in B, only its node in A counts: the node in B is a reader."""
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


# How an introduced difference is reported:
#
# #239 gelu network-GPT/blocks-ModuleList/2-Block output.0: inputs agree, arguments differ, output is off by 1,709 roundings; gpt.py:17

_WORDS: Final[Mapping[Kind, tuple[str, str]]] = MappingProxyType(
    {
        "data": ("data differ", "it"),
        "parameter": ("a parameter differs", "it"),
        "random": ("different random numbers", "output"),
        "argument": ("inputs agree, arguments differ", "output"),
        "operator": ("produces a different result", "output"),
        "missing": ("missing in B", "the tensor read instead"),
        "extra": ("only in B", "output"),
        "input": ("reads a different tensor", "it"),
        "memory": ("its memory was overwritten", "input"),
        "kernel": ("inputs agree, output differs", "output"),
        "precision": ("a narrower type", "its rounding"),
        "result": ("cause not found", "it"),
    }
)
"""For each kind, its words in a headline, and the subject of the score."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """A difference that an operator introduced. `score` is in units of rounding of the element type; None for exact types."""

    kind: Kind
    io: IO
    slot: int
    score: float | None
    evidence: str
    a: OpRecord | None
    b: OpRecord | None
    of_ranks: bool = False
    """Whether several ranks were compared, so that the rank is named even if it is 0."""
    amount: str = ""
    """For differing data, such as `1 of 8 elements`; empty if unknown."""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "io": self.io,
            "slot": self.slot,
            "score": self.score,
            "evidence": self.evidence,
            "a": _operator(self.a),
            "b": _operator(self.b),
        }

    @property
    def op(self) -> OpRecord:
        """The operator in B, or in A if B has none."""
        op = self.a if self.b is None else self.b
        assert op is not None, "a difference is introduced by an operator"
        return op

    @property
    def headline(self) -> str:
        """The difference in one line."""
        words, what = _WORDS[self.kind]
        return self._told(f": {words}{f': {self.amount}' if self.amount else ''}", what)

    @property
    def where(self) -> str:
        """The place of the difference in one line, without its kind."""
        return self._told("", _WORDS[self.kind][1])

    def _told(self, words: str, what: str) -> str:
        op = self.op
        score = f", {what} is off by {self.score:,.0f} roundings" if self.score is not None and self.score >= 1 else ""
        if self.kind == "precision" and score:
            score = f", which rounds {self.score:,.0f} times as coarsely"
        side = "" if self.b is not None else " of A"
        rank = f" on rank {op.rank_id}" if op.rank_id or self.of_ranks else ""
        line = f"; {op.line}" if op.line else ""
        name = " ".join(part for part in (f"#{op.order}", f"{op.op_type}{side}", shown_scope(op)) if part)
        return f"{name} {self.io}.{self.slot}{rank}{words}{score}{line}"


def introduced(suspect: Suspect, *, of_ranks: bool = False) -> Introduced:
    """Convert a suspect for the report."""
    return Introduced(
        suspect.kind,
        suspect.io,
        suspect.slot,
        suspect.score if math.isfinite(suspect.score) else None,
        suspect.evidence,
        None if suspect.a is None else suspect.a.op,
        None if suspect.b is None else suspect.b.op,
        of_ranks,
        suspect.amount,
    )


def _operator(op: OpRecord | None) -> dict[str, Any] | None:
    if op is None:
        return None
    told = shortened(op.stack)
    stack = [[frame.file, frame.line] for frame in told.frames]
    return {
        "name": op.op_name,
        "op_type": op.op_type,
        "phase": op.phase,
        "rank": op.rank_id,
        "step": op.step,
        "order": op.order,
        "occurrence": op.occurrence,
        "module": scope_of(op),
        "source": stack[0] if stack else None,
        "stack": stack,
        "stack_left_out": told.left_out,
    }


# The whole result; the schema of its JSON is docs/json/compare.json.

Verdict = Literal["identical", "benign", "divergent", "incomparable"]

_SHOWN: Final = 20
"""The number of introduced differences that a notebook shows."""
_NO_SOURCE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "identical": "IDENTICAL: the same operators produced the same bits",
        "benign": "BENIGN: nothing differs beyond rounding",
        "incomparable": "INCOMPARABLE: nothing of A was found in B",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of `opdump.compare`. `introduced` is sorted by likelihood; `inherited` counts operators that pass on a difference.

    `pairs` has each output of the operators that both runs have, in the order of execution, up to the step with the first introduced
    difference; `window` has the operators around it. `missing_metrics` maps metrics of installed packages that some pair lacks to the reason.
    """

    verdict: Verdict
    a: str
    b: str
    matched: int = 0
    unmatched: int = 0
    introduced: Sequence[Introduced] = ()
    inherited: int = 0
    notes: Sequence[str] = ()
    steps: Sequence[int] = field(default=())
    ranks: Sequence[int] = field(default=())
    pairs: Sequence[PairRow] = field(default=(), repr=False)
    differing: int = 0
    """How many of the pairs are not identical."""
    by_statistics: int = 0
    """How many of the pairs were compared by statistics, because a dump has no values of them."""
    window: Sequence[Neighbour] = field(default=(), repr=False)
    matches: Sequence[StepMatches] = field(default=(), repr=False)
    """The matched operators of A and B, step by step, with the kind of match."""
    missing_metrics: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    """The reason why the runs were not judged; empty if they were."""

    @property
    def sources(self) -> int:
        """The number of independent differences: a gradient does not count if its forward operator is listed before it."""
        named: set[str] = set()
        count = 0
        for each in self.introduced:
            operators = [op for op in (each.a, each.b) if op is not None]
            count += not any(op.forward_op and op.forward_op in named for op in operators)
            named.update(op.op_name for op in operators)
        return count

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if not self.introduced:
            return self._without_source
        if self.introduced[0].kind == "result":
            return f"DIVERGENT: results differ, cause not found: first difference at {self.introduced[0].where}"
        sources = amounts.count(self.sources, "independent source")
        return f"FIRST DIVERGENCE {self.introduced[0].headline}; {sources}, {self.inherited:,} inherited"

    @property
    def _without_source(self) -> str:
        if self.why:
            return f"INCOMPARABLE: {self.why}"
        if self.verdict == "incomparable" and self.matched:
            return "INCOMPARABLE: hardly any operator of A was found in B"
        if self.verdict == "identical" and self.by_statistics:
            others = (
                ""
                if self.by_statistics == len(self.pairs)
                else " for outputs without recorded values, and the same bits for all others"
            )
            return f"IDENTICAL: the same operators produced the same statistics{others}"
        return _NO_SOURCE[self.verdict]

    def rows(self) -> list[dict[str, Any]]:
        """The pairs as rows of a table, all with the same columns: `pandas.DataFrame(result.rows())`."""
        rows = [pair.row() for pair in self.pairs]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return [{name: row.get(name) for name in columns} for row in rows]

    def save_matches(self, path: str | os.PathLike[str]) -> None:
        """Write a match.yaml to edit and pass to `compare(match=...)`. Raises DumpPathError if it cannot be written."""
        write_matches(Path(path), self.a, self.b, self.matches)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, in the schema of docs/json/compare.json."""
        return {
            "verdict": self.verdict,
            "a": self.a,
            "b": self.b,
            "matched": self.matched,
            "unmatched": self.unmatched,
            "introduced": [each.to_json() for each in self.introduced],
            "inherited": self.inherited,
            "window": [each.to_json() for each in self.window],
            "missing_metrics": dict(self.missing_metrics),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=2)

    def _repr_html_(self) -> str:
        around = html_table(WINDOW_HEADINGS, [each.cells() for each in self.window])
        sources = html_table(
            ("", "kind", "operator", "evidence"),
            [(f"#{each.op.order}", each.kind, each.op.op_name, each.evidence) for each in self.introduced[:_SHOWN]],
        )
        differing = amounts.count(self.differing, "output")
        matched = f"{amounts.count(self.matched, 'operator')} matched, {self.unmatched:,} without a counterpart; {differing} not identical"
        return "".join(
            [
                html_facts([("A", self.a), ("B", self.b)], caption=self.headline),
                html_line(matched),
                around if self.window else "",
                sources if self.introduced else "",
                *(html_line(f"note: {note}") for note in self.notes),
            ]
        )
