"""What a comparison found: for people, for programs (docs/json/compare.json)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from opdump import amounts
from opdump.comparison.introduced import Introduced
from opdump.comparison.match_file import StepMatches, write_matches
from opdump.comparison.pairs import PairRow
from opdump.comparison.window import WINDOW_HEADINGS, Neighbour
from opdump.html_table import html_facts, html_line, html_table

Verdict = Literal["identical", "benign", "divergent", "incomparable"]

_SHOWN: Final = 20
"""Sources that a notebook shows."""
_NO_SOURCE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "identical": "IDENTICAL: the same operators gave the same bits",
        "benign": "BENIGN: nothing differs beyond rounding",
        "incomparable": "INCOMPARABLE: nothing of A was found in B",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `opdump.compare` gives. `introduced` is in the order of likelihood, `inherited` counts operators that hand a difference on.

    `pairs` has each output of the operators that both runs have, in the order of execution, up to the step with the first source; `window`
    the operators around that. `missing_metrics` are those of installed packages that some pair lacks, with the reason.
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
    """How many of the pairs were compared by statistics, since a dump has no elements of them."""
    window: Sequence[Neighbour] = field(default=(), repr=False)
    matches: Sequence[StepMatches] = field(default=(), repr=False)
    """Which operator of A is which of B, step by step, with what it was matched by."""
    missing_metrics: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    """Why the runs cannot be compared, where that was known before."""

    @property
    def sources(self) -> int:
        """How many differences stand by themselves: not the gradient of an operator that was named before it."""
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
            return "INCOMPARABLE: hardly anything of A was found in B"
        if self.verdict == "identical" and self.by_statistics:
            others = (
                ""
                if self.by_statistics == len(self.pairs)
                else " where the dumps have no elements, and else the same bits"
            )
            return f"IDENTICAL: the same operators gave the same statistics{others}"
        return _NO_SOURCE[self.verdict]

    def rows(self) -> list[dict[str, Any]]:
        """The pairs as rows of a table, all with the same columns: `pandas.DataFrame(result.rows())`."""
        rows = [pair.row() for pair in self.pairs]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return [{name: row.get(name) for name in columns} for row in rows]

    def save_matches(self, path: str | os.PathLike[str]) -> None:
        """Write a match.yaml, which can be edited and given to `compare(match=...)`. Raises DumpPathError where it cannot be written."""
        write_matches(Path(path), self.a, self.b, self.matches)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, after the schema in docs/json/compare.json."""
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
