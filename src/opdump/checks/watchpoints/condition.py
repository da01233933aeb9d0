"""Condition: what a watchpoint checks, and when it is met. A package adds one by an entry point (group `opdump.watchpoints`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opdump.checks.watchpoints.parameter import Parameter

Target = Literal["weight", "gradient", "activation", "tensor"]
Kind = Literal["formula", "overflow", "device overflow"]
"""`formula`: decided by its parameters; `overflow`: NaN or infinities; `device overflow`: an overflow of an operator that a
device, or a dump of overflows, reports.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, as defined by MindSpore Insight or a package."""

    id: str
    target: Target
    parameters: tuple[Parameter, ...] = ()
    kind: Kind = "formula"
    needs_history: bool = False
    """Whether it compares with the step before."""
    first_step_only: bool = False
    """Whether it applies only to step 0."""

    @property
    def thresholds(self) -> tuple[Parameter, ...]:
        """The parameters of which at least one must be given."""
        return tuple(each for each in self.parameters if each.is_threshold)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name."""
        return next((each for each in self.parameters if each.name == name), None)
