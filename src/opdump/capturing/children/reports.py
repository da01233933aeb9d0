"""What a child process did under capture, as its note says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from opdump.verdict import Verdict

End = Literal["ended", "lost", "running", "not captured"]
_FIGURES: Final = ("executed", "captured", "tensors", "files", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """One process. `end` says how it stands at the end of the first one: `lost` is gone without a word (killed), `not captured` where
    children are not.
    """

    process: int
    end: End
    rank_id: int | None = None
    """None where it ran no operator in a wanted step: it has no directory."""
    executed: int = 0
    captured: int = 0
    tensors: int = 0
    files: int = 0
    bytes: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    tensors_skipped: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    last_step: int | None = None
    """The last step that it filed, as far as is known; None where it filed none."""
    reason: str = ""
    failure: str = ""
    """What kept its part of the dump from being written to its end."""
    verdict: Verdict | None = None
    """What was found first in it; None where it did not end in good order."""

    @property
    def left_data(self) -> bool:
        return self.rank_id is not None

    @classmethod
    def of_note(cls, note: Mapping[str, Any], *, alive: bool) -> ChildReport:
        """The report of a note; `alive`: the process is there still."""
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
