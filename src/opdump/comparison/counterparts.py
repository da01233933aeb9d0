"""What a state of B would be if the step before were A's: found element by element, whatever the programs call it and however they join it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.carrying import Carried
from opdump.comparison.memory import Named, widened
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord

Array = NDArray[Any]

_SAME: Final = 1e-6
"""Relative: what both programs left in float64 is as close, far closer than what float32 recorded of it."""


class Counterparts:
    """Of what both programs left in float64: an element of B is the one of A that is the same, and is what A recorded of that.

    carried   what a step of A and of B finds of the step before
    left      what both had left there in float64
    """

    def __init__(
        self,
        a: Trace,
        carried: tuple[Carried, Carried],
        left: tuple[Mapping[int, Named], Mapping[int, Named]],
    ) -> None:
        self._inputs, self._left = carried[1].inputs, left[1]
        values, recorded = [np.zeros(0)], [np.zeros(0)]
        seen: set[tuple[int, object]] = set()
        for (index, slot), storage in carried[0].inputs.items():
            record = a.nodes[index].inputs[slot]
            part = storage, (record.shape, record.memory)
            exact = None if part in seen else _seen_as(left[0], storage, record)
            if exact is not None:
                seen.add(part)
                values.append(exact.reshape(-1))
                recorded.append(widened(record.numpy()).reshape(-1))
        order = np.argsort(np.concatenate(values))
        self._values, self._recorded = np.concatenate(values)[order], np.concatenate(recorded)[order]

    def of(self, node: Node, slot: int) -> Array | None:
        """What A recorded of the elements of an input of B that a step before left; None where A has no such elements."""
        storage = self._inputs.get((node.index, slot))
        own = None if storage is None else _seen_as(self._left, storage, node.inputs[slot])
        if own is None or not self._values.size:
            return None
        after = np.searchsorted(self._values, own).clip(max=self._values.size - 1)
        before = (after - 1).clip(min=0)
        nearest = np.where(np.abs(self._values[after] - own) <= np.abs(self._values[before] - own), after, before)
        if not np.allclose(self._values[nearest], own, rtol=_SAME, atol=0.0, equal_nan=True):
            return None
        found: Array = self._recorded[nearest]
        return found


def _seen_as(left: Mapping[int, Named], storage: int, record: TensorRecord) -> Array | None:
    """The floats of a tensor in what was left in a storage."""
    held = left.get(storage)
    values = None if held is None else held.seen_as(record)
    return values if values is not None and values.dtype.kind == "f" else None
