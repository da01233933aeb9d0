"""The expected answer, which a careful engineer would name as the cause: lines of a script, operator types, phases.

    scores: bmm|div                  a forward bmm or div on the line marked <scores>
    gate,swish: mul @backward        on either line, in backward
    a drop: mul|bernoulli_           an operator of the first program that the second one lacks
    layer[layers/1]: add             with layers/1 in its full name
    *[inputs0]: Parameter @*         on any line, in any phase

Semicolons separate several answers; each of them is exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.diagnosis.programs import Program, marks

_PLACE: Final = re.compile(r"(a )?([\w\-,*]+)(?:\[([^\]]+)\])?: *([\w|*]+)(?: +@([\w|*]+))?$")
_PHASES: Final = frozenset({"forward", "recomputation", "backward", "optimizer", "*"})

Operator = Mapping[str, Any]
"""An operator in the answer of a comparison: name, op_type, phase, source."""


@dataclass(frozen=True, slots=True)
class Place:
    side: str
    """The program of the operator: "a" or "b"."""
    file: str
    marks: tuple[str, ...]
    lines: tuple[int, ...]
    """Empty: any."""
    name: str
    """Part of the full name; empty: any."""
    types: frozenset[str]
    phases: frozenset[str]

    def has(self, operator: Operator) -> bool:
        """Whether the operator is one of the expected ones."""
        if "*" not in self.types and operator["op_type"] not in self.types:
            return False
        if "*" not in self.phases and operator["phase"] not in self.phases:
            return False
        if self.name and self.name not in operator["name"]:
            return False
        source = operator.get("source") or ("", 0)
        return not self.lines or (str(source[0]).rpartition("/")[2] == self.file and source[1] in self.lines)


def parse(text: str, a: Program, b: Program) -> tuple[Place, ...]:
    """The places that a truth names. Raises ValueError if it cannot be parsed or names a mark that does not exist."""
    return tuple(_place(part.strip(), a, b) for part in text.split(";"))


def _place(text: str, a: Program, b: Program) -> Place:
    match = _PLACE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a truth; expected MARK: TYPE|TYPE @PHASE")
    side, named, name, types, phases = match.groups()
    program = a if side else b
    known = marks(program)
    wanted = () if named == "*" else tuple(named.split(","))
    missing = [mark for mark in wanted if mark not in known]
    if missing:
        raise ValueError(f"{text!r}: {program.file} has no line <{missing[0]}>")
    found = frozenset((phases or "forward").split("|"))
    if not found <= _PHASES:
        raise ValueError(f"{text!r}: unknown phase in {sorted(found)}")
    return Place(
        side="a" if side else "b",
        file=program.file,
        marks=wanted,
        lines=tuple(known[mark] for mark in wanted),
        name=name or "",
        types=frozenset(types.split("|")),
        phases=found,
    )
