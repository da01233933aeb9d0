"""The content of a rank's directory before completion: the files that MindSpore wrote, and the index of an earlier completion."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from opdump.errors import CorruptDumpError, UnknownLayoutError
from opdump.index.metadata import METADATA
from opdump.index.payload import FilePayload, inside
from opdump.index.schema import INDEX_NAME
from opdump.layouts.mindspore_sync.files import read_table
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.sink.npy import read_npy_header


class RankState:
    """A rank of a dump. `mark` is a key in the totals of runs in an index written by a completion.

    Raises UnknownLayoutError for a dump that opdump captured, because its index contains more than its files.
    """

    def __init__(self, root: Path, rank_id: int, mark: str) -> None:
        self.root = root
        self._rank_id = rank_id
        self._mark = mark
        self._indexed = RankTree(root, rank_id, run="all") if (root / METADATA / INDEX_NAME).exists() else None
        if self._indexed is not None and any(
            run.opdump_version and mark not in run.totals and not run.end_unknown for run in self._indexed.runs
        ):
            raise UnknownLayoutError(
                f"{root}: was captured by opdump, so it is complete already; expected a dump that MindSpore wrote"
            )

    @cached_property
    def files(self) -> RankTree:
        """The rank by its files, with all runs."""
        return RankTree(self.root, self._rank_id, run="all", with_index=False)

    def run_alone(self, run: int) -> RankTree:
        """One run by its files."""
        return RankTree(self.root, self._rank_id, run=run, places=self.files.places, with_index=False)

    def is_complete(self, header: str) -> bool:
        """Whether the index has all files, each statistic.csv has the columns of `header`, and numpy can read every file."""
        tree = self._indexed
        if tree is None or len(tree.runs) != len(self.files.runs):
            return False
        if not all(run.complete and self._mark in run.totals for run in tree.runs):
            return False
        columns = set(header.strip().split(","))
        return all(self._step_is_complete(tree, step, columns) for step in self.files.steps)

    def _step_is_complete(self, tree: RankTree, step: int, columns: set[str]) -> bool:
        if not tree.is_indexed(step):
            return False
        content = tree.step(step)
        with_rows = {(record.op.net_name, record.op.graph_id) for record in content.tensors if record.statistics}
        for place in self.files.places:
            if place.step == step and (place.net_name, place.graph_id) in with_rows:
                table = self.files.files(place).statistics
                head = b"" if table is None else read_table(inside(self.root, table)).partition(b"\n")[0]
                if not columns <= set(head.decode("utf-8", "replace").strip().split(",")):
                    return False
        return not any(
            _is_raw(record.payload)
            for record in content.tensors
            if record.dtype == "bfloat16" and isinstance(record.payload, FilePayload)
        )


def _is_raw(payload: FilePayload) -> bool:
    """Whether a file has elements of two bytes that numpy cannot read."""
    try:
        return read_npy_header(payload.path).dtype == "bfloat16"
    except CorruptDumpError:
        return False
