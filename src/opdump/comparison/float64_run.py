"""Runs a program in float64, step after step. Each step begins with the end state of the previous step, not with recorded values.

So rounding does not accumulate. For example, the float32 rounding of a gradient that is mathematically zero, and its effect on an optimizer, are absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import numpy as np

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import Array, difference, epsilon_of, has_elements, unshaped_difference
from opdump.comparison.end_state import EndState, ends_of, forget_the_rest, outliving, outputs_read, same_ends
from opdump.comparison.execution import (
    Execution,
    Given,
    StepInputs,
    draws,
    recorded,
    recorded_input,
    recorded_output,
    replay,
)
from opdump.comparison.memory import Carried, Named, StateMapping, StateTracker
from opdump.comparison.nodes import Node, Place, storages_of
from opdump.comparison.trace import Trace, lasting
from opdump.records import TensorRecord

Noise = Literal["begin", "outputs", "all"]
"""Where last bits are changed: in the initial values of a program, in outputs of operators that do not run in float64, or in both and all other outputs,
in the recorded types.
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
"""Types of operators that only draw random numbers, besides those whose names begin with `rand`."""
_SHAKEN_BITS: Final = 2.0
"""The noise of initial values, in units of the rounding of float64."""


class RoundingNoise:
    """Changes the last bits of numbers, to measure the effect of rounding."""

    def __init__(self, kind: Noise, seed: int, most: float = math.inf) -> None:
        self._kind = kind
        self._most = most
        """The largest relative change, for types that round more coarsely."""
        self._random = np.random.default_rng(seed)

    def begin(self, values: Array) -> Array:
        """Initial values of a program, with different last bits of float64."""
        return self._moved(values, _SHAKEN_BITS * epsilon_of("float64")) if self._kind == "begin" else values

    def leaf(self, values: Array, record: TensorRecord) -> Array:
        """Values that no operator made: as in `begin`, or with different last bits of the recorded type."""
        return self.recorded_type(values, record) if self._kind == "all" else self.begin(values)

    def output(self, values: Array, epsilon: float) -> Array:
        """The output of an operator that rounds to `epsilon`, with different last bits."""
        return self._moved(values, min(epsilon, self._most)) if self._kind != "begin" else values

    def recorded_type(self, values: Array, record: TensorRecord) -> Array:
        """A float64 output with different last bits of the recorded type."""
        return self._moved(values, min(epsilon_of(record.dtype), self._most)) if self._kind == "all" else values

    def _moved(self, values: Array, epsilon: float) -> Array:
        """The values with different last bits. Whole numbers stay unchanged: they are counts or fill values, or a program relies on an exact 1."""
        if values.dtype.kind not in "fc":
            return values
        with np.errstate(invalid="ignore"):
            moved = values * (1 + epsilon * self._random.uniform(-1, 1, values.shape))
            return np.where(values == np.round(values), values, moved)


@dataclass(frozen=True, slots=True)
class KeptValues:
    """What to keep of a step that has run. Everything else is dropped as soon as no operator reads it."""

    storages: AbstractSet[int]
    """Storages whose values at the end are kept."""
    wanted: AbstractSet[int] = frozenset()
    """Storages that the next step uses."""
    nodes: AbstractSet[int] = frozenset()
    """Nodes whose inputs and outputs are kept."""
    leaves: StepInputs | None = None
    """Collects values that no operator made. If set, the inputs and outputs of nodes that cannot be run again are kept too."""


