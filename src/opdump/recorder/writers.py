"""The interfaces of a layout that a recorder uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.graph import Graph
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord


class StepWriter(Protocol):
    """The part of a layout that writes records."""

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None: ...
    def write_graph(self, graph: Graph) -> None: ...


@runtime_checkable
class SupportsTensorFiles(Protocol):
    """A layout that writes each tensor as soon as it is recorded."""

    def write_payload(self, record: TensorRecord) -> str:
        """Queue the elements of a tensor. Return their location, which is passed to `write_step` later, together with the statistics."""
        ...


@runtime_checkable
class SupportsConstants(Protocol):
    """A layout with a place for tensors that no operator produced."""

    def write_constant(self, data_id: int, record: TensorRecord) -> str: ...


@runtime_checkable
class SupportsKernelArgs(Protocol):
    """A layout that writes the non-tensor arguments of operators into files of their own (`save_kernel_args`)."""

    def write_kernel_args(self, op: OpRecord) -> None: ...


@runtime_checkable
class SupportsOperatorFiles(Protocol):
    """A layout with one file per operator."""

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        """Queue the file of an operator. Return the location of each tensor, or None for a tensor without data."""


@runtime_checkable
class SupportsOverflows(Protocol):
    """A layout that records how an operator overflowed."""

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        """Write the overflow status of an operator whose tensors were written before."""


@runtime_checkable
class SupportsExceptions(Protocol):
    """A layout with separate files for an operator that failed."""

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        """Write the inputs of an operator that raised, and its error message."""


@runtime_checkable
class SupportsMetadata(Protocol):
    """A layout with a directory for metadata of a dump."""

    @property
    def metadata(self) -> Path | None:
        """The directory for metadata, or None before anything was written."""

    def adopt(self, file: Path) -> None:
        """Count a file in the dump that was written by something else."""


@runtime_checkable
class SupportsHistory(Protocol):
    """A layout that records in which steps a graph was executed."""

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        """Record that these graphs executed something in a selected step, even if none of it is recorded."""


@runtime_checkable
class SupportsGraphFiles(Protocol):
    """A layout with a place for the files that MindSpore writes for a graph."""

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write the files unchanged, at their paths below the directory of the rank. `graph` is their content."""


@runtime_checkable
class SupportsDegradations(Protocol):
    """A layout whose index records what was left out of a run because a limit was reached."""

    def write_degradation(self, degradation: Degradation) -> None: ...


@runtime_checkable
class SupportsIndexSize(Protocol):
    """A layout with an index that is not written by its sink."""

    @property
    def index_bytes(self) -> int:
        """Bytes that the run has added to the index and that the sink does not count yet."""


@runtime_checkable
class SupportsFlush(Protocol):
    """A layout that can wait until everything is on disk."""

    def flush(self) -> None: ...
