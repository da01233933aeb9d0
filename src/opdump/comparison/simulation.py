"""A program in float64, step after step: each step begins with what the steps before left, and not with what was recorded.

So rounding does not gather in it: what float32 made of gradients that are zero by mathematics, and an optimizer of those, is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.carrying import Carried
from opdump.comparison.differences import epsilon_of
from opdump.comparison.ends import forget_the_rest, outputs_read
from opdump.comparison.execution import Execution, draws, replay
from opdump.comparison.leaves import Leaves
from opdump.comparison.lifetimes import lifetimes
from opdump.comparison.memory import Named
from opdump.comparison.nodes import Node
from opdump.records import TensorRecord

Array = NDArray[Any]
Given = Callable[[Execution, Node, int], Array | None]
"""What an input or an output of a node holds, in an execution that cannot tell by itself."""

Noise = Literal["begin", "outputs", "all"]
"""What has other last bits: what a program begins with, outputs of operators that are not run in float64, or both and all other outputs, in
the types that were recorded.
"""

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


class Shaker:
    """Moves the last bits of numbers: how far that goes shows what rounding can do."""

    def __init__(self, kind: Noise, seed: int, most: float = math.inf) -> None:
        self._kind = kind
        self._most = most
        """Of recorded types that round more coarsely, numbers are moved by so much."""
        self._random = np.random.default_rng(seed)

    def begin(self, values: Array) -> Array:
        """What a program begins with, with other last bits of float64."""
        return self._moved(values, _SHAKEN_BITS * epsilon_of("float64")) if self._kind == "begin" else values

    def leaf(self, values: Array, record: TensorRecord) -> Array:
        """What no operator made, as `begin` has it, or with other last bits of the type that was recorded."""
        return self.recorded_type(values, record) if self._kind == "all" else self.begin(values)

    def output(self, values: Array, epsilon: float) -> Array:
        """The output of an operator that was rounded to `epsilon`, with other last bits."""
        return self._moved(values, min(epsilon, self._most)) if self._kind != "begin" else values

    def recorded_type(self, values: Array, record: TensorRecord) -> Array:
        """An output that float64 gave, with other last bits of the type that was recorded; whole numbers count or fill."""
        if self._kind != "all" or values.dtype.kind not in "fc":
            return values
        with np.errstate(invalid="ignore"):
            moved = self._moved(values, min(epsilon_of(record.dtype), self._most))
            return np.where(values == np.round(values), values, moved)

    def _moved(self, values: Array, epsilon: float) -> Array:
        if values.dtype.kind not in "fc":
            return values
        moved: Array = values * (1 + epsilon * self._random.uniform(-1, 1, values.shape))
        return moved


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of a step once it has run. Everything else is forgotten as soon as no operator reads it."""

    storages: AbstractSet[int]
    """What these hold at the end."""
    wanted: AbstractSet[int] = frozenset()
    """Of these, what the next step finds again."""
    nodes: AbstractSet[int] = frozenset()
    """What these read and gave."""
    leaves: Leaves | None = None
    """Takes what no operator made; what nodes read and gave that could not be run again is asked with it."""


@dataclass(slots=True)
class Simulation:
    """One program."""

    shaker: Shaker | None = None
    _held: dict[int, Named] = field(default_factory=dict)
    """What storages hold that the next step finds again."""

    @property
    def left(self) -> Mapping[int, Named]:
        """What the latest step left that the next one finds again, by its storage there."""
        return self._held

    def step(self, run: Execution, carried: Carried, leaf: Given, output: Given, asked: Asked) -> bool:
        """Runs a step; False where an input is not known.

        carried   what it finds of the step before
        leaf      gives an input that no operator and no step before made
        output    gives an output of a node that cannot be run again

        Afterwards the execution has what is asked, and what `ends_of` asks for.
        """
        read = outputs_read(run.trace)
        ends = lifetimes(run.trace, asked.storages | asked.wanted)
        for node in run.trace.nodes:
            values = run.inputs[node.index] = {}
            for slot, record in node.inputs.items():
                if record.skip:
                    continue
                value = self._input(run, node, slot, carried, leaf)
                if value is None:
                    return False
                values[slot] = value
                if asked.leaves is not None and (node.index, slot) in run.leaf_reads:
                    asked.leaves.add(node, slot, value)
            outputs = self._run_again(node, values)
            is_asked = node.index in asked.nodes or (outputs is None and asked.leaves is not None)
            if outputs is None:
                outputs = self._given(run, node, output)
            run.outputs[node.index] = outputs
            run.write(node, outputs)
            if not is_asked:
                forget_the_rest(run, node, read)
            run.memory.release(ends, node.index)
        for storage, before in carried.storages.items():
            if before in self._held:
                run.memory.complete(storage, self._held[before])
        self._held = {storage: held for storage in asked.wanted if (held := run.memory.storage(storage)) is not None}
        return True

    def _input(self, run: Execution, node: Node, slot: int, carried: Carried, leaf: Given) -> Array | None:
        if run.is_made(node, slot):
            return run.look_up(node, slot, None)
        before = self._held.get(carried.inputs.get((node.index, slot), -1))
        value = None if before is None else before.seen_as(node.inputs[slot])
        if value is None:
            value = leaf(run, node, slot)
            value = value if value is None or self.shaker is None else self.shaker.leaf(value, node.inputs[slot])
        return run.look_up(node, slot, value)

    def _run_again(self, node: Node, values: dict[int, Array]) -> dict[int, Array] | None:
        done = replay(node, values)
        if done is None:
            return None
        wide = done.dtype == "float64"
        if self.shaker is None:
            return dict(done.outputs)
        return {
            slot: self.shaker.recorded_type(value, node.outputs[slot])
            if wide and slot in node.outputs
            else value
            if wide
            else self.shaker.output(value, epsilon_of(done.dtype))
            for slot, value in done.outputs.items()
        }

    def _given(self, run: Execution, node: Node, output: Given) -> dict[int, Array]:
        given = {slot: value for slot in node.outputs if (value := output(run, node, slot)) is not None}
        if self.shaker is None:
            return given
        if draws(node) and (node.bare_type in _DRAWS_ALONE or node.bare_type.startswith("rand")):
            return {slot: self.shaker.begin(value) for slot, value in given.items()}
        return {slot: self.shaker.output(value, epsilon_of(node.outputs[slot].dtype)) for slot, value in given.items()}
