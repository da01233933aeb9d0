"""Finds the differences of two programs that change what they leave, and those without such an effect.

Both programs run in float64 from the same values. A difference has no effect if everything that B computes from it, on every path to the end of the
step, leads to a value that A has as well: for example a factor that one program applies before a product and the other after it. The other
differences are removed one after another: an operator of B gets the output of A's. A difference is a cause if that brings the end state of B closer to
A's.

Of A, memory keeps the initial values, the outputs that B takes over, the end state, and fingerprints of all other values. Of B, it keeps one run
without changes. A run with substituted operators computes only the values that these reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from opdump.comparison.accuracy import DIVERGENCE
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.causes import Sources, fingerprint, is_gradient_of
from opdump.comparison.differences import (
    Array,
    digest_of,
    epsilon_of,
    fill_as_infinity,
    has_elements,
    in_roundings,
    same_bits,
    unshaped_difference,
)
from opdump.comparison.end_state import (
    ExpectedEndState,
    end_of,
    forget_the_rest,
    of_no_storage,
    outputs_read,
    read_as_number,
)
from opdump.comparison.execution import Constants, Execution, StepInputs, draws, recorded, recorded_values, replay
from opdump.comparison.memory import Memory, Named
from opdump.comparison.nodes import Node, Place, Suspect, reachable, runs_in_any_order, storages_of, without
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord

Lasting = tuple[AbstractSet[int], AbstractSet[int]]

_MOST_RUNS: Final = 24
"""The largest number of runs in which a difference is tried."""
_MOST_LEFT: Final = 0.5
"""The largest share of B's differing end values that may still differ once the outputs of the causes are replaced."""
_ALIKE: Final = 0.5
"""Two inputs with at least this share of equal elements are the same input with some elements changed."""
_CLOSE: Final = 1e-3


