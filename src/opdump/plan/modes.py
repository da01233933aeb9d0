"""The modes of a capture, which record the selected operators, those that overflow, the one that fails, or watched memory.

A plan names its mode (`captures`), and `plan.mode` is the object that says what follows from it.

>>> MODES["overflow"].nothing_found
'no operator overflowed'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from opdump.records import SkipReason
from opdump.verdict import VerdictKind

_TO: Final = "_To_"


class WatchedLook(NamedTuple):
    """A look of watch mode at the outputs of `node`, after `after` ran."""

    after: str
    node: str

    def __str__(self) -> str:
        return f"{self.after}{_TO}{self.node}"

    @classmethod
    def readings(cls, op_name: str) -> list[WatchedLook]:
        """The possible readings of a name, the longest `node` first; empty if it has another form."""
        parts = op_name.split(_TO)
        return [cls(_TO.join(parts[:place]), _TO.join(parts[place:])) for place in range(1, len(parts))]


Captures = Literal["data", "overflow", "exception", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What a mode records, and what it needs for that."""

    name: Captures
    files_selected: bool = False
    """Records the operators that the configuration selects; other modes record operators because of an event."""
    files_values: bool = False
    """Names and records values that no operator made: constants, parameters, inputs."""
    lists_skipped: bool = False
    """Lists operators that leave no data, each once; modes that record few operators only count them."""
    reads_operators: bool = False
    """Reads the tensors of every selected operator that runs, and their values."""
    detects_overflow: bool = False
    """Records operators that overflow. This is decided by inputs and outputs together, as whole tensors, whatever is recorded of
    them.
    """
    failures_only: bool = False
    """Records operators that fail, and no others."""
    watches: bool = False
    """Records the outputs of watched operators after other operators."""
    dropped: SkipReason = ""
    """Why a selected operator that ran leaves no data."""
    verdict: VerdictKind | None = None
    """The kind of finding if an operator was recorded; None if it is not a finding."""
    nothing_found: str = ""
    """The explanation if operators ran but none was recorded; empty if the mode does not explain it."""


DATA: Final = Mode(name="data", files_selected=True, files_values=True, lists_skipped=True, reads_operators=True)
OVERFLOW: Final = Mode(
    name="overflow",
    reads_operators=True,
    detects_overflow=True,
    dropped="no overflow",
    verdict="overflow",
    nothing_found="no operator overflowed",
)
EXCEPTION: Final = Mode(
    name="exception",
    failures_only=True,
    dropped="no exception",
    verdict="failure",
    nothing_found="no operator failed",
)
WATCH: Final = Mode(name="watch", watches=True, dropped="not watched", nothing_found="no watched operator ran")
MODES: Final[Mapping[str, Mode]] = MappingProxyType({mode.name: mode for mode in (DATA, OVERFLOW, EXCEPTION, WATCH)})
