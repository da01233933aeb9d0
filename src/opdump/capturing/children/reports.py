"""The report of a child process under capture, read from its note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from opdump.verdict import Verdict

End = Literal["ended", "lost", "running", "not captured"]
_FIGURES: Final = ("executed", "captured", "tensors", "files", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """One process. `end` is its state when the first process ended: `lost` means that it ended without a report (killed), `not captured` that it was
    not recorded.
    """

    process: int
    end: End
    rank_id: int | None = None
    """None if it ran no operator in a selected step and therefore has no directory."""
    executed: int = 0
    captured: int = 0
    tensors: int = 0
    files: int = 0
    bytes: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    tensors_skipped: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    last_step: int | None = None
    """The last step that it wrote, as far as is known; None if it wrote none."""
    reason: str = ""
    failure: str = ""
    """Why its part of the dump is incomplete; empty if it is complete."""
    verdict: Verdict | None = None
    """The first finding in it; None if it did not end regularly."""

    @property
    def left_data(self) -> bool:
        return self.rank_id is not None

    @classmethod
    def of_note(cls, note: Mapping[str, Any], *, alive: bool) -> ChildReport:
        """Return the report of a note. `alive`: the process still exists."""
        end: End = note["end"] if note.get("end") else ("running" if alive else "lost")
        return cls(
            process=int(note["process"]),
            end=end,
            rank_id=note.get("rank_id"),
            skipped=note.get("skipped", {}),
            tensors_skipped=note.get("tensors_skipped", {}),
            warnings=tuple(note.get("warnings", ())),
            last_step=note.get("last_step"),
            reason=note.get("reason", ""),
            failure=note.get("failure", ""),
            verdict=Verdict.of_json(note["verdict"]) if note.get("verdict") else None,
            **{name: int(note.get(name, 0)) for name in _FIGURES},
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "process": self.process,
            "end": self.end,
            "rank": self.rank_id,
            "last_step": self.last_step,
            **{name: getattr(self, name) for name in _FIGURES},
            "skipped": dict(self.skipped),
            "tensors_skipped": dict(self.tensors_skipped),
            "verdict": None if self.verdict is None else self.verdict.as_json(),
        }
