"""A program in float64, step after step: each step begins with what the steps before left, and not with what was recorded.

So rounding does not gather in it: what float32 made of gradients that are zero by mathematics, and an optimizer of those, is not there.
A step finds what is left by the recorded elements: within a run they are the same bits at the end of a step and at the beginning of the
next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.contents import Contents
from opdump.comparison.differences import epsilon_of
from opdump.comparison.ends import forget_the_rest, outputs_read
from opdump.comparison.execution import Execution, draws, replay
from opdump.comparison.memory import Memory
from opdump.comparison.trace import Node, Trace, has_elements, leaf_name
from opdump.records import TensorRecord

Array = NDArray[Any]
Given = Callable[[Execution, Node, int], Array | None]
"""What an input or an output of a node holds, in an execution that cannot tell by itself."""

Noise = Literal["begin", "outputs"]
"""What has other last bits: what a program begins with, or outputs of operators that are not run in float64."""

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
_TELLING: Final = 4
"""So many different elements are in no two storages by chance; a counter or a mask of ones is in many."""
_LOOKED_AT: Final = 256
_SHAKEN_BITS: Final = 2.0
"""By how many units of their last place numbers are moved in a run with noise."""


class Shaker:
    """Moves the last bits of numbers: how far that goes shows what rounding can do."""

    def __init__(self, kind: Noise, seed: int) -> None:
        self._kind = kind
        self._random = np.random.default_rng(seed)

    def begin(self, values: Array) -> Array:
        """What a program begins with, with other last bits of float64."""
        return self._moved(values, _SHAKEN_BITS * epsilon_of("float64")) if self._kind == "begin" else values

    def output(self, values: Array, epsilon: float) -> Array:
        """The output of an operator that was rounded to `epsilon`, with other last bits."""
        return self._moved(values, epsilon) if self._kind == "outputs" else values

    def _moved(self, values: Array, epsilon: float) -> Array:
        if values.dtype.kind not in "fc":
            return values
        moved: Array = values * (1 + epsilon * self._random.uniform(-1, 1, values.shape))
        return moved


@dataclass(slots=True)
class Simulation:
    """One program."""

    shaker: Shaker | None = None
    carried: set[int] = field(default_factory=set)
    """Storages of the latest step in which there is what a step before left."""
    _storage_before: dict[int, int] = field(default_factory=dict)
    """Which storage of the step before one of these is, where its elements tell that beyond doubt."""
    _left: Contents = field(default_factory=Contents)
    _held: Memory = field(default_factory=Memory)
    """What the storages of `_left` hold in float64."""

    def step(self, trace: Trace, leaf: Given, output: Given, *, keeps_values: bool) -> Execution | None:
        """Runs a step; None where an input is not known.

        leaf      gives an input that no operator and no step before made
        output    gives an output of a node that cannot be run again

        With `keeps_values` the execution has what every node read and gave, else what `ends_of` asks for.
        """
        run, seen = Execution(trace), Memory(wide=False)
        self.carried, self._storage_before = set(), {}
        names: dict[str, int] = {}
        read = outputs_read(trace)
        for node in trace.nodes:
            values = run.inputs[node.index] = {}
            for slot, record in node.inputs.items():
                if record.skip:
                    continue
                value = self._input(run, node, slot, leaf)
                if value is None:
                    return None
                values[slot] = value
                if (node.index, slot) in run.leaf_reads and has_elements(record):
                    seen.write(-1, slot, record, record.numpy())
                if leaf_name(record) and record.memory is not None:
                    names[leaf_name(record)] = record.memory.storage
            outputs = run.outputs[node.index] = self._outputs(run, node, values, output)
            run.write(node, outputs)
            for slot, record in node.outputs.items():
                if has_elements(record):
                    seen.write(node.index, slot, record, record.numpy())
            if not keeps_values:
                forget_the_rest(run, node, read)
        for name, record in trace.finals.items():
            if record.memory is not None:
                names[f"Parameter.{name}"] = record.memory.storage
        self._keep_the_rest(seen, run.memory)
        self._left, self._held = Contents(seen, names), run.memory
        return run

    def _keep_the_rest(self, seen: Memory, memory: Memory) -> None:
        """Of a storage that a step read a part of (rows of all the data), the rest is still there."""
        for storage, before in self._storage_before.items():
            for now, then in ((seen, self._left.recorded), (memory, self._held)):
                held = then.storage(before)
                if held is not None:
                    now.complete(storage, held)

    def _input(self, run: Execution, node: Node, slot: int, leaf: Given) -> Array | None:
        read = run.memory.read(node, slot)
        is_made = bool(read.writers - {-1})
        if is_made and read.unknown is None:
            return run.look_up(node, slot, None)
        value = self._carried(node.inputs[slot], read.unknown if is_made else None)
        if value is None:
            value = leaf(run, node, slot)
            value = value if value is None or self.shaker is None else self.shaker.begin(value)
        return run.look_up(node, slot, value)

    def _carried(self, record: TensorRecord, asked: NDArray[np.bool_] | None) -> Array | None:
        """What a step before left there."""
        if not has_elements(record) or record.memory is None:
            return None
        storage = self._left.storage_of(record, record.numpy(), asked)
        held = None if storage is None else self._held.storage(storage)
        if storage is None or held is None:
            return None
        self.carried.add(record.memory.storage)
        if len(np.unique(record.numpy().flat[:_LOOKED_AT])) >= _TELLING:
            self._storage_before[record.memory.storage] = storage
        return held.seen_as(record)

    def _outputs(self, run: Execution, node: Node, values: dict[int, Array], output: Given) -> dict[int, Array]:
        done = replay(node, values)
        if done is not None:
            wide = done.dtype == "float64"
            return {
                slot: value if wide or self.shaker is None else self.shaker.output(value, epsilon_of(done.dtype))
                for slot, value in done.outputs.items()
            }
        given = {slot: value for slot in node.outputs if (value := output(run, node, slot)) is not None}
        if self.shaker is None:
            return given
        if draws(node) and (node.bare_type in _DRAWS_ALONE or node.bare_type.startswith("rand")):
            return {slot: self.shaker.begin(value) for slot, value in given.items()}
        return {slot: self.shaker.output(value, epsilon_of(node.outputs[slot].dtype)) for slot, value in given.items()}