class Substitution:
    """Both programs, run through the step in float64 on A's data, parameters and random numbers.

    reached   the operators of B that a difference reaches first
    lasting   the storages of A and of B that outlive the step
    """

    def __init__(self, a: Trace, b: Trace, alignment: Alignment, reached: AbstractSet[int], lasting: Lasting) -> None:
        self._a, self._b, self._alignment, self._reached, self._lasting = a, b, alignment, reached, lasting
        taken_over = {
            alignment.a_of[node.index]
            for node in b.nodes
            if node.index in alignment.a_of and (node.index in reached or draws(node))
        }
        self._first = _First(a, alignment, taken_over, lasting[0])
        self._goal = self._first.goals[0]
        """A coarse goal, to find large faults. If B reaches it, `_whole` replaces it with the exact goal."""
        self._leaf_values: dict[Place, Array | None] = {}
        self._missed_after: dict[AbstractSet[int], set[object]] = {}
        """The end values of B that A does not have, by the operators that were substituted."""
        self._outputs_read = outputs_read(b)

    def causes(self, differences: Sequence[AbstractSet[int]]) -> tuple[list[int], bool]:
        """The differences that bring B's end state closer to A's when A's outputs replace B's, the most effective first, and whether B then has no end
        value that A lacks. Empty if most of the end values that differed still do.
        """

        def missed_with(places: Iterable[int]) -> set[object]:
            return self._missed_with(self._whole, frozenset().union(*(differences[place] for place in places)))

        missed = first = self._whole.missed
        chosen: list[int] = []
        runs, before = 0, -1
        while missed and before != len(chosen):
            before = len(chosen)
            for place in range(len(differences)):
                if not missed or runs == _MOST_RUNS:
                    break
                if place not in chosen:
                    runs += 1
                    still = missed_with([*chosen, place])
                    if len(still) < len(missed):
                        missed = still
                        chosen.append(place)
        if len(missed) > _MOST_LEFT * len(first):
            return [], False
        # A difference that was chosen before the actual cause may be unnecessary.
        for place in list(chosen):
            rest = [each for each in chosen if each != place]
            if rest and len(missed_with(rest)) <= len(missed):
                chosen = rest
        if len(chosen) > 1:
            chosen.sort(key=lambda place: (len(missed_with([place])), place))
        return chosen, not missed

    def left_behind(self, differences: Sequence[AbstractSet[int]]) -> set[int]:
        """The differences from which every path leads to values that A has too. A difference is the set of the operators of B that it reaches first."""
        effects = self._effects()
        differing, users = effects.unknown | effects.other, effects.users
        ends = {
            index
            for index in differing
            if index not in users
            or _lasts(effects.run, self._b.nodes[index])
            or any(read_as_number(self._b.nodes[reader]) for reader in users[index])
        }

        def following(index: int) -> AbstractSet[int]:
            # A differing output may exist elsewhere in A. Then the outputs of its readers decide.
            return frozenset() if index in ends else users[index] & (effects.unknown | (effects.copies - ends))

        found = set()
        for place, reached in enumerate(differences):
            starts = reached & (effects.unknown | (effects.other - ends))
            # The outputs of random draws are taken from A, so the effect of their differences is unknown.
            if reachable(starts, following).isdisjoint(ends) and not any(
                draws(self._b.nodes[each]) for each in reached
            ):
                found.add(place)
        return found

    def _effects(self) -> _Effects:
        """Run B without changes, and follow the outputs that differ from A's."""
        run = Execution(self._b)
        found = _Effects(run)
        for node, values in run.nodes(self._leaf, self._lasting[1]):
            outputs = self._given(node, values, frozenset())
            run.write(node, outputs)
            writers = set().union(*(run.writers.get((node.index, slot), ()) for slot in node.inputs))
            writers &= found.unknown | found.other
            for writer in writers:
                found.users.setdefault(writer, set()).add(node.index)
            is_reached = node.index in self._reached
            if is_reached and self._is_other(node.index, outputs):
                found.other.add(node.index)
            if (node.moves or node.operator_class == "moves") and writers & found.other:
                found.other.add(node.index)
                found.copies.add(node.index)
            if (writers or is_reached) and not self._is_known(outputs):
                found.unknown.add(node.index)
        return found

    def sources(self) -> list[int]:
        """The operators of B, other than constants, that lead to end values which A lacks: A has their inputs but not their outputs.

        If they are on several lines, or some of them have no float outputs, values that A has in a different order also count as known, provided
        that only one line remains. The edges of a graph, for example, may be sorted.
        """
        constants = Constants(self._whole.run)
        strictly, loosely = (
            sources.of(self._writers_of_missed(), self._alignment.a_of, constants)
            for sources in (self._whole.sources, self._whole.beside_order)
        )
        one_line = [nodes for nodes in (strictly, loosely) if _is_one_line(self._b, nodes)]
        return next(
            (nodes for nodes in one_line if all(map(self._gives_floats, nodes))), next(iter(one_line), strictly)
        )

    def _writers_of_missed(self) -> list[int]:
        """The operators of B that wrote the end values that A lacks."""
        run, missed = self._whole.run, self._whole.missed
        found = [index for each in missed if isinstance(each, int) for index in run.memory.last_writers(each)]
        if any(not isinstance(each, int) for each in missed):
            numbers = (node.index for node in self._b.nodes if read_as_number(node))
            found += [maker for index in numbers for maker in self._whole.sources.makers.get(index, ())]
        return found

    def _gives_floats(self, index: int) -> bool:
        return any(value.dtype.kind in "fc" for value in self._whole.outputs[index].values())

    def makers_elsewhere(self, nodes: Iterable[int]) -> set[int]:
        """The matched operators of B that made the inputs of these nodes, directly or through moves, if A has their outputs too."""
        found: set[int] = set()
        waiting = list(nodes)
        while waiting:
            for maker, _ in self._b.nodes[waiting.pop()].makers.values():
                if maker not in found and maker not in self._whole.sources.unknown:
                    found.add(maker)
                    if self._b.nodes[maker].moves:
                        waiting.append(maker)
        return found & self._alignment.a_of.keys()

    def not_stepped(self) -> list[int]:
        """The optimizer operators of A that write a differing end value last, if no optimizer operator of B does."""
        a_of_storage = {there: here for here, there in self._alignment.storages.items()}
        found = set()
        for storage in self._whole.missed:
            if isinstance(storage, int) and storage in a_of_storage:
                theirs = self._whole.run.memory.last_writers(storage)
                ours = self._first.writers.get(a_of_storage[storage], frozenset())
                if not any(self._b.nodes[index].op.phase == "optimizer" for index in theirs):
                    found |= {index for index in ours if self._a.nodes[index].op.phase == "optimizer"}
        return sorted(found)

    def _is_known(self, values: Mapping[int, Array]) -> bool:
        """Whether A has all these values of a node of B."""
        return all(
            _in_order(value) in self._first.floats
            if value.dtype.kind in "fc"
            else _exactly(value) in self._first.others
            for value in values.values()
        )

    def _is_reordered(self, values: Mapping[int, Array]) -> bool:
        """The same regardless of the order of the elements. False if any values are not floats."""
        return all(
            value.dtype.kind in "fc" and _in_any_order(value) in self._first.unordered for value in values.values()
        )

    def _is_other(self, index: int, values: Mapping[int, Array]) -> bool:
        """Whether a node of B has other float outputs than the node of A that it is matched with."""
        partner = self._alignment.a_of.get(index)
        of_partner = {} if partner is None else self._first.outputs[partner]
        return any(
            slot in of_partner and _in_order(value) != _in_order(of_partner[slot])
            for slot, value in values.items()
            if value.dtype.kind in "fc"
        )

    @cached_property
    def _whole(self) -> _Whole:
        """The run of B without changes, with all its outputs."""
        run = Execution(self._b)
        whole = _Whole(run, Sources(self._b), Sources(self._b))
        for node, values in run.nodes(self._leaf, self._lasting[1]):
            for slot, value in values.items():
                makers = run.writers.get((node.index, slot), frozenset())
                is_known = self._is_known({slot: value})
                whole.sources.read(node, slot, value, makers, is_known=is_known)
                whole.beside_order.read(
                    node, slot, value, makers, is_known=is_known or self._is_reordered({slot: value})
                )
            outputs = whole.outputs[node.index] = self._given(node, values, frozenset())
            is_known = self._is_known(outputs)
            whole.sources.gives(node, outputs, is_known=is_known)
            whole.beside_order.gives(node, outputs, is_known=is_known or self._is_reordered(outputs))
            self._keep(run, node, values, outputs)
            run.write(node, outputs)
        whole.missed |= self._missed(run)
        if not whole.missed:
            self._goal = self._first.goals[-1]
            whole.missed |= self._missed(run)
        return whole

    def _missed_with(self, whole: _Whole, substituted: AbstractSet[int]) -> set[object]:
        """The end values of B that A lacks once these operators are substituted."""
        if substituted not in self._missed_after:
            self._missed_after[substituted] = self._run_with(whole, substituted)
        return self._missed_after[substituted]

    def _run_with(self, whole: _Whole, substituted: AbstractSet[int]) -> set[object]:
        """The same, computed. An operator that reads nothing changed keeps its outputs of the run without changes."""
        run = Execution(self._b)
        odd: set[_Place] = set()
        """The places whose values have changed."""
        for node, values in run.nodes(self._leaf, self._lasting[1]):
            outputs = whole.outputs[node.index]
            if node.index in substituted or any(_place_read(node, slot) in odd for slot in node.inputs):
                outputs = self._given(node, values, substituted)
                odd.update(_places_that_differ(node, outputs, whole.outputs[node.index]))
            self._keep(run, node, values, outputs)
            run.write(node, outputs)
        return self._missed(run)

    def _missed(self, run: Execution) -> set[object]:
        ends = {storage: end_of(run, storage, held) for storage, held in _last_held(run, self._lasting[1]).items()}
        return set(self._goal.missed_by(ends, of_no_storage(run)))

    def _given(self, node: Node, values: Mapping[int, Array], substituted: AbstractSet[int]) -> Mapping[int, Array]:
        partner = self._alignment.a_of.get(node.index)
        if partner is not None and (node.index in substituted or draws(node)):
            return self._first.outputs[partner]
        done = replay(node, values)
        if done is not None:
            return done.outputs
        # A kernel that cannot be run again gives A's outputs for A's inputs.
        ours = None if partner is None else self._first.not_run.get(partner)
        same = ours is not None and ours.inputs == _identities(values)
        return ours.outputs if same and ours is not None else recorded_values(node.outputs)

    def _keep(self, run: Execution, node: Node, values: Mapping[int, Array], outputs: Mapping[int, Array]) -> None:
        """Keep what is needed at the end of a run, besides the contents of storages."""
        run.inputs[node.index] = dict(values) if read_as_number(node) else {}
        is_read = any((node.index, slot) in self._outputs_read for slot in node.outputs)
        run.outputs[node.index] = {} if is_read else dict(outputs)

    def _leaf(self, node: Node, slot: int) -> Array | None:
        """The value of an input of B that no operator made: the same in every run."""
        place = node.index, slot
        if place not in self._leaf_values:
            self._leaf_values[place] = self._closest(node, slot)
        return self._leaf_values[place]

    def _closest(self, node: Node, slot: int) -> Array | None:
        """A's value for this input: the candidate closest to B's own value, or B's own value if none is close enough."""
        own = recorded(node.inputs[slot])
        if own is None:
            return next(self._first.leaves.of_b(node, slot), None)
        closest = max(self._first.leaves.of_b(node, slot), key=lambda value: _share_alike(own, value), default=own)
        return closest if _share_alike(own, closest) >= _ALIKE else own


