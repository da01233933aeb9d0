"""What a catalog needs of one rank of a dump, of whichever layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from opdump.errors import CorruptDumpError
from opdump.graph import Graph
from opdump.index.runs import Run
from opdump.records import OpRecord, SkipReason, TensorRecord

if TYPE_CHECKING:
    from opdump.layouts.ascend.places import DevicePlaces  # which reads what names this file


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
