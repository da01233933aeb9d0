"""Reads a step whose parts number their storages anew as one: a storage of a later part that holds what an earlier one left is the same.

So it does of several steps, where two runs of a program are cut into steps at other places: each call of a TensorFlow function is a step, the same
operators one by one are a step of the eager program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from opdump.catalog.catalog import Catalog
from opdump.comparison.contents import Contents
from opdump.comparison.memory import Memory
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, has_elements, leaf_name, read_traces
from opdump.records import TensorRecord


def read_step(catalog: Catalog, step: int, rank: int | None = None) -> Trace:
    """A step as one trace; the lowest rank unless one is named."""
    return _joined(read_traces(catalog, step, rank))


def read_whole(catalog: Catalog, rank: int) -> Trace:
    """All steps of a rank as one trace."""
    return _joined([part for step in catalog.steps_of(rank) for part in read_traces(catalog, step, rank)])


def are_cut_otherwise(a: Catalog, b: Catalog, rank: int) -> bool:
    """Whether a step of one run of TensorFlow is no step of the other: the runs have other numbers of steps, or functions where the other has none."""
    frameworks = {run.framework for dump in (a, b) for run in dump.runs}
    if frameworks != {"tensorflow"}:
        return False
    steps = a.steps_of(rank)
    return len(steps) != len(b.steps_of(rank)) or any(
        _graphs(a, step, rank) != _graphs(b, other, rank)
        for step, other in zip(steps[:_LOOKED_AT], b.steps_of(rank), strict=False)
    )


_LOOKED_AT: Final = 3
"""Of so many steps at most the functions that ran are counted."""


def _graphs(catalog: Catalog, step: int, rank: int) -> int:
    """How many functions ran in a step; the program outside of them counts as one."""
    return len({each.op.graph_id for each in catalog.ops(step=step, rank=rank)})


def _joined(parts: Sequence[Trace]) -> Trace:
    first, *others = parts
    if not others:
        return first
    joining = _Joining()
    for part in (first, *others):
        joining.add(part)
    return Trace(first.step, first.rank, joining.nodes, joining.finals)


class _Joining:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.finals: dict[str, TensorRecord] = {}
        self._held = Memory(wide=False)
        self._names: dict[str, int] = {}
        self._count = 0
        """Storages so far."""

    def add(self, part: Trace) -> None:
        """Appends a part."""
        before = Contents(self._held, dict(self._names))
        # What an operator writes into, and no operator of the part read before, is new.
        nothing = Contents()
        known: dict[int, int] = {}
        start = len(self.nodes)
        for node in part.nodes:
            inputs = {slot: self._placed(record, known, before) for slot, record in node.inputs.items()}
            outputs = {slot: self._placed(record, known, nothing) for slot, record in node.outputs.items()}
            makers = {slot: (maker + start, output) for slot, (maker, output) in node.makers.items()}
            for slot, record in inputs.items():
                maker = None if slot in makers else self._maker(record)
                if maker is not None:
                    makers[slot] = maker
            moved = replace(node, index=len(self.nodes), inputs=inputs, outputs=outputs, makers=makers)
            self._follow(moved)
            self.nodes.append(moved)
        self.finals |= {name: self._placed(record, known, before) for name, record in part.finals.items()}

    def _placed(self, record: TensorRecord, known: dict[int, int], before: Contents) -> TensorRecord:
        if record.memory is None:
            return record
        number = record.memory.storage
        if number not in known:
            found = (
                before.storage_of(record, record.numpy())
                if has_elements(record)
                else self._names.get(leaf_name(record))
            )
            if found is None or found in known.values():
                found, self._count = self._count, self._count + 1
            known[number] = found
        return replace(record, memory=replace(record.memory, storage=known[number]))

    def _maker(self, record: TensorRecord) -> tuple[int, int] | None:
        """Who made all of what an input reads, in an earlier part."""
        if record.memory is None:
            return None
        writers = self._held.last_writers(record.memory.storage)
        if len(writers) != 1:
            return None
        (index,) = writers
        for slot, made in self.nodes[index].outputs.items():
            if made.memory is not None and made.memory.storage == record.memory.storage:
                return index, slot
        return None

    def _follow(self, node: Node) -> None:
        for slot, record in node.inputs.items():
            if record.memory is None or not has_elements(record):
                continue
            if leaf_name(record):
                self._names[leaf_name(record)] = record.memory.storage
            read = self._held.read(node, slot)
            if read.values is None or read.unknown is not None:
                self._held.write(-1, slot, record, record.numpy())
        for slot, record in node.outputs.items():
            if has_elements(record):
                self._held.write(node.index, slot, record, record.numpy())
