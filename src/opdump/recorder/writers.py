"""What a layout offers to a recorder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.graph import Graph
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord


class StepWriter(Protocol):
    """The half of a layout that files records."""

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
    """A layout that files tensor by tensor."""

    def write_payload(self, record: TensorRecord) -> str:
        """Queue the elements of a tensor; where they are, as `write_step` is told again. Its statistics follow there."""
        ...


@runtime_checkable
class SupportsConstants(Protocol):
    """A layout with a place for tensors that no operator made."""

    def write_constant(self, data_id: int, record: TensorRecord) -> str: ...


@runtime_checkable
class SupportsKernelArgs(Protocol):
    """A layout that files the non-tensor arguments of operators by themselves (`save_kernel_args`)."""

    def write_kernel_args(self, op: OpRecord) -> None: ...


@runtime_checkable
class SupportsOperatorFiles(Protocol):
    """A layout whose files hold whole operators."""

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        """Queue the file of an operator; for each tensor where it is, None where it left no data."""


@runtime_checkable
class SupportsOverflows(Protocol):
    """A layout that says of an operator how it overflowed."""

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        """File the status of an operator whose tensors were filed."""


@runtime_checkable
class SupportsExceptions(Protocol):
    """A layout with files of its own for the operator that failed."""

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        """File the inputs of an operator that raised, and what it said."""


@runtime_checkable
class SupportsMetadata(Protocol):
    """A layout with a directory for what is known of a dump beside its data."""

    @property
    def metadata(self) -> Path | None:
        """That directory; None before anything was filed."""

    def adopt(self, file: Path) -> None:
        """Counts a file that somebody else has written, where it lies in the dump."""


@runtime_checkable
class SupportsHistory(Protocol):
    """A layout that notes the steps that graphs executed."""

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        """These graphs executed something in a step that is dumped, whether or not something of it is filed."""


@runtime_checkable
class SupportsGraphFiles(Protocol):
    """A layout with a place for the files that MindSpore writes of a graph."""

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """File them as they are, by their paths below the rank's directory; `graph` is what they say."""


@runtime_checkable
class SupportsDegradations(Protocol):
    """A layout whose index says what was left out of a run because a bound was met."""

    def write_degradation(self, degradation: Degradation) -> None: ...


@runtime_checkable
class SupportsIndexSize(Protocol):
    """A layout with an index that its sink does not write."""

    @property
    def index_bytes(self) -> int:
        """What the run has added to the index, as long as the sink does not count it."""


@runtime_checkable
class SupportsFlush(Protocol):
    """A layout that can say when everything is on disk."""

    def flush(self) -> None: ...