class _First:
    """A, run from its recorded values: the initial values, the outputs of the nodes `taken_over`, and fingerprints of the rest."""

    def __init__(self, a: Trace, alignment: Alignment, taken_over: AbstractSet[int], lasting: AbstractSet[int]) -> None:
        run = Execution(a)
        self.leaves = StepInputs(run, alignment)
        self.outputs: dict[int, Mapping[int, Array]] = {}
        self.floats: set[tuple[float, ...]] = set()
        """Fingerprints of every input and output."""
        self.unordered: set[tuple[float, ...]] = set()
        """The same, regardless of the order of the elements."""
        self.others: set[tuple[tuple[int, ...], bytes]] = set()
        """Digests of the values that are not floats."""
        self.not_run: dict[int, _NotRun] = {}
        """The nodes that cannot be run again."""
        self._seen: set[tuple[object, ...]] = set()
        """The parts of storages whose fingerprints were taken, and their writers."""
        read = outputs_read(a)
        for node, values in run.nodes(kept=lasting):
            for slot, value in values.items():
                self._note_input(run, node, slot, value)
            done = replay(node, values)
            outputs = recorded_values(node.outputs) if done is None else done.outputs
            if done is None:
                self.not_run[node.index] = _NotRun(_identities(values), outputs)
            run.write(node, outputs)
            for slot, value in outputs.items():
                self._note(node.outputs[slot], value, frozenset({node.index}))
            if node.index in taken_over:
                self.outputs[node.index] = outputs
            run.inputs[node.index], run.outputs[node.index] = values, dict(outputs)
            forget_the_rest(run, node, read)
        held = _last_held(run, lasting)
        ends = [end_of(run, storage, there) for storage, there in held.items()], of_no_storage(run)
        self.goals = [ExpectedEndState(*ends, is_coarse=is_coarse) for is_coarse in (True, False)]
        """A's end state, compared coarsely and exactly."""
        self.writers = {storage: run.memory.last_writers(storage) for storage in held}
        """The last writers of each storage."""
        run.memory = Memory()
        run.inputs, run.outputs = {}, {}

    def _note_input(self, run: Execution, node: Node, slot: int, value: Array) -> None:
        writers = run.writers.get((node.index, slot), frozenset({-1}))
        # Values that nodes wrote stay until the next write. Values that no node wrote may differ from read to read.
        is_known = self.leaves.add(node, slot, value) if (node.index, slot) in run.leaf_reads else -1 not in writers
        self._note(node.inputs[slot], value, writers if is_known else frozenset())

    def _note(self, record: TensorRecord, value: Array, writers: frozenset[int]) -> None:
        """Take the fingerprint of a value, unless it was taken of what these nodes wrote in this place."""
        if record.memory is not None and writers:
            lies = (value.size,) if _is_in_order(record) else (value.shape, record.memory.strides)
            part = (record.memory.storage, record.memory.offset, writers, *lies)
            if part in self._seen:
                return
            self._seen.add(part)
        if value.dtype.kind in "fc":
            self.floats.add(_in_order(value))
            self.unordered.add(_in_any_order(value))
        else:
            self.others.add(_exactly(value))


