"""The modes of a capture: what is selected is filed, or what overflows, what fails, or what becomes of watched memory.

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
    """A look of watch mode at the outputs of `node`, when `after` had run.

    >>> str(WatchedLook("conv1", "relu_To_fc"))
    'conv1_To_relu_To_fc'
    >>> [look.node for look in WatchedLook.readings("conv1_To_relu_To_fc")]
    ['relu_To_fc', 'fc']
    """

    after: str
    node: str

    def __str__(self) -> str:
        return f"{self.after}{_TO}{self.node}"

    @classmethod
    def readings(cls, op_name: str) -> list[WatchedLook]:
        """What a name may mean, the longest `node` first; empty where it is no such name."""
        parts = op_name.split(_TO)
        return [cls(_TO.join(parts[:place]), _TO.join(parts[place:])) for place in range(1, len(parts))]


Captures = Literal["data", "overflow", "exception", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What a mode files, and what it takes for that."""

    name: Captures
    files_selected: bool = False
    """Files the operators that the configuration selects; the other modes file operators for what happens to them."""
    files_values: bool = False
    """Names and files values that no operator made: constants, parameters, inputs."""
    lists_skipped: bool = False
    """Lists operators that leave no data, each once; modes that file few operators count them alone."""
    reads_operators: bool = False
    """Looks at the tensors of every wanted operator that runs, and at their numbers."""
    detects_overflow: bool = False
    """Files operators that overflow. Inputs and outputs tell it together, and whole tensors, whatever is filed of them."""
    failures_only: bool = False
    """Files operators that fail, and nothing of those that run well."""
    watches: bool = False
    """Files what the outputs of watched operators hold after other operators."""
    dropped: SkipReason = ""
    """Why a wanted operator that ran leaves no data."""
    verdict: VerdictKind | None = None
    """What it is a finding of that an operator was filed; None where that says nothing."""
    nothing_found: str = ""
    """What is said where operators ran and none was filed; empty where the mode is no reason for that."""


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
