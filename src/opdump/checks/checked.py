"""Checked: the findings in a dump, or in a program that ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opdump.checks.finding import Finding
from opdump.checks.histories import History
from opdump.checks.watchpoints import WatchHit, Watchpoint


@dataclass(slots=True)
class Checked:
    """The findings, ordered by rank, step and execution. `unknown` counts the tensors without statistics and elements, `sampled`
    those of which only the first elements are recorded.
    """

    findings: list[Finding] = field(default_factory=list)
    tensors: int = 0
    unknown: int = 0
    sampled: int = 0
    problems: list[str] = field(default_factory=list)
    watchpoints: tuple[Watchpoint, ...] = ()
    hits: list[WatchHit] = field(default_factory=list)
    """The hits of the watchpoints, in the order of time."""
    looked: Counter[str] = field(default_factory=Counter)
    """The number of tensors that each watchpoint, by its text, checked."""
    histories: list[History] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found. A tensor that a watchpoint could not check is not a finding."""
        return not self.findings and all(hit.error_code for hit in self.hits)