@dataclass(slots=True)
class Float64Run:
    """Runs one program in float64."""

    shaker: RoundingNoise | None = None
    _held: dict[int, Named] = field(default_factory=dict)
    """The contents of the storages that the next step uses."""

    @property
    def left(self) -> Mapping[int, Named]:
        """The contents that the latest step left for the next one, by storage of the latest step."""
        return self._held

    def step(self, run: Execution, carried: Carried, leaf: Given, output: Given, asked: KeptValues) -> bool:
        """Run a step. Return False if an input is unknown, unless its operator overwrites it: then the recorded outputs are used.

        carried   the state from the step before
        leaf      returns an input that no operator and no earlier step made
        output    returns an output of a node that cannot be run again

        Afterwards the execution has what `asked` names, and what `ends_of` needs.
        """
        read = outputs_read(run.trace)
        for node, values in run.nodes(partial(self._begin, carried, leaf), asked.storages | asked.wanted):
            unknown = [slot for slot, record in node.inputs.items() if slot not in values and not record.skip]
            if not all(_is_overwritten(node, slot) for slot in unknown):
                return False
            run.inputs[node.index] = values
            self._keep_leaves(run, node, values, asked)
            again = None if unknown else self._run_again(node, values)
            is_asked = node.index in asked.nodes or (again is None and asked.leaves is not None)
            run.outputs[node.index] = again or self._given(node, recorded_output if unknown else output)
            run.write(node, run.outputs[node.index])
            if not is_asked:
                forget_the_rest(run, node, read)
        for storage, before in carried.storages.items():
            if before in self._held:
                run.memory.complete(storage, self._held[before])
        self._held = _contents(run, asked.wanted)
        return True

    @staticmethod
    def _keep_leaves(run: Execution, node: Node, values: Mapping[int, Array], asked: KeptValues) -> None:
        if asked.leaves is None:
            return
        for slot, value in values.items():
            if (node.index, slot) in run.leaf_reads:
                asked.leaves.add(node, slot, value)

    def _begin(self, carried: Carried, leaf: Given, node: Node, slot: int) -> Array | None:
        """The value of an input that no operator of the step made: what the step before left, or else the result of `leaf`."""
        before = self._held.get(carried.inputs.get((node.index, slot), -1))
        value = None if before is None else before.seen_as(node.inputs[slot])
        if value is None:
            value = leaf(node, slot)
            value = value if value is None or self.shaker is None else self.shaker.leaf(value, node.inputs[slot])
        return value

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

    def _given(self, node: Node, output: Given) -> dict[int, Array]:
        given = {slot: value for slot in node.outputs if (value := output(node, slot)) is not None}
        if self.shaker is None:
            return given
        if draws(node) and (node.bare_type in _DRAWS_ALONE or node.bare_type.startswith("rand")):
            return {slot: self.shaker.begin(value) for slot, value in given.items()}
        return {slot: self.shaker.output(value, epsilon_of(node.outputs[slot].dtype)) for slot, value in given.items()}


def _contents(run: Execution, storages: AbstractSet[int]) -> dict[int, Named]:
    return {storage: held for storage in storages if (held := run.memory.storage(storage)) is not None}


def _is_overwritten(node: Node, slot: int) -> bool:
    """Whether the operator overwrites an input, and its outputs are known: the dump may have the input only as it was afterwards."""
    memory = node.inputs[slot].memory
    return (
        memory is not None
        and memory.storage in storages_of(node.outputs.values())
        and all(map(has_elements, node.outputs.values()))
    )


# Decides whether the differences of two programs matter: both run in float64 from the same values, from the first step on, and their end states
# (parameters, states, losses; outputs if nothing is trained) are compared. The tolerance is measured by running both again with different last bits.

_SAME: Final = 1e-9
"""Relative: inputs that are this close are the same in float64."""
_CLOSE: Final = 1e-3
"""Relative: an initial value of A that is this close to B's is used for B."""

Following = Callable[[], tuple[Trace, Trace] | None]
"""Reads the next step; None if there is none."""


_TIMES: Final[Mapping[Noise, float]] = {"begin": 2.0**29, "outputs": 64.0}
"""How many times further than in a run with noise a value may move. Last bits of float32 have 2 ** 29 times the effect of last bits of float64, and
a constant may be rounded to float32 in only one of the programs.
"""

_SHAKEN: Final = 2
"""The number of runs with different last bits that measure the effect of rounding."""

