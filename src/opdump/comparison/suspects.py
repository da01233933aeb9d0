"""What speaks against operators: one suspect, and those of a step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from opdump.comparison.nodes import Node
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
    "result",  # a result of the step differs, and nothing of the above was found: here the runs part
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
    amount: str = ""
    """Of data that differ: how many elements of how many."""

    @property
    def place(self) -> tuple[int, int]:
        """What it is about."""
        if self.kind == "missing" and self.a is not None:
            return (self.a.index, -1)
        if self.kind in ("extra", "operator") and self.b is not None:
            return (-1, self.b.index)
        return (-1 if self.a is None else self.a.index, -1 if self.b is None else self.b.index)

    @property
    def name(self) -> Hashable:
        """The same for the same suspect of another step."""
        return (
            self.kind,
            self.io,
            self.slot,
            *(each and (each.op.op_name, each.op.occurrence) for each in (self.a, self.b)),
        )


@dataclass(slots=True)
class Sweep:
    """The suspects of a step, in B's order, and what was seen on the way."""

    suspects: list[Suspect] = field(default_factory=list)
    latent: list[Suspect] = field(default_factory=list)
    """Differences of the programs that made no difference where they stand."""
    permuted: list[Suspect] = field(default_factory=list)
    """Inputs of the program that hold the same elements in another order: they speak against nothing where the results are the same."""
    without_effect: list[str] = field(default_factory=list)
    """Operators of B with other arguments than in A that give the same for the same."""
    idle: list[str] = field(default_factory=list)
    """Data that differ, and that nothing depends on."""
    not_run: set[str] = field(default_factory=set)
    """Kernels that were to be run again and could not be; those that draw random numbers are none of them."""
    reached: dict[tuple[str, tuple[int, int]], set[int]] = field(default_factory=dict)
    """The operators of B in which a suspect of this kind and place was noticed: those that both programs have."""

    def add(self, suspect: Suspect, reached: Node | None = None) -> None:
        """Notes a suspect once, and every operator that it was noticed in."""
        key = suspect.kind, suspect.place
        if key not in self.reached:
            self.reached[key] = set()
            self.suspects.append(suspect)
        if reached is not None:
            self.reached[key].add(reached.index)
