"""Which input of a step is what the step before left, and where: one program, by its recorded elements.

Numbers of storages are counted anew in each step, but within a run a storage holds the same bits at the end of a step and at the beginning
of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from opdump.comparison.contents import Contents
from opdump.comparison.memory import Memory
from opdump.comparison.trace import Trace, has_elements, leaf_name

_TELLING: Final = 4
"""So many different elements are in no two storages by chance; a counter or a mask of ones is in many."""
_LOOKED_AT: Final = 256


@dataclass(frozen=True, slots=True)
class Carried:
    """What a step finds of the step before."""

    inputs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By node and slot: the storage of the step before."""
    storages: Mapping[int, int] = field(default_factory=dict)
    """Which storage of the step before one of these is, where its elements tell that beyond doubt."""
    held_before: AbstractSet[int] = frozenset()
    """Storages in which there is anything of it."""
    rewritten: AbstractSet[int] = frozenset()
    """Storages of the step before that this step finds again and writes into: states, and no constants."""

    @property
    def wanted(self) -> set[int]:
        """The storages of the step before that this one finds again."""
        return {*self.inputs.values(), *self.storages.values()}


@dataclass(slots=True)
class Carrying:
    """One program, step after step."""

    _left: Contents = field(default_factory=Contents)

    def step(self, trace: Trace) -> Carried:
        """The next step."""
        inputs: dict[tuple[int, int], int] = {}
        storages: dict[int, int] = {}
        held_before: set[int] = set()
        before_of: dict[int, int] = {}
        written: set[int] = set()
        names: dict[str, int] = {}
        seen = Memory(wide=False)
        for node in trace.nodes:
            for slot, record in node.inputs.items():
                if record.skip or node.clears(slot):
                    continue
                read = seen.read(node, slot)
                is_made = bool(read.writers - {-1})
                if has_elements(record) and (not is_made or read.unknown is not None):
                    values = record.numpy()
                    asked = read.unknown if is_made else None
                    found = self._left.storage_of(record, values, asked)
                    if found is not None and record.memory is not None:
                        inputs[node.index, slot] = before_of[record.memory.storage] = found
                        held_before.add(record.memory.storage)
                        if len(np.unique(values.flat[:_LOOKED_AT])) >= _TELLING:
                            storages[record.memory.storage] = found
                    seen.write(-1, slot, record, values, asked)
                if leaf_name(record) and record.memory is not None:
                    names[leaf_name(record)] = record.memory.storage
            for slot, record in node.outputs.items():
                if record.memory is not None:
                    written.add(record.memory.storage)
                if has_elements(record):
                    seen.write(node.index, slot, record, record.numpy())
        for name, record in trace.finals.items():
            if record.memory is not None:
                names[f"Parameter.{name}"] = record.memory.storage
        for storage, before in storages.items():
            # Of a storage that a step read a part of (rows of all the data), the rest is still there.
            held = self._left.recorded.storage(before)
            if held is not None:
                seen.complete(storage, held)
        self._left = Contents(seen, names)
        return Carried(inputs, storages, held_before, {before_of[each] for each in written & before_of.keys()})
