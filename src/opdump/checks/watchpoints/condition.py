"""Condition: what one watchpoint looks at, and when it is met. A package adds one by an entry point (group `opdump.watchpoints`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opdump.checks.watchpoints.parameter import Parameter

Target = Literal["weight", "gradient", "activation", "tensor"]
Kind = Literal["formula", "overflow", "device overflow"]
"""`formula`: its parameters say; `overflow`: NaN or infinities; `device overflow`: what a device, or a dump of overflows, says of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition, as MindSpore Insight names and defines it, or a package."""

    id: str
    target: Target
    parameters: tuple[Parameter, ...] = ()
    kind: Kind = "formula"
    needs_history: bool = False
    """Whether it compares with the step before."""
    first_step_only: bool = False
    """Whether it looks at step 0 alone."""

    @property
    def thresholds(self) -> tuple[Parameter, ...]:
        """The parameters of which one must be given."""
        return tuple(each for each in self.parameters if each.is_threshold)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name."""
        return next((each for each in self.parameters if each.name == name), None)
