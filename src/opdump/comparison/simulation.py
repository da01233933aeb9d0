"""A program in float64, step after step: each step begins with what the steps before left, and not with what was recorded.

So rounding does not gather in it: what float32 made of gradients that are zero by mathematics, and an optimizer of those, is not there.
A step finds what is left by the recorded elements: within a run they are the same bits at the end of a step and at the beginning of the
next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import epsilon_of, equal_elements
from opdump.comparison.execution import Execution, draws, replay
from opdump.comparison.memory import Memory, Named
from opdump.comparison.trace import Node, Trace, has_elements, leaf_name
from opdump.records import TensorRecord

Array = NDArray[Any]
Given = Callable[[Execution, Node, int], Array | None]
"""What an input or an output of a node holds, in an execution that cannot tell by itself."""

_DRAWS_ALONE: Final = frozenset(
    {
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal",
        "poisson",
        "random",
        "uniform",
    }
)
"""Types of operators that give random numbers and nothing else; `rand`, `randn_like` and the like are some more."""
_SHAKEN_BITS: Final = 2.0
"""By how many units of their last place numbers are moved in a run with noise."""


@dataclass(frozen=True, slots=True)
class _Left:
    """A storage at the end of a step: what was recorded of it, and what it holds here."""

    recorded: Named
    held: Named

    def seen_as(self, record: TensorRecord, values: Array, asked: NDArray[np.bool_] | None) -> Array | None:
        """What a tensor of these recorded elements holds, if they are those of this storage; None if not. `asked` are those that matter."""
        assert record.memory is not None
        held = self.recorded.values
        if record.dtype != self.recorded.dtype or record.memory.offset >= len(held):
            return None
        if asked is None and not bool(held[record.memory.offset] == values.flat[0]) and not _is_nan(values.flat[0]):
            return None  # nearly all end here
        before = self.recorded.seen_as(record)
        if before is None:
            return None
        equal = equal_elements(before, values)
        is_it = bool((equal if asked is None else equal[asked]).all())
        return self.held.seen_as(record) if is_it else None


@dataclass(slots=True)
class Simulation:
    """One program. With `noise` the last bits of what it begins with are others: how far that goes shows what rounding can do."""

    noise: np.random.Generator | None = None
    carried: set[int] = field(default_factory=set)
    """Storages of the latest step in which there is what a step before left."""
    _left: list[_Left] = field(default_factory=list)
    _left_by_name: dict[str, _Left] = field(default_factory=dict)

    def step(self, trace: Trace, leaf: Given, output: Given) -> Execution | None:
        """Runs a step; None where an input is not known.

        leaf      gives an input that no operator and no step before made
        output    gives an output of a node that cannot be run again
        """
        run, seen = Execution(trace), Memory(wide=False)
        self.carried = set()
        names: dict[str, int] = {}
        for node in trace.nodes:
            values = run.inputs[node.index] = {}
            for slot, record in node.inputs.items():
                if record.skip:
                    continue
                value = self._input(run, node, slot, leaf)
                if value is None:
                    return None
                values[slot] = value
                if has_elements(record):
                    _follow(seen, node, slot)
                if leaf_name(record) and record.memory is not None:
                    names[leaf_name(record)] = record.memory.storage
            outputs = run.outputs[node.index] = self._outputs(run, node, values, output)
            run.write(node, outputs)
            for slot, record in node.outputs.items():
                if has_elements(record):
                    seen.write(node.index, slot, record, record.numpy())
        for name, record in trace.finals.items():
            if record.memory is not None:
                names[f"Parameter.{name}"] = record.memory.storage
        self._leave(run.memory, seen, names)
        return run

    def _input(self, run: Execution, node: Node, slot: int, leaf: Given) -> Array | None:
        read = run.memory.read(node, slot)
        is_made = bool(read.writers - {-1})
        if is_made and read.unknown is None:
            return run.look_up(node, slot, None)
        value = self._carried(node.inputs[slot], read.unknown if is_made else None)
        if value is None:
            value = leaf(run, node, slot)
            value = value if value is None else self._shaken(value, _SHAKEN_BITS * epsilon_of("float64"))
        return run.look_up(node, slot, value)

    def _carried(self, record: TensorRecord, asked: NDArray[np.bool_] | None) -> Array | None:
        """What a step before left there."""
        if not has_elements(record) or record.memory is None or 0 in record.shape:
            return None
        values = record.numpy()
        named = self._left_by_name.get(leaf_name(record))
        for left in (*(() if named is None else (named,)), *self._left):
            found = left.seen_as(record, values, asked)
            if found is not None:
                self.carried.add(record.memory.storage)
                return found
        return None

    def _leave(self, held: Memory, seen: Memory, names: dict[str, int]) -> None:
        left = {
            storage: _Left(recorded, there)
            for storage, recorded in seen.storages()
            if (there := held.storage(storage)) is not None
        }
        self._left = list(left.values())
        self._left_by_name = {name: left[storage] for name, storage in names.items() if storage in left}

    def _outputs(self, run: Execution, node: Node, values: dict[int, Array], output: Given) -> dict[int, Array]:
        done = replay(node, values)
        if done is not None:
            wide = done.dtype == "float64"
            return {
                slot: value if wide else self._shaken(value, epsilon_of(done.dtype))
                for slot, value in done.outputs.items()
            }
        given = {slot: value for slot in node.outputs if (value := output(run, node, slot)) is not None}
        if draws(node) and (node.bare_type in _DRAWS_ALONE or node.bare_type.startswith("rand")):
            return given
        return {slot: self._shaken(value, epsilon_of(node.outputs[slot].dtype)) for slot, value in given.items()}

    def _shaken(self, values: Array, epsilon: float) -> Array:
        if self.noise is None or values.dtype.kind not in "fc":
            return values
        moved: Array = values * (1 + epsilon * self.noise.uniform(-1, 1, values.shape))
        return moved


def _follow(seen: Memory, node: Node, slot: int) -> None:
    """What was recorded of an input is in its memory, whoever wrote it."""
    record = node.inputs[slot]
    if record.memory is None:
        return
    values, read = record.numpy(), seen.read(node, slot)
    if read.values is None or read.unknown is not None or not equal_elements(read.values, values).all():
        seen.write(-1, slot, record, values)
