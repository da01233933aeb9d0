"""A program in float64, step after step: each step begins with what the steps before left, and not with what was recorded.

So rounding does not gather in it: what float32 made of gradients that are zero by mathematics, and an optimizer of those, is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import difference, epsilon_of, unshaped_difference
from opdump.comparison.ends import Ends, ends_of, forget_the_rest, outliving, outputs_read, same_ends
from opdump.comparison.execution import Execution, Leaves, draws, recorded, replay
from opdump.comparison.memory import Carried, Carrying, Counterparts, Named
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, lasting, lifetimes
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


# Whether the differences of two programs matter in the end.
#
# Two programs may part and meet again: a factor that is applied before a product in one and after it in the other. So before operators are
# accused, both programs are run in float64 from the same values, from the first step on, and what remains of the step is compared: the
# parameters and states, losses, and where nothing is trained the outputs. How far apart it may be is measured: both run again with other
# last bits, and what moves by that is noise.

_SAME: Final = 1e-9
"""Relative: inputs that are as close are the same in float64."""
_CLOSE: Final = 1e-3
"""Relative: as close as this, what A begins with stands for what B begins with."""

Following = Callable[[], tuple[Trace, Trace] | None]
"""Reads the step after one; None where there is none."""


_TIMES: Final[Mapping[Noise, float]] = {"begin": 2.0**29, "outputs": 64.0}
"""How much farther than in a run with noise something may go. What begins with other last bits of float64 goes 2 ** 29 times as far with other
last bits of float32, which constants of a program have that are rounded in one and not in the other.
"""

_SHAKEN: Final = 2
"""So many runs with other last bits show how far rounding goes."""

_Traces = tuple[Trace, Trace]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of both programs; pairs are of A and B."""

    traces: _Traces
    alignment: Alignment
    carried: tuple[Carried, Carried]
    """What each finds of the step before."""
    wanted: tuple[AbstractSet[int], AbstractSet[int]]
    """The storages that the next step finds again."""
    rewritten: tuple[AbstractSet[int], AbstractSet[int]]
    """Those of them that the next step writes into."""
    is_last: bool

    def lasting(self) -> tuple[set[int], set[int]]:
        """The storages that may be there after the step, in either of the programs."""
        in_a, in_b = (lasting(trace, is_last=self.is_last) for trace in self.traces)
        for here, there in self.alignment.storages.items():
            if here in in_a or there in in_b:
                in_a.add(here)
                in_b.add(there)
        return in_a, in_b

    def drawn(self) -> set[int]:
        """The nodes of A whose partners draw random numbers, which are to be A's."""
        a_of = self.alignment.a_of
        return {a_of[node.index] for node in self.traces[1].nodes if node.index in a_of and draws(node)}


@dataclass(slots=True)
class _Both:
    """Both programs, with or without noise."""

    a: Simulation
    b: Simulation
    done: int = 0
    """How many steps have run."""
    failed: bool = False
    """Whether one could not be run: what it left is not known."""

    def ends(self, steps: Sequence[_Step]) -> tuple[Ends, Ends] | None:
        """What remains of both after the last of these steps; None where that cannot be found out."""
        found = None
        for step in steps[self.done :]:
            found = None if self.failed else self._step(step)
            self.failed = found is None
        self.done = len(steps)
        return found

    def _step(self, step: _Step) -> tuple[Ends, Ends] | None:
        (a, b), lasting_in = step.traces, step.lasting()
        first, second = Execution(a), Execution(b)
        leaves = Leaves(first, step.alignment)
        asked = Asked(lasting_in[0], step.wanted[0], step.drawn(), leaves)
        if not self.a.step(first, step.carried[0], _own_input, _own_output, asked):
            return None
        values = _FromA(first, leaves, step.alignment)
        if not self.b.step(second, step.carried[1], values.leaf, values.output, Asked(lasting_in[1], step.wanted[1])):
            return None
        return (
            ends_of(first, step.carried[0].held_before, step.rewritten[0]),
            ends_of(second, step.carried[1].held_before, step.rewritten[1]),
        )


Spreads = Mapping[tuple[int, int], float]
"""By node and slot: how far rounding moves a tensor, by root mean square."""


@dataclass(slots=True)
class _Own:
    """One of the programs, `side` of each pair, on its own values: as it is, and with other last bits."""

    side: int
    most: float
    """The coarsest rounding that is the programs' choice."""
    _runs: Sequence[Simulation] = field(init=False)
    _done: int = 0
    _failed: bool = False

    def __post_init__(self) -> None:
        shaken = (Simulation(Shaker("all", seed, self.most)) for seed in range(1, 1 + _SHAKEN))
        self._runs = [Simulation(), *shaken]

    def spread(self, steps: Sequence[_Step], nodes: AbstractSet[int]) -> Spreads:
        """How far what these nodes of the last step read and give is moved."""
        found: dict[tuple[int, int], float] = {}
        for number in range(self._done, len(steps)):
            step, is_asked = steps[number], number == len(steps) - 1
            asked = Asked(frozenset(), step.wanted[self.side], nodes if is_asked else frozenset())
            plain: Mapping[tuple[int, int], Array] = {}
            for simulation in self._runs:
                run = Execution(step.traces[self.side])
                if self._failed or not simulation.step(run, step.carried[self.side], _own_input, _own_output, asked):
                    self._failed = True
                    break
                values = dict(_values(run, asked.nodes))
                for place, value in plain.items():
                    if place in values and values[place].shape == value.shape:
                        moved = difference(value, values[place]).absolute
                        found[place] = max(found.get(place, 0.0), moved)
                plain = plain or values
        self._done = len(steps)
        return {} if self._failed else found