@dataclass(slots=True)
class _Effects:
    """The operators of B that a difference reaches in a run without changes."""

    run: Execution
    users: dict[int, set[int]] = field(default_factory=dict)
    """The readers of each node in `unknown` or `other`."""
    unknown: set[int] = field(default_factory=set)
    """Nodes whose outputs A lacks."""
    other: set[int] = field(default_factory=set)
    """Nodes that a difference reaches first and whose outputs differ from their partners', and nodes that copy such outputs."""
    copies: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Whole:
    """A run of B with all its outputs."""

    run: Execution
    sources: Sources
    beside_order: Sources
    """The same, regardless of the order of elements."""
    outputs: dict[int, Mapping[int, Array]] = field(default_factory=dict)
    missed: set[object] = field(default_factory=set)
    """The end values that A lacks."""


def _last_held(run: Execution, storages: Iterable[int]) -> dict[int, Named]:
    return {storage: held for storage in storages if (held := run.memory.storage(storage)) is not None}


_Place = int | Place | None
"""A storage, or an output whose memory is unknown."""


def _place_read(node: Node, slot: int) -> _Place:
    memory = node.inputs[slot].memory
    return node.makers.get(slot) if memory is None else memory.storage


def _places_that_differ(node: Node, outputs: Mapping[int, Array], others: Mapping[int, Array]) -> Iterator[_Place]:
    """The places where a node writes different values than in another run."""
    for slot, record in node.outputs.items():
        one, other = outputs.get(slot), others.get(slot)
        if one is None or other is None or not same_bits(one, other):
            yield (node.index, slot) if record.memory is None else record.memory.storage


