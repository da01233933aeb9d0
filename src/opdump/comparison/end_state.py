"""Compares the end states of a step of two programs: parameters, states, losses and outputs.

A state may be a part of a state of the other program, have another name, or be transposed. It is found by its elements, because in float64
no two numbers are equal by chance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from opdump.checks.not_finite import has_nan
from opdump.checks.not_finite import not_finite as count_of_not_finite
from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import Array, Difference, Elements, difference
from opdump.comparison.execution import Execution, recorded
from opdump.comparison.memory import Named
from opdump.comparison.nodes import Node, Place, Suspect, is_of_jax, is_of_mindspore, may_leave_results, storages_of
from opdump.comparison.step_statistics import inputs_of
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.records import TensorRecord

_READ_AS_NUMBERS: Final = frozenset({"ones_like", "_local_scalar_dense"})
"""Operators that read losses: the backward pass begins with one, or the program reads the number."""

_SAME: Final = 2e-7
"""Relative tolerance, far above rounding in float64: the size of the rounding of constants to float32."""


@dataclass(frozen=True, slots=True)
class End:
    """A tensor of the end state."""

    values: Array
    scale: float
    """The size of the change by the step."""
    lasts: bool = True
    """Whether it is known to be a parameter or a state. Programs may lack others, such as data or gradients."""
    noise: float = 0.0
    """How far rounding may move an element."""

    @property
    def is_counter(self) -> bool:
        """Whether it counts steps: programs have one counter or several."""
        return self.values.size <= 1 or self.values.dtype.kind not in "fc"

    @property
    def tolerance(self) -> float:
        return (_SAME * self.scale if math.isfinite(self.scale) else 0.0) + self.noise


@dataclass(frozen=True, slots=True)
class EndState:
    """The end state of a step of one program."""

    states: Mapping[int, End] = field(default_factory=dict)
    """Contents of storages that existed before the step."""
    made: Mapping[int, End] = field(default_factory=dict)
    """Contents of storages that the step made. The next step, if any, shows which of them the program keeps."""
    numbers: Sequence[End] = ()
    """Losses: values from which the backward pass begins, and numbers that the program reads."""
    outputs: Mapping[Place, End] = field(default_factory=dict)
    """Outputs that no operator reads, by node and slot; of a training only losses."""

    def __iter__(self) -> Iterator[End]:
        """All ends, in the same order for two runs of one program."""
        yield from (*self.states.values(), *self.made.values(), *self.numbers, *self.outputs.values())

    def all(self) -> Iterator[tuple[int, End]]:
        """The ends in storages."""
        yield from self.states.items()
        yield from self.made.items()

    def with_noise(self, other: EndState, times: float) -> EndState:
        """These ends, with noise: `times` their distance to `other`, the ends of the same program with other last bits."""
        return EndState(
            {key: _with_noise(end, other.states[key], times) for key, end in self.states.items()},
            {key: _with_noise(end, other.made[key], times) for key, end in self.made.items()},
            [_with_noise(*pair, times) for pair in zip(self.numbers, other.numbers, strict=True)],
            {key: _with_noise(end, other.outputs[key], times) for key, end in self.outputs.items()},
        )


def ends_of(run: Execution, carried: AbstractSet[int], rewritten: AbstractSet[int]) -> EndState:
    """The end state. `carried` has the storages with contents of earlier steps, `rewritten` those that the next step changes."""
    trace = run.trace
    lasting = carried | rewritten | storages_of(trace.finals.values())
    lasting |= storages_of(held.place for name, held in run.leaves.items() if names_a_state(name) and held.place)
    lasting |= trained(trace)
    lasting -= gradients(trace)
    states: dict[int, End] = {}
    made: dict[int, End] = {}
    for storage, held in run.memory.storages():
        end = end_of(run, storage, held)
        phases = {trace.nodes[index].op.phase for index in run.memory.last_writers(storage)}
        # What the program makes in its first step may last too, for example parameters.
        found = states if storage in run.leaf_storages else made
        found[storage] = replace(end, lasts=storage in lasting and bool(phases - {"backward"}))
    return EndState(states, made, list(_numbers(run)), dict(_outputs(run)))


def trained(trace: Trace) -> set[int]:
    """The storages that the forward pass reads and an optimizer writes: parameters, including those made in the step."""
    read, written = set(), set()
    for node in trace.nodes:
        if node.op.phase == "forward":
            read |= storages_of(node.inputs.values())
        elif node.op.phase == "optimizer":
            written |= storages_of(node.outputs.values())
    return read & written


def gradients(trace: Trace) -> set[int]:
    """The storages that the backward pass makes. A program need not keep them; if it uses one again, the next step shows it."""
    first: dict[int, str] = {}
    for node in trace.nodes:
        for storage in storages_of((*node.inputs.values(), *node.outputs.values())):
            first.setdefault(storage, node.op.phase)
    return {storage for storage, phase in first.items() if phase == "backward"}


def end_of(run: Execution, storage: int, held: Named) -> End:
    """The end in a storage, not marked as lasting."""
    before = run.leaf_storages.get(storage)
    values = held.values if held.known is None or held.known.all() else held.values[held.known]
    return End(values, _size(values) if before is None else _size_of_change(before, held), lasts=False)


def of_no_storage(run: Execution) -> list[End]:
    """The ends outside storages: losses, and outputs."""
    return [*_numbers(run), *dict(_outputs(run)).values()]


def forget_the_rest(run: Execution, node: Node, read: Collection[Place]) -> None:
    """Drops the inputs and outputs of a node that `ends_of` does not need; `read` is the result of `outputs_read`."""
    if not read_as_number(node):
        run.inputs[node.index] = {}
    if any((node.index, slot) in read for slot in node.outputs):
        run.outputs[node.index] = {}


def read_as_number(node: Node) -> bool:
    """Whether the input of the node may be a loss."""
    return node.bare_type in _READ_AS_NUMBERS


def outputs_read(trace: Trace) -> set[Place]:
    """The outputs that any node reads."""
    return {maker for node in trace.nodes for maker in node.makers.values()}


def same_ends(first: EndState, second: EndState, alignment: Alignment) -> bool:
    """Whether both programs end in the same state, within rounding. False if there is nothing to compare."""
    return (
        _same_states(first, second, alignment)
        and _same_numbers(first.numbers, second.numbers)
        and all(_is_output(end, place, second.outputs, alignment) for place, end in first.outputs.items())
        and bool(first.numbers or first.outputs or any(end.lasts for _, end in first.all()))
    )


def _same_states(first: EndState, second: EndState, alignment: Alignment) -> bool:
    """Whether the lasting ends of each program are in the other, in the matched storage or elsewhere."""
    in_a, in_b = _Side(dict(first.all())), _Side(dict(second.all()))
    for storage, end in in_a.ends.items():
        there = alignment.storages.get(storage)
        other = None if there is None else in_b.ends.get(there)
        if there is not None and other is not None:
            same = is_same(end, other)
            in_a.compared[storage] = in_b.compared[there] = same
    return in_a.is_in(in_b) and in_b.is_in(in_a)


@dataclass(frozen=True, slots=True)
class _Side:
    """The contents of the storages of one program."""

    ends: Mapping[int, End]
    compared: dict[int, bool] = field(default_factory=dict)
    """For storages that both programs have: whether the contents are the same."""

    def is_in(self, other: _Side) -> bool:
        """Whether all lasting ends are somewhere in the other program."""
        lasting = {storage: end for storage, end in self.ends.items() if end.lasts and not self.compared.get(storage)}
        # Its matched storage holds something else: search only ends that do not agree with their own match.
        moved = [end for storage, end in lasting.items() if storage in self.compared]
        # A counter without a matched storage is not searched for.
        others = [end for storage, end in lasting.items() if storage not in self.compared and not end.is_counter]
        left = [end for storage, end in other.ends.items() if not (end.lasts and other.compared.get(storage))]
        return _are_among(moved, left) and _are_among(others, [*other.ends.values()])


def _are_among(ends: Sequence[End], others: Sequence[End]) -> bool:
    """Whether all elements of these ends are in the others."""
    if not ends:
        return True
    elements = Elements([(end.values, end.tolerance) for end in others])
    return all(elements.have(end.values, end.tolerance, is_noise=end.noise > end.scale) for end in ends)


def _same_numbers(first: Sequence[End], second: Sequence[End]) -> bool:
    """Whether the numbers are the same. If their counts differ, one program prints more or splits the batch, so they are not compared."""
    return len(first) != len(second) or (_are_among(first, second) and _are_among(second, first))


def _is_output(end: End, place: Place, others: Mapping[Place, End], alignment: Alignment) -> bool:
    there = alignment.b_of.get(place[0])
    partner = None if there is None else others.get((there, place[1]))
    if partner is not None and is_same(end, partner):
        return True
    return any(is_same(_sorted(end), _sorted(other)) for other in others.values())


def _sorted(end: End) -> End:
    return replace(end, values=np.sort(end.values, axis=None))


def is_same(one: End, other: End) -> bool:
    """Whether both are the same within rounding."""
    x, y = one.values.reshape(-1), other.values.reshape(-1)
    if x.size != y.size:
        return False
    if x.dtype.kind in "biu" and y.dtype.kind in "biu":
        return bool(np.array_equal(x, y))
    beyond = _distance(x, y) - max(one.noise, other.noise)
    # If no value of an end is finite, its size is infinite: then only the same NaN and infinities are the same.
    scales = [scale for scale in (one.scale, other.scale) if math.isfinite(scale)]
    return _size(beyond.clip(min=0.0)) <= _SAME * max(scales, default=0.0)


def _distance(one: Array, other: Array) -> Array:
    """The distance of each element. NaN at the same place, or the same infinity, is not a difference."""
    with np.errstate(invalid="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        apart: Array = np.where(same, 0.0, np.abs(one - other))
    return np.asarray(np.nan_to_num(apart, nan=math.inf, posinf=math.inf))


def _with_noise(end: End, moved: End, times: float) -> End:
    """The end with the effect of other last bits. If these lead to NaN or an infinity, they show nothing about rounding."""
    if end.values.size == 0 or end.values.dtype.kind not in "fc" or end.values.shape != moved.values.shape:
        return end
    farthest = float(_distance(end.values, moved.values).max())
    return replace(end, noise=max(end.noise, times * farthest)) if math.isfinite(farthest) else end


def _numbers(run: Execution) -> Iterator[End]:
    for node in run.trace.nodes:
        if read_as_number(node):
            for slot, value in run.inputs[node.index].items():
                if (node.index, slot) in run.writers and value.ndim == 0 and value.dtype.kind == "f":
                    yield End(value, _size(value))


def _outputs(run: Execution) -> Iterator[tuple[Place, End]]:
    """The outputs that no operator reads, of a training only those that `_is_result_of_training`."""
    read, trains = outputs_read(run.trace), _trains(run.trace)
    for node in run.trace.nodes:
        if not any((node.index, slot) in read for slot in node.outputs):
            for slot, value in run.outputs[node.index].items():
                if not trains or _is_result_of_training(node, value):
                    maker = node.makers.get(slot, (node.index, slot))[0] if node.op.repeats_operators else node.index
                    yield (node.index, slot), End(value, _size_of_update(run.trace.nodes[maker], value))


def _is_result_of_training(node: Node, value: Array) -> bool:
    """Whether an output that no operator reads is a result of a compiled function of JAX, a new array of an optimizer, or a loss whose backward pass
    does not read it.
    """
    if node.op.repeats_operators:
        return True
    if node.op.phase == "optimizer":
        return is_of_jax(node)
    if node.op.phase != "forward" or value.ndim or value.dtype.kind != "f":
        return False
    return is_of_jax(node) or is_of_mindspore(node) or node.op.kernel.startswith("tf::")


def _size_of_update(node: Node, value: Array) -> float:
    """The size of a value; of an updated parameter, the size of the change."""
    given = [record for slot, record in node.inputs.items() if slot not in node.makers and record.shape == value.shape]
    if node.op.phase != "optimizer" or len(given) != 1 or (before := recorded(given[0])) is None:
        return _size(value)
    return _size(value - before)


def _trains(trace: Trace) -> bool:
    return not all(map(may_leave_results, trace.nodes))


def _size_of_change(before: Named, after: Named) -> float:
    size = min(len(before.values), len(after.values))
    x, y = before.values[:size], after.values[:size]
    if before.known is not None and after.known is not None:
        both = before.known[:size] & after.known[:size]
        x, y = x[both], y[both]
    if not x.size or x.dtype.kind not in "fc" or y.dtype.kind not in "fc":
        return _size(after.values)
    with np.errstate(invalid="ignore"):
        return _size(y - x)


def _size(values: Array) -> float:
    """The root mean square of the finite values; infinite if no value is finite."""
    magnitudes = np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64, copy=False))
    finite = magnitudes[np.isfinite(magnitudes)]
    if values.size and not finite.size:
        return math.inf
    top = float(finite.max()) if finite.size else 0.0
    return top * math.sqrt(float(np.mean(np.square(finite / top)))) if top else 0.0


# Finds the ends of a run of B that are not among the float64 ends of A.

_NEGLIGIBLE: Final = 1e-9
"""Changes below this share of a typical change by the step are rounding: gradients that are mathematically zero, and what an optimizer makes of
them.
"""


_COARSE: Final = 1e-3
"""Relative to the change by a step: most faults change more, and rounded constants less."""


class ExpectedEndState:
    """The ends of A: lasting `storages`, and `others` (losses, and outputs if nothing is trained). `is_coarse` allows larger differences."""

    def __init__(self, storages: Sequence[End], others: Sequence[End], *, is_coarse: bool) -> None:
        self._is_coarse = is_coarse
        scales = [end.scale for end in storages if end.scale > 0 and np.isfinite(end.scale)]
        self._least = _NEGLIGIBLE * float(np.median(scales)) if scales else 0.0
        self._storages, self._others = self._elements(storages), self._elements(others)

    def missed_by(self, storages: Mapping[int, End], others: Sequence[End]) -> Iterator[object]:
        """The ends of B that A lacks: storages by number, others by position. Counters are ignored."""
        for storage, end in storages.items():
            if not end.is_counter and not self._storages.have(end.values, self._tolerance(end)):
                yield storage
        for place, end in enumerate(others):
            if not self._others.have(end.values, self._tolerance(end)):
                yield "other", place

    def _elements(self, ends: Sequence[End]) -> Elements:
        return Elements([(end.values, self._tolerance(end)) for end in ends])

    def _tolerance(self, end: End) -> float:
        return (max(end.tolerance, _COARSE * end.scale) if self._is_coarse else end.tolerance) + self._least


# The end states of two programs that ran on the same values: parameters, buffers, optimizer states, averages.


@dataclass(frozen=True, slots=True)
class LastingTensor:
    """A tensor that both programs leave, represented as the input of a final node of each."""

    a: Node
    b: Node
    writers_a: frozenset[int]
    writers_b: frozenset[int]
    difference: Difference

    @property
    def records(self) -> tuple[TensorRecord, TensorRecord]:
        """The tensor in A, and in B."""
        return self.a.inputs[0], self.b.inputs[0]

    def outlives(self, storages_a: AbstractSet[int], storages_b: AbstractSet[int]) -> bool:
        """Whether its storages are in the given sets of A and of B."""
        return all(
            record.memory is not None and record.memory.storage in storages
            for record, storages in zip(self.records, (storages_a, storages_b), strict=True)
        )


def outliving(trace: Trace, rewritten: AbstractSet[int]) -> set[int]:
    """The storages that outlive a step: parameters, named states, and those that the next step rewrites; without gradients."""
    inputs = (record for node in trace.nodes for record in node.inputs.values())
    named = storages_of(record for record in inputs if names_a_state(leaf_name(record)))
    return (named | rewritten | storages_of(trace.finals.values()) | trained(trace)) - gradients(trace)


def remaining(reference: Execution, run: Execution, alignment: Alignment) -> Iterator[LastingTensor]:
    """The tensors that both programs leave: parameters by name, all others by storage."""
    a, b = reference.trace, run.trace
    seen: set[int] = set()
    for name, record in b.finals.items():
        before = a.finals.get(name)
        if before is None or record.memory is None or before.memory is None or before.shape != record.shape:
            continue
        node_a, node_b = _last(a, before), _last(b, record)
        first, second = reference.memory.read(node_a, 0), run.memory.read(node_b, 0)
        if first.values is not None and second.values is not None:
            seen.add(record.memory.storage)
            yield LastingTensor(node_a, node_b, first.writers, second.writers, difference(first.values, second.values))
    for here, there in alignment.storages.items():
        if there not in seen:
            yield from _left_in(reference, run, here, there)


def _left_in(reference: Execution, run: Execution, here: int, there: int) -> Iterator[LastingTensor]:
    """The contents of a storage of A and one of B, without single numbers, such as counters."""
    first, second = reference.memory.storage(here), run.memory.storage(there)
    if first is None or second is None or first.dtype != second.dtype or len(first.values) != len(second.values):
        return
    known = None if first.known is None or second.known is None else first.known & second.known
    if known is None or known.sum() < 2:
        return
    yield LastingTensor(
        _last(reference.trace, _record_in(reference.trace, here)),
        _last(run.trace, _record_in(run.trace, there)),
        reference.memory.last_writers(here),
        run.memory.last_writers(there),
        difference(first.values[known], second.values[known]),
    )


def _last(trace: Trace, record: TensorRecord) -> Node:
    return Node(len(trace.nodes), record.op, {0: record}, {})


def _record_in(trace: Trace, storage: int) -> TensorRecord:
    """The last tensor in a storage that a step read or wrote."""
    return next(
        record
        for node in reversed(trace.nodes)
        for record in (*node.outputs.values(), *node.inputs.values())
        if record.memory is not None and record.memory.storage == storage
    )


# Finds NaN and infinities that only one run leaves, although both programs agree in float64. For example, the logarithm of a softmax that
# underflowed is minus infinity, but the log-softmax of the logits is finite.

_INFINITE: Final = 1
_NAN: Final = 2


def not_finite(a: Trace, b: Trace, alignment: Alignment) -> list[Suspect]:
    """The operators where NaN or infinities begin that reach the end state of only one of the runs."""
    left_a, left_b = _left(a), _left(b)
    odd_a, odd_b = _odd(a, left_a), _odd(b, left_b)
    if any(odd_a.values()) == any(odd_b.values()):
        return []
    in_b = any(odd_b.values())
    mine, other, partners = (b, a, alignment.a_of) if in_b else (a, b, alignment.b_of)
    all_mine, all_other, odd = (left_b, left_a, odd_b) if in_b else (left_a, left_b, odd_a)
    # The non-finite value may be one that only this program prints or keeps.
    places = [
        place
        for kind, found in odd.items()
        if len(found) > len(all_mine[kind]) - len(all_other.get(kind, ()))
        for place in found
    ]
    suspects = []
    for (index, slot), of_finite in sorted(_began(mine, other, partners, places).items()):
        run, rest = ("B", "A") if in_b else ("A", "B")
        node, partner = mine.nodes[index], partners.get(index)
        there = None if partner is None else other.nodes[partner]
        what = (
            f"in {run} it produces NaN or infinities{' from finite numbers' if of_finite else ''}, which reach the end of the step; "
            f"{rest} ends without any"
        )
        one, two = (there, node) if in_b else (node, there)
        suspects.append(Suspect("operator", one, two, "output", slot, math.inf, what))
    return suspects


def leave_as_finite(a: Trace, b: Trace) -> bool:
    """Whether both steps or neither leave NaN or infinities, by the columns of their statistics only."""
    return _leaves_odd(a) == _leaves_odd(b)


def _leaves_odd(trace: Trace) -> bool:
    columns = trace.columns
    rows = [trace.rows.of_output[place] for place in _ends(trace)]
    return bool((~np.isfinite(columns.numbers[rows]) & columns.held[rows]).any())


def _ends(trace: Trace) -> Sequence[Place]:
    told = trace.columns.told
    return trace.rows.ends(told if told.any() else np.ones_like(told))


def _left(trace: Trace) -> dict[str, list[Place]]:
    """The ends of a step under the empty name (with unread outputs if nothing is trained), and losses by the type of their reader."""
    trains = any(node.op.phase != "forward" for node in trace.nodes)
    found = {"": list(dict.fromkeys((*_ends(trace), *(() if trains else trace.rows.unread))))}
    for node in trace.nodes:
        if read_as_number(node):
            found.setdefault(node.bare_type, []).extend(
                maker for slot, maker in node.makers.items() if math.prod(node.inputs[slot].shape) == 1
            )
    return found


def _odd(trace: Trace, left: Mapping[str, Sequence[Place]]) -> dict[str, list[Place]]:
    """The outputs with NaN or infinities."""
    return {kind: [place for place in places if _oddness_of(trace, place)] for kind, places in left.items()}


def _began(trace: Trace, other: Trace, partners: Mapping[int, int], left: Sequence[Place]) -> dict[Place, bool]:
    """The outputs where NaN or infinities begin that the matched operator of the other run does not produce, and whether all inputs are finite.

    NaN and infinities in values from an earlier step, or in data, begin at no operator.
    """

    def is_shared(place: Place) -> bool:
        partner = partners.get(place[0])
        return partner is not None and _oddness_of(other, (partner, place[1])) >= _oddness_of(trace, place)

    found: dict[Place, bool] = {}
    seen: set[Place] = set()
    waiting = list(left)
    while waiting:
        place = waiting.pop()
        if place in seen or not _oddness_of(trace, place) or is_shared(place):
            continue
        seen.add(place)
        node = trace.nodes[place[0]]
        given = [
            slot for slot in inputs_of(node, place[1]) if not node.overwrites(slot) and _oddness(node.inputs[slot])
        ]
        makers = [node.makers[slot] for slot in given if slot in node.makers]
        if len(makers) == len(given) and all(is_shared(maker) for maker in makers):
            found[place] = not given
        waiting += makers
    return found


def _oddness_of(trace: Trace, place: Place) -> int:
    index, slot = place
    node = trace.nodes[index]
    record = node.outputs.get(slot)
    return 0 if record is None or slot in node.unspecified else _oddness(record)


def _oddness(record: TensorRecord) -> int:
    """Whether a tensor has NaN, infinities or neither (0), by its statistics, or by its elements if these do not show it."""
    if record.skip:
        return 0
    statistics = record.statistics
    count = count_of_not_finite(statistics)
    if count is None:
        values = recorded(record)
        if values is None or values.dtype.kind not in "fc" or np.isfinite(values).all():
            return 0
        return _NAN if np.isnan(values).any() else _INFINITE
    return 0 if count == 0 else _NAN if has_nan(statistics) else _INFINITE
