"""What a layout is: it opens the writer of a rank, and it finds the dumps that such writers left.

A rank that was found gives its records to a catalog, of whichever layout it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from opdump.errors import CorruptDumpError, NotInDumpError
from opdump.graph import Graph
from opdump.index.columns import BatchColumns
from opdump.index.runs import Run, RunChoice
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord

if TYPE_CHECKING:
    from opdump.index.writer import RunFacts
    from opdump.plan import DumpPlan, LayoutFacts
    from opdump.sink import DirectorySink


@dataclass(frozen=True, slots=True)
class StepContent:
    """What a rank recorded in a step, in execution order; operators that left no data are among `ops`.

    `counted`: how many operators without data ran that an earlier step lists, by reason.
    """

    ops: tuple[OpRecord, ...] = ()
    tensors: tuple[TensorRecord, ...] = ()
    counted: Mapping[SkipReason, int] = field(default_factory=dict)


class Rank(Protocol):
    """The records of one rank. Steps are read when they are asked for; `problems` collects what could not be read so far.

    What a layout has no place for, its ranks inherit: no constants, no graphs.
    """

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

    def constants(self) -> tuple[TensorRecord, ...]:
        """Tensors that no operator made, which belong to no step."""
        return ()

    def graph(self, graph_id: int) -> Graph | None:
        """The graph of that number; None where there is none."""
        return None

    def history(self, graph_id: int) -> tuple[int, ...]:
        """The steps that a graph ran in."""
        return ()

    def execution_order(self, graph_id: int) -> tuple[str, ...]:
        """The full names of the operators of a graph, in the order in which they run."""
        return ()


def require_run(path: Path, run: RunChoice, ranks: Iterable[Rank]) -> None:
    """Raises NotInDumpError where none of the ranks at `path` has the run of that number."""
    held = sorted({known.id for rank in ranks for known in rank.runs})
    if isinstance(run, int) and run not in held:
        raise NotInDumpError(f"{path}: holds no run {run}; it holds {', '.join(map(str, held)) or 'none'}")


class RankWriter(Protocol):
    """What every layout's writer has. It files tensors, or operators, as `LayoutFacts.files` says (`recorder/writers.py` has the calls)."""

    @property
    def sink(self) -> DirectorySink:
        """What writes its files, and counts them for the report."""
        ...

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        """A step, or a part of one, has ended: its records, statistics included. `files` has what the writer said of each tensor."""

    def write_graph(self, graph: Graph) -> None:
        """A graph is known, or has grown. A layout without a place for graphs does nothing."""

    def close(self, totals: Mapping[str, int] | None) -> None:
        """The capture has ended; without `totals` it was given up, and the run is not whole. A second call does nothing."""


@runtime_checkable
class SupportsAbandon(Protocol):
    """A writer that can take back what it opened, where nothing was filed."""

    def abandon(self) -> None: ...


ReadRanks: TypeAlias = Callable[[RunChoice], tuple[Rank, ...]]
"""Reads the ranks of a dump that was found. Raises NotInDumpError where it has no run of that number."""


class Layout(Protocol):
    """How the files of a dump are named and arranged. `opdump.layouts` is the group of such objects."""

    @property
    def name(self) -> str:
        """The name by which a plan chooses it, and under which it is registered."""
        ...

    @property
    def facts(self) -> LayoutFacts:
        """What plans and adapters need to know of it."""
        ...

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> RankWriter:
        """The writer of one rank of one run below `plan.path`. Raises DumpPathError where nothing can be written there."""
        ...

    def detect(self, path: Path) -> ReadRanks | None:
        """What reads the dump at `path`, a directory or a file; None where there is no dump of this layout."""
        ...


@dataclass(frozen=True, slots=True)
class ModelDirectories:
    """Where a rank keeps what it has of each model, in the chosen run."""

    base: Path
    """The directory above all of it."""
    root: Path
    """The directory that was opened, `base` or one below."""
    homes: tuple[Path, ...]
    """The directories of the rank's runs, which have notes of graph files."""
    models: Mapping[str, tuple[str, ...]]
    """The directories of each model by the name of the model, relative to `base`."""


@runtime_checkable
class SupportsColumns(Protocol):
    """A rank that can give steps in columns."""

    def columns(self, step: int, *, inspected: bool = False) -> BatchColumns | None:
        """A step whose tensors have summaries; None of any other, which is read as records.

        `inspected`: None, too, where something is wrong with elements, as far as that is told without reading them.
        """
        ...


@runtime_checkable
class SupportsModels(Protocol):
    """A rank whose directories tell models apart."""

    def model_directories(self) -> ModelDirectories:
        """The directories of the chosen run; of the last one where "latest" was asked for."""
        ...