def _values(run: Execution, nodes: AbstractSet[int]) -> Iterator[tuple[tuple[int, int], Array]]:
    for index in nodes:
        yield from (((index, slot), value) for slot, value in run.outputs.get(index, {}).items())
        yield from (((index, ~slot), value) for slot, value in run.inputs.get(index, {}).items())


@dataclass(slots=True)
class Rehearsal:
    """The steps so far, run in float64 when somebody asks what they come to."""

    _added: list[tuple[_Traces, Alignment, Following]] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    """Those of the steps that somebody asked for."""
    _carrying: tuple[Carrying, Carrying] = field(default_factory=lambda: (Carrying(), Carrying()))
    _carried: list[tuple[Carried, Carried]] = field(default_factory=list)
    """What each step finds of the one before; of one more than have run."""
    _plain: _Both = field(default_factory=lambda: _Both(Simulation(), Simulation()))
    _noisy: Mapping[Noise, _Both] = field(
        default_factory=lambda: {
            kind: _Both(Simulation(Shaker(kind, 1)), Simulation(Shaker(kind, 2))) for kind in _TIMES
        }
    )

    _own: dict[float, tuple[_Own, _Own]] = field(default_factory=dict)

    def then(self, a: Trace, b: Trace, alignment: Alignment, following: Following) -> None:
        """The next step; `following` gives the one after it."""
        self._added.append(((a, b), alignment, following))

    def outliving(self) -> tuple[set[int], set[int]]:
        """The storages of A and of B that outlive the latest step. One that the next step finds again outlives it too if its counterpart
        does: a parameter that one of the programs does not train.
        """
        self._follow()
        step = self._steps[-1]
        in_a, in_b = (outliving(trace, rewritten) for trace, rewritten in zip(step.traces, step.rewritten, strict=True))
        pairs = [pair for pair in step.alignment.storages.items() if pair[0] in in_a or pair[1] in in_b]
        return in_a | {here for here, _ in pairs if here in step.wanted[0]}, in_b | {
            there for _, there in pairs if there in step.wanted[1]
        }

    def counterparts(self) -> Counterparts | None:
        """What B would begin the latest step with if A had left it; None in the first step, or where that cannot be found out."""
        self._follow()
        *before, step = self._steps
        if not before or self._plain.done == len(self._steps):
            return None
        self._plain.ends(before)
        if self._plain.failed:
            return None
        return Counterparts(step.traces[0], step.carried, (self._plain.a.left, self._plain.b.left))

    def comes_to_the_same(self) -> bool:
        """Whether both programs leave the same at the end of the latest step; False too where that cannot be found out."""
        self._follow()
        alignment = self._steps[-1].alignment
        found = self._plain.ends(self._steps)
        if found is None or same_ends(*found, alignment):
            return found is not None
        for kind, both in self._noisy.items():
            found = self._with_noise(found, kind, both)
            if found is None or same_ends(*found, alignment):
                return found is not None
        return False

    def spread(self, nodes_a: AbstractSet[int], nodes_b: AbstractSet[int], most: float) -> tuple[Spreads, Spreads]:
        """How far rounding moves what these nodes of the latest step read and give: each program from its own recorded values, in float64, with
        and without other last bits of the recorded types, or of types that round by `most`. Inputs have the complement of their slot. Empty
        where it cannot be found out.
        """
        self._follow()
        one, other = self._own.setdefault(most, (_Own(0, most), _Own(1, most)))
        return one.spread(self._steps, nodes_a), other.spread(self._steps, nodes_b)

    def _with_noise(self, ends: tuple[Ends, Ends], kind: Noise, both: _Both) -> tuple[Ends, Ends] | None:
        moved = both.ends(self._steps)
        if moved is None:
            return None
        return ends[0].with_noise(moved[0], _TIMES[kind]), ends[1].with_noise(moved[1], _TIMES[kind])

    def _follow(self) -> None:
        """Finds out of the steps since the last time what goes from each to the next."""
        for number, (traces, alignment, following) in enumerate(self._added):
            if number < len(self._steps):
                continue
            after = self._added[number + 1][0] if number + 1 < len(self._added) else following()
            for pair in (traces, after)[len(self._carried) - number :]:
                if pair is not None:
                    self._carried.append((self._carrying[0].step(pair[0]), self._carrying[1].step(pair[1])))
            in_a, in_b = self._carried[number + 1] if after is not None else (Carried(), Carried())
            wanted, rewritten = (in_a.wanted, in_b.wanted), (in_a.rewritten, in_b.rewritten)
            self._steps.append(_Step(traces, alignment, self._carried[number], wanted, rewritten, after is None))


@dataclass(frozen=True, slots=True)
class _FromA:
    """What B begins with is what A began with, where that is as close as rounding."""

    first: Execution
    leaves: Leaves
    alignment: Alignment

    def leaf(self, _: Execution, node: Node, slot: int) -> Array | None:
        """What an input of B holds that nothing made."""
        record = node.inputs[slot]
        own = recorded(record)
        for value in self.leaves.of_b(node, slot):
            if own is None or _is_close(value, own, record):
                return value
        return own

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
