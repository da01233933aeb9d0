"""Whether the differences of two programs matter in the end.

Two programs may part and meet again: a factor that is applied before a product in one and after it in the other. So before operators are
accused, both programs are run in float64 from the same values, from the first step on, and what remains of the step is compared: the
parameters and states, losses, and where nothing is trained the outputs. How far apart it may be is measured: both run again with other
last bits, and what moves by that is noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import difference, epsilon_of, unshaped_difference
from opdump.comparison.ends import Ends, ends_of, same_ends
from opdump.comparison.execution import Execution, recorded
from opdump.comparison.simulation import Noise, Shaker, Simulation
from opdump.comparison.trace import Node, Trace, leaf_name
from opdump.records import TensorRecord

Array = NDArray[Any]

_SAME: Final = 1e-9
"""Relative: inputs that are as close are the same in float64."""
_CLOSE: Final = 1e-3
"""Relative: as close as this, what A begins with stands for what B begins with."""


_TIMES: Final[Mapping[Noise, float]] = {"begin": 2.0**29, "outputs": 64.0}
"""How much farther than in a run with noise something may go. What begins with other last bits of float64 goes 2 ** 29 times as far with other
last bits of float32, which constants of a program have that are rounded in one and not in the other.
"""

_Step = tuple[Trace, Trace, Alignment]


@dataclass(slots=True)
class _Both:
    """Both programs, with or without noise."""

    a: Simulation
    b: Simulation
    done: int = 0
    """How many steps have run."""

    def ends(self, steps: Sequence[_Step]) -> tuple[Ends, Ends] | None:
        """What remains of both after the last of these steps; None where that cannot be found out."""
        found = None
        for a, b, alignment in steps[self.done :]:
            found = self._step(a, b, alignment)
        self.done = len(steps)
        return found

    def _step(self, a: Trace, b: Trace, alignment: Alignment) -> tuple[Ends, Ends] | None:
        first = self.a.step(a, _own_input, _own_output, keeps_values=True)
        if first is None:
            return None
        values = _FromA(first, alignment, {there: here for here, there in alignment.storages.items()})
        second = self.b.step(b, values.leaf, values.output, keeps_values=False)
        if second is None:
            return None
        return ends_of(first, self.a.carried), ends_of(second, self.b.carried)


@dataclass(slots=True)
class Rehearsal:
    """The steps so far, run in float64 when somebody asks what they come to."""

    _steps: list[_Step] = field(default_factory=list)
    _plain: _Both = field(default_factory=lambda: _Both(Simulation(), Simulation()))
    _noisy: Mapping[Noise, _Both] = field(
        default_factory=lambda: {
            kind: _Both(Simulation(Shaker(kind, 1)), Simulation(Shaker(kind, 2))) for kind in _TIMES
        }
    )

    def then(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        """The next step, or part of one."""
        self._steps.append((a, b, alignment))

    def comes_to_the_same(self) -> bool:
        """Whether both programs leave the same at the end of the latest step; False too where that cannot be found out."""
        alignment = self._steps[-1][2]
        found = self._plain.ends(self._steps)
        if found is None:
            return False
        if same_ends(*found, alignment):
            return True
        first, second = found
        for kind, both in self._noisy.items():
            moved = both.ends(self._steps)
            if moved is None:
                return False
            first, second = (
                end.with_noise(other, _TIMES[kind]) for end, other in zip((first, second), moved, strict=True)
            )
            if same_ends(first, second, alignment):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _FromA:
    """What B begins with is what A began with, where that is as close as rounding."""

    first: Execution
    alignment: Alignment
    storages: Mapping[int, int]
    """Which storage of B is which of A."""

    def leaf(self, _: Execution, node: Node, slot: int) -> Array | None:
        """What an input of B holds that nothing made."""
        record = node.inputs[slot]
        own = recorded(record)
        for value in self._leaves(node, slot, record):
            if own is None or _is_close(value, own, record):
                return value
        return own

    def _leaves(self, node: Node, slot: int, record: TensorRecord) -> Iterator[Array]:
        storage = None if record.memory is None else self.storages.get(record.memory.storage)
        for held in (
            None if storage is None else self.first.leaf_storages.get(storage),
            self.first.leaves.get(leaf_name(record)),
        ):
            value = None if held is None else held.seen_as(record)
            if value is not None:
                yield value
        partner = self.alignment.a_of.get(node.index)
        if partner is not None and (partner, slot) in self.first.leaf_reads:
            yield self.first.inputs[partner][slot]

    def output(self, run: Execution, node: Node, slot: int) -> Array | None:
        """What an operator of B gives that cannot be run again: for the same inputs, the same as A's."""
        partner = self.alignment.a_of.get(node.index)
        own = recorded(node.outputs[slot])
        if partner is None:
            return own
        inputs = self.first.inputs[partner]
        same = all(
            place in inputs and unshaped_difference(inputs[place], value).relative <= _SAME
            for place, value in run.inputs[node.index].items()
        )
        value = self.first.outputs[partner].get(slot)
        return value if same and value is not None and (own is None or value.shape == own.shape) else own


def _own_input(_: Execution, node: Node, slot: int) -> Array | None:
    return recorded(node.inputs[slot])


def _own_output(_: Execution, node: Node, slot: int) -> Array | None:
    return recorded(node.outputs[slot])


def _is_close(value: Array, own: Array, record: TensorRecord) -> bool:
    if value.shape != own.shape:
        return False
    if own.dtype.kind not in "fc":
        return bool(np.array_equal(value, own))
    return difference(own, value).relative <= max(_CLOSE, 2 * epsilon_of(record.dtype))
