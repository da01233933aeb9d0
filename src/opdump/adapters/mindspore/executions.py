"""Reads what MindSpore's dump has left of executions that ended: operators in running order, with the bytes of their tensors.

    LeNet/0/0/Conv2D.Default_...-op0.0.0.1795650438520449.input.0.DefaultFormat.Float32.npy

Files that were read are removed, so that the directory holds one execution of a graph at most.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from opdump.adapters.host import HostTensor
from opdump.adapters.host.element_types import BY_DTYPE
from opdump.errors import CorruptDumpError
from opdump.index.payload import FilePayload, inside
from opdump.layouts.mindspore_sync.files import Place, find_places, list_files
from opdump.layouts.mindspore_sync.from_files import records_of_place
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.records import IO, OpRecord, TensorRecord
from opdump.sink.npy import read_raw_npy


@dataclass(frozen=True, slots=True)
class Execution:
    """An operator that ran, and what it read and wrote by slot, with the maker of it."""

    op: OpRecord
    tensors: tuple[tuple[IO, int, HostTensor | str, str], ...]


class Executions:
    """The executions below the directory of a rank of MindSpore's dump. `problems`: files that could not be read."""

    def __init__(self, root: Path, rank_id: int) -> None:
        self.problems: list[CorruptDumpError] = []
        self._root = root
        self._rank_id = rank_id
        self._tree: RankTree | None = None

    @property
    def tree(self) -> RankTree:
        """Graphs and execution orders, each read once."""
        if self._tree is None:
            self._tree = RankTree(self._root, self._rank_id, places=(), with_index=False)
        return self._tree

    def graph_ids(self) -> tuple[int, ...]:
        """The graphs that were compiled so far, ascending."""
        return self.tree.graph_ids

    def graph_files(self, graph_id: int) -> dict[str, bytes]:
        """What MindSpore wrote of a graph when it compiled it, by the paths below the rank's directory."""
        stems = (
            f"graphs/ms_output_trace_code_graph_{graph_id}.",
            f"execution_order/ms_execution_order_graph_{graph_id}.",
        )
        return {
            f"{path.parent.name}/{path.name}": path.read_bytes()
            for stem in stems
            for path in sorted(self._root.glob(f"{stem}*"))
        }

    def history(self, graph_id: int) -> tuple[int, ...]:
        """The iterations that a graph has executed so far."""
        return self.tree.history(graph_id)

    def take(self) -> Iterator[Execution]:
        """Those that are there, in running order within each execution of a graph; their files are removed."""
        if not self._root.is_dir():
            return
        for place in find_places(self._root):
            if place.step is not None:
                yield from self._of(place)

    def _of(self, place: Place) -> Iterator[Execution]:
        files = list_files(self._root, place)
        if not files.tensors:
            return
        names = self.tree.true_names(place.graph_id)
        found = records_of_place(self._root, self._rank_id, place, files, names, {})
        self.problems.extend(found.problems)
        tensors: dict[int, list[TensorRecord]] = {}
        for record in found.tensors:
            tensors.setdefault(id(record.op), []).append(record)
        for op in found.ops:
            yield Execution(op, tuple(self._tensor(record) for record in tensors.get(id(op), ())))
        # The directory itself goes too: MindSpore makes it again, and there is one for each iteration.
        shutil.rmtree(self._root / place.relative, ignore_errors=True)

    def _tensor(self, record: TensorRecord) -> tuple[IO, int, HostTensor | str, str]:
        payload = record.payload
        assert isinstance(payload, FilePayload), "it was found by its file"
        tensor: HostTensor | str = record.dtype
        element = BY_DTYPE.get(record.dtype)
        if element is not None and element.bits >= 8:
            with suppress(CorruptDumpError):  # which is among the problems
                header, flat = read_raw_npy(inside(self._root, payload.relative))
                tensor = HostTensor(element, header.shape, flat.ctypes.data, flat, stays=True)
        return record.io, record.slot, tensor, record.source


def rank_directories(root: Path) -> list[Path]:
    """The directories of ranks below that of a dump."""
    with suppress(FileNotFoundError), os.scandir(root) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.name.startswith("rank_"))
    return []
