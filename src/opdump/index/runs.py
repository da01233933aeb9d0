"""Runs: captures into the directory of a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from opdump import amounts
from opdump.degradation import Degradation, told
from opdump.html_table import html_facts

RunChoice = int | Literal["latest", "all"]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Run:
    """One capture into the directory of a rank. Times are in microseconds since the Unix epoch.

    `ended` is None for a run that was killed or is still going on. A dump of MindSpore or of a device has no information about its runs: they are
    separated by time stamps, and `command`, `plan` and `totals` are empty.
    """

    id: int
    rank_id: int
    started: int
    ended: int | None = None
    device_target: str = ""
    framework: str = ""
    framework_version: str = ""
    opdump_version: str = ""
    process: int = 0
    command: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    degraded: tuple[Degradation, ...] = ()
    """What it left out from some step on because a limit was reached, in chronological order."""
    end_unknown: str = ""
    """Why it is unknown whether it ended: its index is missing or cannot be read."""

    @property
    def complete(self) -> bool:
        """Whether the run ended regularly, so that every file that it lists is on disk."""
        return self.ended is not None

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """The run in a few lines, by name. The text of an unknown fact is empty."""
        captured = self.totals.get("captured")
        ended = "ended" if self.complete else self.end_unknown or "cut off, or still runs"
        return (
            ("run", str(self.id)),
            ("rank", str(self.rank_id)),
            ("framework", f"{self.framework} {self.framework_version}".strip()),
            ("captured", amounts.count(captured, "operator") if captured is not None else ""),
            ("started", datetime.fromtimestamp(self.started / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")),
            ("end", ended if self.opdump_version else ""),
            ("left out", told(self.degraded)),
            ("command", _command(self.command)),
        )

    def __repr__(self) -> str:
        facts = dict(self.facts)
        parts = (f"rank {self.rank_id}", facts["framework"], facts["captured"], facts["started"], facts["end"])
        return f"Run({', '.join((str(self.id), *filter(None, parts)))})"

    def _repr_html_(self) -> str:
        return html_facts(self.facts)


def _command(words: Sequence[str]) -> str:
    if words and words[0].endswith("ipykernel_launcher.py"):
        return "a notebook"  # the command line of its kernel does not identify it
    return " ".join(words)
