"""What remains of a step in both programs, where both ran on the same values: parameters, buffers, states of optimizers, averages."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import Difference, difference
from opdump.comparison.ends import gradients, trained
from opdump.comparison.execution import Execution
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.records import TensorRecord


@dataclass(frozen=True, slots=True)
class Remains:
    """A tensor that both programs leave, as if a last node of each read it."""

    a: Node
    b: Node
    writers_a: frozenset[int]
    writers_b: frozenset[int]
    difference: Difference

    @property
    def records(self) -> tuple[TensorRecord, TensorRecord]:
        """The tensor in A, and in B."""
        return self.a.inputs[0], self.b.inputs[0]

    def outlives(self, storages_a: AbstractSet[int], storages_b: AbstractSet[int]) -> bool:
        """Whether its storages are among these of A, and among these of B."""
        return all(
            record.memory is not None and record.memory.storage in storages
            for record, storages in zip(self.records, (storages_a, storages_b), strict=True)
        )


def outliving(trace: Trace, rewritten: AbstractSet[int]) -> set[int]:
    """The storages that outlive a step: of parameters, of what has a name, and those `rewritten` by the next step; without gradients."""
    named = {
        record.memory.storage
        for node in trace.nodes
        for record in node.inputs.values()
        if record.memory is not None and names_a_state(leaf_name(record))
    }
    finals = {record.memory.storage for record in trace.finals.values() if record.memory is not None}
    return (named | rewritten | finals | trained(trace)) - gradients(trace)


def remaining(reference: Execution, run: Execution, alignment: Alignment) -> Iterator[Remains]:
    """What both programs leave: parameters by their names, and whatever else is still there by its storage."""
    a, b = reference.trace, run.trace
    seen: set[int] = set()
    for name, record in b.finals.items():
        before = a.finals.get(name)
        if before is None or record.memory is None or before.memory is None or before.shape != record.shape:
            continue
        node_a, node_b = _last(a, before), _last(b, record)
        first, second = reference.memory.read(node_a, 0), run.memory.read(node_b, 0)
        if first.values is not None and second.values is not None:
            seen.add(record.memory.storage)
            yield Remains(node_a, node_b, first.writers, second.writers, difference(first.values, second.values))
    for here, there in alignment.storages.items():
        if there not in seen:
            yield from _left_in(reference, run, here, there)


def _left_in(reference: Execution, run: Execution, here: int, there: int) -> Iterator[Remains]:
    """What a storage of A and one of B hold; numbers that count steps are left alone."""
    first, second = reference.memory.storage(here), run.memory.storage(there)
    if first is None or second is None or first.dtype != second.dtype or len(first.values) != len(second.values):
        return
    known = None if first.known is None or second.known is None else first.known & second.known
    if known is None or known.sum() < 2:
        return
    yield Remains(
        _last(reference.trace, _record_in(reference.trace, here)),
        _last(run.trace, _record_in(run.trace, there)),
        reference.memory.last_writers(here),
        run.memory.last_writers(there),
        difference(first.values[known], second.values[known]),
    )


def _last(trace: Trace, record: TensorRecord) -> Node:
    return Node(len(trace.nodes), record.op, {0: record}, {})


def _record_in(trace: Trace, storage: int) -> TensorRecord:
    """The last tensor in a storage that a step read or wrote."""
    return next(
        record
        for node in reversed(trace.nodes)
        for record in (*node.outputs.values(), *node.inputs.values())
        if record.memory is not None and record.memory.storage == storage
    )