def _share_alike(own: Array, other: Array) -> float:
    """The share of elements that are equal up to the rounding of two runs."""
    if own.shape != other.shape:
        return 0.0
    return float(np.mean(np.isclose(own, other, rtol=_CLOSE, equal_nan=True))) if own.size else 1.0


@dataclass(frozen=True, slots=True)
class _NotRun:
    """A node of A that cannot be run again: what identifies its inputs, and its recorded outputs."""

    inputs: Mapping[int, object]
    outputs: Mapping[int, Array]


def _identities(values: Mapping[int, Array]) -> dict[int, object]:
    """By slot, what is equal for the same elements in the same order."""
    return {slot: _in_order(value) if value.dtype.kind in "fc" else _exactly(value) for slot, value in values.items()}


def _lasts(run: Execution, node: Node) -> bool:
    """Whether the node writes memory that outlives the step: memory from before the step, or a state of an optimizer."""
    written, read = storages_of(node.outputs.values()), storages_of(node.inputs.values())
    return bool(written & (run.leaf_storages.keys() | (read if node.op.phase == "optimizer" else set())))


def _in_order(values: Array) -> tuple[float, ...]:
    """A fingerprint that is equal only for the same elements in the same order, whatever the shape."""
    flat = fill_as_infinity(values.reshape(-1))
    places = np.arange(1, flat.size + 1)
    return (*fingerprint(flat), *fingerprint(flat * np.sin(places)))


def _in_any_order(values: Array) -> tuple[float, ...]:
    """A fingerprint that is equal for the same elements in any order. Higher moments distinguish normalised values."""
    with np.errstate(all="ignore"):
        return (*fingerprint(values), *fingerprint(values**3))


def _exactly(values: Array) -> tuple[tuple[int, ...], bytes]:
    """The shape and a digest of the elements, for values that are not floats."""
    return values.shape, digest_of(values.astype(np.int64))


def _is_in_order(record: TensorRecord) -> bool:
    """Whether the elements lie in memory one after another, in row-major order."""
    size = 1
    assert record.memory is not None
    for length, stride in zip(reversed(record.shape), reversed(record.memory.strides), strict=True):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


# Finds the suspects that cause the different end states of two programs that run in float64.


@dataclass(frozen=True, slots=True)
class Attribution:
    """The judgement of suspects that concern the programs. A suspect in none of the lists is as likely as before."""

    causes: Sequence[Suspect] = ()
    leading: Sequence[Suspect] = ()
    """The causes that come before the others."""
    refuted: Sequence[Suspect] = ()
    doubtful: Sequence[Suspect] = ()
    """The suspects that explain nothing beyond the causes."""


def attribute(
    a: Trace,
    b: Trace,
    alignment: Alignment,
    suspects: Sequence[tuple[Suspect, AbstractSet[int]]],
    unreached: Sequence[Suspect],
    lasting: tuple[AbstractSet[int], AbstractSet[int]],
) -> Attribution:
    """Find the causes.

    suspects    each with the operators of B that it reaches first
    unreached   suspects that are seen only at the end of the step
    lasting     the storages of A and of B that outlive the step
    """
    reached = [nodes for _, nodes in suspects]
    substitution = Substitution(a, b, alignment, set().union(*reached), lasting)
    behind = substitution.left_behind(reached)
    if len(behind) == len(suspects) and not unreached:
        behind = set()  # the end states differ, so one of the suspects is the cause
    refuted = [suspect for place, (suspect, _) in enumerate(suspects) if place in behind]
    rest = [each for place, each in enumerate(suspects) if place not in behind]
    chosen, is_all = _chosen(substitution, rest)
    causes = _after_forward([rest[place][0] for place in chosen], [suspect for suspect, _ in rest])
    leading = _leading(a, b, alignment, substitution, rest, causes, is_all=is_all)
    causes = [*leading, *without(causes, leading)]
    others = without((*(suspect for suspect, _ in rest), *unreached), causes)
    if causes and is_all:
        return Attribution(causes, leading, [*refuted, *others])
    return Attribution(causes, leading, refuted, others if causes else ())


