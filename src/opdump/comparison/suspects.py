"""What speaks against an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opdump.comparison.trace import Node
from opdump.records import IO

Kind = Literal[
    "data",  # an input of the program differs
    "parameter",  # a parameter or a state differs that no operator of the dump wrote
    "random",  # the same draw gave other numbers
    "argument",  # the same operator was given other arguments that are no tensors
    "operator",  # another operator, or other operators, compute it
    "missing",  # an operator of A has no counterpart in B
    "extra",  # an operator of B has no counterpart in A
    "input",  # it reads something else: another tensor, another part, an earlier value
    "memory",  # what it reads is not what was written there
    "kernel",  # the same operator gives other results for the same inputs, further off than rounding
    "precision",  # a cast to a narrower type that the rest of the run does not have
]


@dataclass(frozen=True, slots=True)
class Suspect:
    """One thing that speaks against an operator. `score` is the difference in units of rounding; infinite where the type is exact."""

    kind: Kind
    a: Node | None
    b: Node | None
    io: IO
    slot: int
    score: float
    evidence: str

    @property
    def place(self) -> tuple[int, int]:
        """What it is about."""
        if self.kind == "missing" and self.a is not None:
            return (self.a.index, -1)
        if self.kind in ("extra", "operator") and self.b is not None:
            return (-1, self.b.index)
        return (-1 if self.a is None else self.a.index, -1 if self.b is None else self.b.index)
