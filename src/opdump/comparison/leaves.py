"""What a program began with, looked up for inputs of another one: parameters, states, data, and values that no operator was seen to make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import same_bits
from opdump.comparison.execution import Execution
from opdump.comparison.nodes import Node
from opdump.comparison.trace import leaf_name

Array = NDArray[Any]


@dataclass(slots=True)
class Leaves:
    """Those of one execution. What was read first is held by storage; of what was read later, only what is something else."""

    run: Execution
    alignment: Alignment
    """With the other program, B."""
    _later: dict[tuple[int, int], Array] = field(default_factory=dict)
    _a_of_storage: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self._a_of_storage = {there: here for here, there in self.alignment.storages.items()}

    def add(self, node: Node, slot: int, value: Array) -> bool:
        """An input that no operator made held this; tells whether that is what its storage held when it was read first."""
        first = self._first(node, slot)
        is_first = first is not None and same_bits(first, value)
        if not is_first:
            self._later[node.index, slot] = value
        return is_first

    def read_by(self, index: int, slot: int) -> Array | None:
        """What an input of a node held; None where an operator made it."""
        if (index, slot) not in self.run.leaf_reads:
            return None
        later = self._later.get((index, slot))
        return self._first(self.run.trace.nodes[index], slot) if later is None else later

    def of_b(self, node: Node, slot: int) -> Iterator[Array]:
        """What may be an input of B: by the storage, by the name, and by the operator that reads it."""
        record = node.inputs[slot]
        storage = None if record.memory is None else self._a_of_storage.get(record.memory.storage)
        for held in (
            None if storage is None else self.run.leaf_storages.get(storage),
            self.run.leaves.get(leaf_name(record)),
        ):
            value = None if held is None else held.seen_as(record)
            if value is not None:
                yield value
        partner = self.alignment.a_of.get(node.index)
        read = None if partner is None else self.read_by(partner, slot)
        if read is not None:
            yield read

    def _first(self, node: Node, slot: int) -> Array | None:
        record = node.inputs[slot]
        held = None if record.memory is None else self.run.leaf_storages.get(record.memory.storage)
        return None if held is None else held.seen_as(record)