def _chosen(substitution: Substitution, suspects: Sequence[tuple[Suspect, AbstractSet[int]]]) -> tuple[list[int], bool]:
    """The causes among the suspects, as from `Substitution.causes`.

    If there is none, all suspects of a line are tried together: a line of a loop differs in each iteration, and none of these explains the end by itself.
    """
    chosen, is_all = substitution.causes([nodes for _, nodes in suspects])
    if chosen:
        return chosen, is_all
    lines = _by_line([suspect for suspect, _ in suspects])
    found, is_all = substitution.causes([set().union(*(suspects[place][1] for place in places)) for places in lines])
    return [place for line in found for place in lines[line]], is_all


def _by_line(suspects: Sequence[Suspect]) -> list[list[int]]:
    """The places of the suspects of each phase and line of the program that has several."""
    found: dict[object, list[int]] = {}
    for place, suspect in enumerate(suspects):
        if suspect.b is not None:
            found.setdefault((suspect.b.op.phase, suspect.b.op.line), []).append(place)
    return [places for places in found.values() if len(places) > 1]


def _after_forward(causes: Sequence[Suspect], suspects: Sequence[Suspect]) -> list[Suspect]:
    """The causes, after the suspects of the forward pass that they follow from: the gradient of a different operator is also a different operator, and may
    have the whole effect, because the loss may not belong to the end state.

    Not for PyTorch, where programs write backward functions of their own.
    """
    gradients = [cause for cause in causes if _phase_of(cause) == "backward" and not _is_of_torch(cause)]
    if not gradients:
        return [*causes]
    forward = [each for each in suspects if _phase_of(each) == "forward"]
    if len(gradients) < len(causes):
        forward = [each for each in forward if any(is_gradient_of(cause, each) for cause in gradients)]
    return [*forward, *without(causes, forward)]


def _phase_of(suspect: Suspect) -> str:
    return "" if suspect.b is None else suspect.b.op.phase


def _is_of_torch(suspect: Suspect) -> bool:
    return suspect.b is not None and suspect.b.op.kernel.startswith("aten::")


def _leading(
    a: Trace,
    b: Trace,
    alignment: Alignment,
    substitution: Substitution,
    suspects: Sequence[tuple[Suspect, AbstractSet[int]]],
    causes: Sequence[Suspect],
    *,
    is_all: bool,
) -> list[Suspect]:
    """The causes that come before the others; some of them may not have been suspects."""
    sources = substitution.sources()
    may_follow = not any(_is_another(a, b, alignment, index, suspects) for index in sources)
    if _come_first(b, sources, suspects, causes, is_all=is_all, may_follow=may_follow):
        # If the output of a maker differs from its partner's, the maker is the cause.
        makers = substitution.makers_elsewhere(sources)
        of_makers = [suspect for suspect, _ in suspects if _says_of(suspect, makers)]
        return of_makers or [_source(a, b, alignment, index, suspects) for index in sources]
    if not causes:
        return [_not_stepped(a.nodes[index]) for index in substitution.not_stepped()]
    # Sources on several lines include some whose effects do not matter.
    of_the_model = {index for index in sources if _is_of_the_model(b, index)}

    def is_leading(cause: Suspect) -> bool:
        if cause.b is None:
            return False
        return cause.b.op.phase != "backward" if is_all else cause.b.index in of_the_model

    return list(filter(is_leading, causes[:1] if is_all else causes))


def _says_of(suspect: Suspect, nodes: AbstractSet[int]) -> bool:
    """Whether the suspect concerns one of these operators of B, and not a gradient in A."""
    return (
        suspect.b is not None
        and suspect.b.index in nodes
        and (suspect.a is None or suspect.a.op.phase == suspect.b.op.phase)
    )


