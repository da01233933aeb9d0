"""What a layout is: it opens the writer of a rank, and finds the dumps of such writers.

A rank that was found provides its records to a catalog, in the same form for every layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast, runtime_checkable

from opdump.errors import CorruptDumpError, NotInDumpError
from opdump.extensions import Registry
from opdump.graph import Graph
from opdump.index.runs import Run, RunChoice
from opdump.plan import layouts
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.step_table import StepTable

if TYPE_CHECKING:
    from opdump.checks.overflow import OverflowStatus
    from opdump.degradation import Degradation
    from opdump.index.writer import RunFacts
    from opdump.plan import DumpPlan, LayoutFacts
    from opdump.sink import DirectorySink


StepContent: Final = StepTable.of
"""The older name for making the table of a step from its operators and tensors, in layouts of installed packages."""


class Rank(Protocol):
    """The records of one rank. Steps are read on demand; `problems` collects the read errors so far.

    Ranks inherit empty results for what their layout does not store: constants, graphs.
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
    def step(self, step: int) -> StepTable[TensorRecord]:
        """The operators and tensors of a step, in execution order; operators that left no data are among them."""
        ...

    def constants(self) -> tuple[TensorRecord, ...]:
        """Tensors that no operator made, which belong to no step."""
        return ()

    def graph(self, graph_id: int) -> Graph | None:
        """The graph of that number; None if there is none."""
        return None

    def history(self, graph_id: int) -> tuple[int, ...]:
        """The steps in which a graph ran."""
        return ()

    def execution_order(self, graph_id: int) -> tuple[str, ...]:
        """The full names of the operators of a graph, in execution order."""
        return ()


def require_run(path: Path, run: RunChoice, ranks: Iterable[Rank]) -> None:
    """Raises NotInDumpError if none of the ranks at `path` has the run of that number."""
    held = sorted({known.id for rank in ranks for known in rank.runs})
    if isinstance(run, int) and run not in held:
        raise NotInDumpError(f"{path}: holds no run {run}; it holds {', '.join(map(str, held)) or 'none'}")


class RankWriter:
    """Writes the records of one rank of one run. A layout overrides the methods for what it stores; the others do nothing.

    A layout with a file per tensor (`LayoutFacts.files` is "tensors") overrides `write_payload`, one with a file per operator
    `write_operator`.
    """

    sink: DirectorySink
    """Writes the files of the writer, and counts them for the report."""

    def write_payload(self, record: TensorRecord) -> str:
        """Queue the elements of a tensor. Return their location, which is passed to `write_step` later, together with the statistics."""
        # An empty default would lose elements silently.
        raise NotImplementedError(f"{type(self).__name__} overrides neither write_payload nor write_operator")

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        """Queue the elements of an operator. Return the location of each tensor, or None for a tensor without data."""
        return [None if record.payload is None else self.write_payload(record) for record in tensors]

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        """Write the inputs of an operator that raised, and its error message."""
        return self.write_operator(op, tensors)

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        """Write the overflow status of an operator whose tensors were written before."""

    def write_constant(self, data_id: int, record: TensorRecord) -> str | None:
        """Queue the elements of a tensor that no operator produced. Return their location, or None if the layout has no place for them."""
        return None

    def write_kernel_args(self, op: OpRecord) -> None:
        """Write the non-tensor arguments of an operator into a file of their own (`save_kernel_args`)."""

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        """Write a step that has ended, or a part of one: its records, including statistics. `files` contains the result of the
        writer for each tensor.
        """

    def write_graph(self, graph: Graph) -> None:
        """Write a graph that is new or has grown."""

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write the files by which MindSpore describes a graph, at their paths below the directory of the rank. `graph` is their content."""
        self.write_graph(graph)

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        """Record that these graphs executed something in a selected step, even if none of it is recorded."""

    def write_degradation(self, degradation: Degradation) -> None:
        """Record in the index what was left out of a run because a limit was reached."""

    @property
    def index_bytes(self) -> int:
        """Bytes that the run has added to the index and that the sink does not count yet."""
        return 0

    @property
    def metadata(self) -> Path | None:
        """The directory for metadata of the dump, or None if there is none, or not yet."""
        return None

    def adopt(self, file: Path) -> None:
        """Count a file in the dump that was written by something else."""

    def flush(self) -> None:
        """Wait until everything is on disk."""

    def abandon(self) -> None:
        """Remove what was created, because nothing was recorded."""

    def close(self, totals: Mapping[str, int] | None) -> None:
        """End the capture. Without `totals` it was abandoned, and the run is incomplete. A second call does nothing."""


ReadRanks: TypeAlias = Callable[[RunChoice], tuple[Rank, ...]]
"""Reads the ranks of a dump that was found. Raises NotInDumpError if it has no run of that number."""


class Layout(Protocol):
    """The names and the structure of the files of a dump. The group `opdump.layouts` contains such objects."""

    @property
    def name(self) -> str:
        """The name under which it is registered, and by which a plan selects it."""
        ...

    @property
    def facts(self) -> LayoutFacts:
        """The properties that plans and adapters need."""
        ...

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> RankWriter:
        """The writer of one rank of one run below `plan.path`. Raises DumpPathError if nothing can be written there."""
        ...

    def detect(self, path: Path) -> ReadRanks | None:
        """A function that reads the dump at `path`, a directory or a file; None if there is no dump of this layout."""
        ...


@dataclass(frozen=True, slots=True)
class ModelDirectories:
    """The directories of each model of a rank, in the selected run."""

    base: Path
    """The directory above all of them."""
    root: Path
    """The directory that was opened, `base` or one below it."""
    homes: tuple[Path, ...]
    """The directories of the rank's runs, which have notes about graph files."""
    models: Mapping[str, tuple[str, ...]]
    """The directories of each model by the name of the model, relative to `base`."""


@runtime_checkable
class SupportsInspectedSteps(Protocol):
    """A rank that can inspect all elements of a step at once."""

    def has_intact_elements(self, table: StepTable[TensorRecord]) -> bool:
        """Whether all elements are known to be undamaged, as far as that is visible without reading them."""
        ...


@runtime_checkable
class SupportsModels(Protocol):
    """A rank with separate directories for models."""

    def model_directories(self) -> ModelDirectories:
        """The directories of the selected run; of the last one for "latest"."""
        ...


# The layouts of dumps, by their names in plans: opdump's own, and those of installed packages.

LAYOUTS: Final = cast(Registry[Layout], layouts.LAYOUTS)
"""The registry that plans use to check names, with the complete layouts."""


def open_writer(plan: DumpPlan, run: RunFacts) -> RankWriter:
    """Open a writer in the layout of the plan."""
    return LAYOUTS.load(plan.layout).open_writer(plan, run)
