"""What a comparison found: for people, for programs (docs/json/compare.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Node
from opdump.records import IO, OpRecord

Verdict = Literal["identical", "benign", "divergent", "incomparable"]

_MODULE_SEPARATOR: Final = "/"


@dataclass(frozen=True, slots=True)
class Introduced:
    """A difference that an operator introduced. `score` counts units of rounding of the element type; None where that is exact."""

    kind: str
    io: IO
    slot: int
    score: float | None
    evidence: str
    a: OpRecord | None
    b: OpRecord | None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What `opdump.compare` gives. `introduced` is in the order of likelihood, `inherited` counts operators that hand a difference on."""

    verdict: Verdict
    a: str
    b: str
    matched: int = 0
    unmatched: int = 0
    introduced: Sequence[Introduced] = ()
    inherited: int = 0
    notes: Sequence[str] = ()
    steps: Sequence[int] = field(default=())

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
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=2)


def introduced(suspect: Suspect) -> Introduced:
    """A suspect as it is reported."""
    return Introduced(
        suspect.kind,
        suspect.io,
        suspect.slot,
        suspect.score if math.isfinite(suspect.score) else None,
        suspect.evidence,
        _record(suspect.a),
        _record(suspect.b),
    )


def _record(node: Node | None) -> OpRecord | None:
    return None if node is None else node.op


def _operator(op: OpRecord | None) -> dict[str, Any] | None:
    if op is None:
        return None
    stack = [[frame.file, frame.line] for frame in op.stack]
    return {
        "name": op.op_name,
        "op_type": op.op_type,
        "phase": op.phase,
        "step": op.step,
        "order": op.order,
        "occurrence": op.occurrence,
        "module": op.op_name.rpartition(_MODULE_SEPARATOR)[0],
        "source": stack[0] if stack else None,
        "stack": stack,
    }
