"""The verdict of a run: the first finding, or that there was none. It is imported when a process starts, so it has no dependencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

VerdictKind = Literal["none", "nan", "infinity", "overflow", "failure", "not looked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The first finding. `kind` is "none" if there was none, and "not looked" if nothing was examined.

    `mode` is what the run looked for: "data" (NaN and infinities), "overflow", "exception" (failures), or "watch" (nothing).
    `file` and `line` are a position in the program, empty and 0 if unknown. `how` describes what the operator produced; for kind "none", it names the
    operator that wrote infinities into a mask. `tensors` is the number of examined tensors, `not_looked` the number of floating-point
    tensors without counts (complex ones).
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
        """Return every field, by its name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Verdict:
        """Return the verdict from the result of `as_json`; missing fields have their defaults."""
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})