_Traces = tuple[Trace, Trace]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of both programs. Pairs are for A and B."""

    traces: _Traces
    alignment: Alignment
    carried: tuple[Carried, Carried]
    """The state that each finds from the step before."""
    wanted: tuple[AbstractSet[int], AbstractSet[int]]
    """The storages that the next step uses again."""
    rewritten: tuple[AbstractSet[int], AbstractSet[int]]
    """The storages of these that the next step writes."""
    is_last: bool

    def lasting(self) -> tuple[set[int], set[int]]:
        """The storages that may outlive the step, in either of the programs."""
        in_a, in_b = (lasting(trace, is_last=self.is_last) for trace in self.traces)
        for here, there in self.alignment.storages.items():
            if here in in_a or there in in_b:
                in_a.add(here)
                in_b.add(there)
        return in_a, in_b

    def drawn(self) -> set[int]:
        """The nodes of A whose partners in B draw random numbers: B uses the numbers of A."""
        a_of = self.alignment.a_of
        return {a_of[node.index] for node in self.traces[1].nodes if node.index in a_of and draws(node)}


@dataclass(slots=True)
class _Both:
    """Runs both programs with the same noise, or without."""

    a: Float64Run
    b: Float64Run
    done: int = 0
    """The number of steps that have run."""
    failed: bool = False
    """Whether a step could not be run, so that its end state is unknown."""

    def ends(self, steps: Sequence[_Step]) -> tuple[EndState, EndState] | None:
        """The end states of both after the last of these steps; None if unknown."""
        found = None
        for step in steps[self.done :]:
            found = None if self.failed else self._step(step)
            self.failed = found is None
        self.done = len(steps)
        return found

    def _step(self, step: _Step) -> tuple[EndState, EndState] | None:
        (a, b), lasting_in = step.traces, step.lasting()
        first, second = Execution(a), Execution(b)
        leaves = StepInputs(first, step.alignment)
        asked = KeptValues(lasting_in[0], step.wanted[0], step.drawn(), leaves)
        if not self.a.step(first, step.carried[0], recorded_input, recorded_output, asked):
            return None
        values = _FromA(first, second, leaves, step.alignment)
        if not self.b.step(
            second, step.carried[1], values.leaf, values.output, KeptValues(lasting_in[1], step.wanted[1])
        ):
            return None
        return (
            ends_of(first, step.carried[0].held_before, step.rewritten[0]),
            ends_of(second, step.carried[1].held_before, step.rewritten[1]),
        )


Spreads = Mapping[Place, float]
"""By node and slot: how far rounding moves a tensor, as a root mean square."""


@dataclass(slots=True)
class _Own:
    """One of the programs, `side` of each pair, on its own values: unchanged, and with different last bits."""

    side: int
    most: float
    """The coarsest rounding that the programs chose."""
    _runs: Sequence[Float64Run] = field(init=False)
    _done: int = 0
    _failed: bool = False

    def __post_init__(self) -> None:
        shaken = (Float64Run(RoundingNoise("all", seed, self.most)) for seed in range(1, 1 + _SHAKEN))
        self._runs = [Float64Run(), *shaken]

    def spread(self, steps: Sequence[_Step], nodes: AbstractSet[int]) -> Spreads:
        """How far the inputs and outputs of these nodes of the last step move."""
        found: dict[Place, float] = {}
        for number in range(self._done, len(steps)):
            step, is_asked = steps[number], number == len(steps) - 1
            asked = KeptValues(frozenset(), step.wanted[self.side], nodes if is_asked else frozenset())
            plain: Mapping[Place, Array] = {}
            for simulation in self._runs:
                run = Execution(step.traces[self.side])
                if self._failed or not simulation.step(
                    run, step.carried[self.side], recorded_input, recorded_output, asked
                ):
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


def _values(run: Execution, nodes: AbstractSet[int]) -> Iterator[tuple[Place, Array]]:
    for index in nodes:
        yield from (((index, slot), value) for slot, value in run.outputs.get(index, {}).items())
        yield from (((index, ~slot), value) for slot, value in run.inputs.get(index, {}).items())


@dataclass(slots=True)
class Float64Check:
    """The steps so far, run in float64 when their end state is needed."""

    _added: list[tuple[_Traces, Alignment, Following]] = field(default_factory=list)
    _steps: list[_Step] = field(default_factory=list)
    """The steps up to the last one whose end state was needed."""
    _trackers: tuple[StateTracker, StateTracker] = field(default_factory=lambda: (StateTracker(), StateTracker()))
    _carried: list[tuple[Carried, Carried]] = field(default_factory=list)
    """The state that each step receives from the previous one: for the steps in `_steps`, and for the next one."""
    _plain: _Both = field(default_factory=lambda: _Both(Float64Run(), Float64Run()))
    _noisy: Mapping[Noise, _Both] = field(
        default_factory=lambda: {
            kind: _Both(Float64Run(RoundingNoise(kind, 1)), Float64Run(RoundingNoise(kind, 2))) for kind in _TIMES
        }
    )

    _own: dict[float, tuple[_Own, _Own]] = field(default_factory=dict)

    def then(self, a: Trace, b: Trace, alignment: Alignment, following: Following) -> None:
        """Add the next step. `following` returns the one after it."""
        self._added.append(((a, b), alignment, following))

    def outliving(self) -> tuple[set[int], set[int]]:
        """The storages of A and of B that outlive the latest step. A storage that the next step uses again also does if its counterpart does: it may be
        a parameter that only one of the programs trains.
        """
        self._follow()
        step = self._steps[-1]
        in_a, in_b = (outliving(trace, rewritten) for trace, rewritten in zip(step.traces, step.rewritten, strict=True))
        pairs = [pair for pair in step.alignment.storages.items() if pair[0] in in_a or pair[1] in in_b]
        return in_a | {here for here, _ in pairs if here in step.wanted[0]}, in_b | {
            there for _, there in pairs if there in step.wanted[1]
        }

    def state_mapping(self) -> StateMapping | None:
        """The values with which B would begin the latest step if A had left them; None in the first step, or if unknown."""
        self._follow()
        *before, step = self._steps
        if not before or self._plain.done == len(self._steps):
            return None
        self._plain.ends(before)
        if self._plain.failed:
            return None
        return StateMapping(step.traces[0], step.carried, (self._plain.a.left, self._plain.b.left))

    def comes_to_the_same(self) -> bool:
        """Whether both programs have the same end state in the latest step; False if it is unknown."""
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
        """How far rounding moves the inputs and outputs of these nodes of the latest step. Empty if unknown.

        Each program runs in float64 on its own recorded values, with and without different last bits of the recorded types, which change by at most
        `most`. Inputs are identified by the complement of their slot.
        """
        self._follow()
        one, other = self._own.setdefault(most, (_Own(0, most), _Own(1, most)))
        return one.spread(self._steps, nodes_a), other.spread(self._steps, nodes_b)

    def _with_noise(
        self, ends: tuple[EndState, EndState], kind: Noise, both: _Both
    ) -> tuple[EndState, EndState] | None:
        moved = both.ends(self._steps)
        if moved is None:
            return None
        return ends[0].with_noise(moved[0], _TIMES[kind]), ends[1].with_noise(moved[1], _TIMES[kind])

    def _follow(self) -> None:
        """Find out what each step added since the last call passes on to the next one."""
        for number, (traces, alignment, following) in enumerate(self._added):
            if number < len(self._steps):
                continue
            after = self._added[number + 1][0] if number + 1 < len(self._added) else following()
            for pair in (traces, after)[len(self._carried) - number :]:
                if pair is not None:
                    self._carried.append((self._trackers[0].step(pair[0]), self._trackers[1].step(pair[1])))
            in_a, in_b = self._carried[number + 1] if after is not None else (Carried(), Carried())
            wanted, rewritten = (in_a.wanted, in_b.wanted), (in_a.rewritten, in_b.rewritten)
            self._steps.append(_Step(traces, alignment, self._carried[number], wanted, rewritten, after is None))


@dataclass(frozen=True, slots=True)
class _FromA:
    """Initial values for B: A's, if they are as close as rounding."""

    first: Execution
    second: Execution
    leaves: StepInputs
    alignment: Alignment

    def leaf(self, node: Node, slot: int) -> Array | None:
        """The value of an input of B that no operator made."""
        record = node.inputs[slot]
        own = recorded(record)
        for value in self.leaves.of_b(node, slot):
            if own is None or _is_close(value, own, record):
                return value
        return own

    def output(self, node: Node, slot: int) -> Array | None:
        """An output of an operator of B that cannot be run again: A's output if the inputs are the same."""
        partner = self.alignment.a_of.get(node.index)
        own = recorded(node.outputs[slot])
        if partner is None:
            return own
        inputs = self.first.inputs[partner]
        same = all(
            place in inputs and unshaped_difference(inputs[place], value).relative <= _SAME
            for place, value in self.second.inputs[node.index].items()
        )
        value = self.first.outputs[partner].get(slot)
        return value if same and value is not None and (own is None or value.shape == own.shape) else own


def _is_close(value: Array, own: Array, record: TensorRecord) -> bool:
    if value.shape != own.shape:
        return False
    if own.dtype.kind not in "fc":
        return bool(np.array_equal(value, own))
    return difference(own, value).relative <= max(_CLOSE, 2 * epsilon_of(record.dtype))
