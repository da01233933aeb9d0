"""The verdict of a run: what was found first, or that nothing was. It is read where a process begins, so it needs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

VerdictKind = Literal["none", "nan", "infinity", "overflow", "failure", "not looked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found first. `kind` is "none" where nothing was, and "not looked" where nothing was looked at.

    `mode` says what was looked for: "data": NaN and infinities, "overflow", "exception": failures; "watch": nothing.
    `file` and `line` are those of the program, empty and 0 where they are not known. `how` says in words what the operator gave, of kind "none" which
    operator wrote infinities into a mask.
    `tensors` counts what was looked at, `not_looked` tensors of floating-point numbers without counts (complex ones).
    """

    kind: VerdictKind
    mode: str = "data"
    step: int = 0
    op_name: str = ""
    op_type: str = ""
    phase: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    how: str = ""
    tensors: int = 0
    not_looked: int = 0

    def as_json(self) -> dict[str, Any]:
        """Every field, by its name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Verdict:
        """What `as_json` gave."""
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})
