"""Checked: what the checks say of a dump, or of a program that ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from opdump.checks.finding import Finding
from opdump.checks.histories import History
from opdump.checks.watchpoints import WatchHit, Watchpoint


@dataclass(slots=True)
class Checked:
    """What was found, in the order of ranks, steps and execution. `unknown` counts tensors of which the dump tells nothing,
    `sampled` those of which it tells the first elements alone.
    """

    findings: list[Finding] = field(default_factory=list)
    tensors: int = 0
    unknown: int = 0
    sampled: int = 0
    problems: list[str] = field(default_factory=list)
    watchpoints: tuple[Watchpoint, ...] = ()
    hits: list[WatchHit] = field(default_factory=list)
    """What the watchpoints say, in the order of time."""
    looked: Counter[str] = field(default_factory=Counter)
    """How many tensors each watchpoint, by its text, was held against."""
    histories: list[History] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found. A tensor that a watchpoint could not look at is no finding."""
        return not self.findings and all(hit.error_code for hit in self.hits)
