"""Finds a storage again by what was recorded of it: numbers of storages are counted anew, elements stay the same bits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import equal_elements
from opdump.comparison.memory import Memory, extent_of
from opdump.comparison.trace import leaf_name
from opdump.records import TensorRecord

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Contents:
    """What storages held at the end of something, as it was recorded, and how tensors in them are called."""

    recorded: Memory = field(default_factory=lambda: Memory(wide=False))
    names: Mapping[str, int] = field(default_factory=dict)
    _by_first: dict[tuple[str, int], Mapping[bytes, Sequence[int]]] = field(default_factory=dict)
    """By element type, place in the storage, and the element that is there."""

    def storage_of(self, record: TensorRecord, values: Array, asked: NDArray[np.bool_] | None = None) -> int | None:
        """The storage that has these recorded elements where the tensor lies in its own; None where there is none.

        `asked` are the elements that have to be the same, where these are not all.
        """
        if record.memory is None or not values.size:
            return None
        named = self.names.get(leaf_name(record))
        others = self._with_first(record, values) if asked is None else [each for each, _ in self.recorded.storages()]
        # What is as long as the tensor comes before what has it for a part.
        others = sorted(others, key=lambda each: self._length(each) != extent_of(record))
        storage: int
        for storage in (*(() if named is None else (named,)), *others):
            held = self.recorded.storage(storage)
            before = None if held is None else held.seen_as(record)
            if before is not None:
                equal = equal_elements(before, values)
                if bool((equal if asked is None else equal[asked]).all()):
                    return storage
        return None

    def _length(self, storage: int) -> int:
        held = self.recorded.storage(storage)
        return 0 if held is None else len(held.values)

    def _with_first(self, record: TensorRecord, values: Array) -> Sequence[int]:
        assert record.memory is not None
        place = record.dtype, record.memory.offset
        if place not in self._by_first:
            found: dict[bytes, list[int]] = defaultdict(list)
            for storage, held in self.recorded.storages():
                if held.dtype == record.dtype and len(held.values) > record.memory.offset:
                    found[held.values[record.memory.offset :][:1].tobytes()].append(storage)
            self._by_first[place] = found
        return self._by_first[place].get(values.flat[:1].tobytes(), ())
