"""The interfaces of a layout that a recorder uses, the wrapper that reports their failures, and the growing graphs of a capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, cast, runtime_checkable

from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.graph import Graph, GraphBuilder
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord

# The interfaces of a layout that a recorder uses.


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


# A wrapper for the writer of a layout that reports failures to the recorder, so that a full disk need not end the program.

_INSTEAD: Final = MappingProxyType(
    {
        "write_step": None,
        "write_graph": None,
        "write_graph_files": None,
        "write_payload": "",
        "write_constant": "",
        "write_kernel_args": None,
        "write_operator": None,
        "write_overflow": None,
        "write_exception": None,
        "graphs_ran": None,
        "write_degradation": None,
        "flush": None,
    }
)
"""The writing methods of all layouts, and what each returns after a failure."""


class _Guard:
    """Has the methods of the writer as instance attributes, so that it offers the same optional methods as the writer."""


def with_error_handler(writer: StepWriter, failed: Callable[[Exception], None]) -> StepWriter:
    """Return a wrapper of `writer` that passes each exception to `failed`. `failed` may raise it again; otherwise the call returns an empty result.

    An interrupt (Ctrl-C) passes through.
    """
    guard = _Guard()
    for name, instead in _INSTEAD.items():
        method = getattr(writer, name, None)
        if method is not None:
            setattr(guard, name, _around(method, instead, failed))
    return cast(StepWriter, guard)


def _around(method: Callable[..., Any], instead: object, failed: Callable[[Exception], None]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        try:
            return method(*args)
        except Exception as error:  # noqa: BLE001  the recorder reports every kind of error
            failed(error)
            return instead

    return call


# The growing graphs of a capture, and the numbers of their constants.


class GrowingGraphs:
    """Graphs under construction, by graph ID."""

    def __init__(self, writer: StepWriter) -> None:
        self._writer = writer
        self._builders: dict[int, GraphBuilder] = {}
        self._filed_sizes: dict[int, int] = {}
        self._constants: dict[tuple[int, str, int], int] = {}
        """Numbers of constants, by graph, operator and slot that reads it."""

    def of(self, graph_id: int, root_name: str = "") -> GraphBuilder:
        builder = self._builders.get(graph_id)
        if builder is None:
            builder = self._builders[graph_id] = GraphBuilder(graph_id, root_name)
        return builder

    def file(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        """Write a graph that the runtime described itself, as these files if the layout has a place for them."""
        if isinstance(self._writer, SupportsGraphFiles):
            self._writer.write_graph_files(graph, files)
        else:
            self._writer.write_graph(graph)

    def constant_name(self, op: OpRecord, slot: int) -> str:
        """Return the name of the constant that an operator reads in this slot, or an empty string for a new one."""
        known = self._constants.get((op.graph_id, op.op_name, slot))
        return "" if known is None else f"data-{known}"

    def add_constant(self, op: OpRecord, slot: int) -> int:
        number = sum(1 for graph_id, _, _ in self._constants if graph_id == op.graph_id)
        self._constants[op.graph_id, op.op_name, slot] = number
        return number

    def write_grown(self) -> None:
        for graph_id, builder in self._builders.items():
            if self._filed_sizes.get(graph_id) != builder.size:
                self._filed_sizes[graph_id] = builder.size
                self._writer.write_graph(builder.build())
