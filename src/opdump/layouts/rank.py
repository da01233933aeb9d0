"""What a catalog needs of one rank of a dump, of whichever layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from opdump.errors import CorruptDumpError
from opdump.graph import Graph
from opdump.records import OpRecord, SkipReason, TensorRecord

if TYPE_CHECKING:
    from opdump.layouts.ascend.places import DevicePlaces  # which reads what names this file

RunChoice = int | Literal["latest", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One capture into a rank's directory. Times are microseconds since the Unix epoch.

    `ended` is None for a run that was killed or is still going on. A dump that MindSpore or a device wrote says nothing of its
    runs: they are told apart by their time stamps, and `command`, `plan` and `totals` are empty.
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
    end_untold: str = ""
    """Why the dump cannot tell whether it ended: its index is missing, or cannot be read."""

    @property
    def complete(self) -> bool:
        """Whether it ended in good order: every file that it lists is on disk."""
        return self.ended is not None


@dataclass(frozen=True, slots=True)
class StepContent:
    """What a rank recorded in a step, in execution order; operators that left no data are among `ops`.

    `counted`: how many operators without data ran that an earlier step lists, by reason.
    """

    ops: tuple[OpRecord, ...] = ()
    tensors: tuple[TensorRecord, ...] = ()
    counted: Mapping[SkipReason, int] = field(default_factory=dict)


class Rank(Protocol):
    """The records of one rank. Steps are read when they are asked for; `problems` collects what could not be read so far."""

    @property
    def rank_id(self) -> int: ...
    @property
    def runs(self) -> tuple[Run, ...]: ...
    @property
    def steps(self) -> tuple[int, ...]: ...
    @property
    def graph_ids(self) -> tuple[int, ...]: ...
    @property
    def problems(self) -> Sequence[CorruptDumpError]: ...
    def step(self, step: int) -> StepContent: ...
    def constants(self) -> tuple[TensorRecord, ...]: ...
    def graph(self, graph_id: int) -> Graph | None: ...
    def history(self, graph_id: int) -> tuple[int, ...]: ...
    def execution_order(self, graph_id: int) -> tuple[str, ...]: ...


@runtime_checkable
class SupportsPlaces(Protocol):
    """A rank whose directories tell models apart: a device's."""

    def chosen_places(self) -> DevicePlaces:
        """The directories of the chosen run; of the last one where "latest" was asked for."""
        ...