def _is_one_line(trace: Trace, nodes: Sequence[int]) -> bool:
    """Whether nodes have one line that distinguishes them from others: not the line that asks for all gradients."""
    lines = {trace.nodes[index].op.line for index in nodes}
    if len(lines) != 1 or any(trace.nodes[index].op.phase != "backward" for index in nodes):
        return len(lines) == 1
    return any(node.op.phase == "backward" and node.op.line not in lines for node in trace.nodes)


def _come_first(
    trace: Trace,
    sources: Sequence[int],
    suspects: Sequence[tuple[Suspect, AbstractSet[int]]],
    causes: Sequence[Suspect],
    *,
    is_all: bool,
    may_follow: bool,
) -> bool:
    """Whether the sources are on one line and before the causes, or before the suspects if there are no causes. Sources behind the causes count if
    some effects of the causes do not matter, unless they are the same operators as in A and may follow from the causes.
    """
    if not _is_one_line(trace, sources):
        return False
    first, accused = sources[0], causes or [suspect for suspect, _ in suspects]
    if first <= min((suspect.b.index for suspect in accused if suspect.b is not None), default=first):
        return True
    if may_follow:
        return False
    if trace.nodes[first].op.phase == "backward":
        return not is_all
    return _is_of_the_model(trace, first) and not (is_all and len(causes) == 1)


def _is_another(
    a: Trace, b: Trace, alignment: Alignment, index: int, suspects: Sequence[tuple[Suspect, AbstractSet[int]]]
) -> bool:
    """Whether an operator of B is not the same in A, or is suspected of reading something else."""
    partner, node = alignment.a_of.get(index), b.nodes[index]
    if partner is None or a.nodes[partner].bare_type != node.bare_type or differing(a.nodes[partner], node):
        return True
    return any(suspect.b is node or index in nodes for suspect, nodes in suspects)


def _is_of_the_model(trace: Trace, index: int) -> bool:
    """Whether a node is in the forward pass, before all gradients and what is done with them (clipping, the optimizer). A graph runs some gradients
    before the forward pass.
    """
    before = [trace.nodes[index]] if runs_in_any_order(trace.nodes[index]) else trace.nodes[: index + 1]
    return all(node.op.phase == "forward" for node in before)


def _not_stepped(node: Node) -> Suspect:
    """The suspect for an operator of A that writes a parameter or a state, if no optimizer of B does."""
    what = f"no optimizer operator in B writes the tensor that {node.op.op_name} of A writes last"
    return Suspect("missing", node, None, "output", 0, math.inf, what)


def _source(
    a: Trace, b: Trace, alignment: Alignment, index: int, suspects: Sequence[tuple[Suspect, AbstractSet[int]]]
) -> Suspect:
    """The existing suspect for an operator of B, or one that was noticed in it, or a new one."""
    node, partner = b.nodes[index], alignment.a_of.get(index)
    known = [suspect for suspect, _ in suspects if suspect.b is node]
    noticed = [suspect for suspect, nodes in suspects if index in nodes]
    for suspect in (*known, *noticed):
        return suspect
    one = None if partner is None else a.nodes[partner]
    given = _given(a, one, node)
    what = f"{node.op.op_type} {given}an output that no operator of A produces"
    return Suspect("extra" if one is None else "operator", one, node, "output", 0, math.inf, what)


def _given(a: Trace, one: Node | None, node: Node) -> str:
    """How the recorded inputs of an operator of B compare with those in A, as the beginning of a sentence."""
    if one is None:
        return "has the inputs of A and " if all(_is_in(a, each) for each in node.inputs.values()) else "has "
    apart = max((_roundings(record, one.inputs.get(slot)) for slot, record in node.inputs.items()), default=0.0)
    if apart <= DIVERGENCE:
        return "has the inputs of A and "
    return f"has inputs that are off by {apart:,.0f} roundings and " if math.isfinite(apart) else "has "


def _is_in(trace: Trace, record: TensorRecord) -> bool:
    """Whether a run has a tensor, regardless of the operator that made or read it."""
    return any(
        _roundings(record, each) <= DIVERGENCE
        for node in trace.nodes
        for each in (*node.outputs.values(), *node.inputs.values())
        if math.prod(each.shape) == math.prod(record.shape)
    )


def _roundings(record: TensorRecord, other: TensorRecord | None) -> float:
    if other is None or not (has_elements(record) and has_elements(other)):
        return 0.0 if record.skip else math.inf
    found = unshaped_difference(record.numpy(), other.numpy())
    return in_roundings(found.relative, epsilon_of(record.dtype)) if found else 0.0
