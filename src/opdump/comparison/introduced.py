"""A difference that an operator introduced, as it is reported: for people, for programs.

#239 gelu network-GPT/blocks-ModuleList/2-Block output.0: inputs agree, arguments differ, output is off by 1,709 roundings; gpt.py:17
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from opdump.call_stacks import shortened
from opdump.comparison.nodes import Node, scope_of
from opdump.comparison.suspects import Kind, Suspect
from opdump.comparison.trace import shown_scope
from opdump.records import IO, OpRecord

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
"""The words for each kind, and the tensor that the score belongs to."""


@dataclass(frozen=True, slots=True)
class Introduced:
    """A difference that an operator introduced. `score` counts units of rounding of the element type; None where that is exact."""

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
    """Of data that differ: `1 of 8 elements`. Empty where that is not known."""

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
        """The operator of B, or that of A if B has none."""
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
    """A suspect as it is reported."""
    return Introduced(
        suspect.kind,
        suspect.io,
        suspect.slot,
        suspect.score if math.isfinite(suspect.score) else None,
        suspect.evidence,
        _record(suspect.a),
        _record(suspect.b),
        of_ranks,
        suspect.amount,
    )


def _record(node: Node | None) -> OpRecord | None:
    return None if node is None else node.op


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
