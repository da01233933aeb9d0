"""Matches the operators of two runs without a mapping file."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.nodes import Node, Place
from opdump.comparison.trace import Trace, leaf_name, owners
from opdump.doing import note
from opdump.records import OpRecord, TensorRecord


def run_the_same(a: Trace, b: Trace) -> bool:
    """Whether both steps run the same operators in the same order on the same memory; only values may differ."""
    return len(a.nodes) == len(b.nodes) and all(map(_is_same, a.nodes, b.nodes))


_RUN_AS: Final = attrgetter("op_name", "occurrence", "op_type", "phase", "arguments", "line")


def _is_same(one: Node, other: Node) -> bool:
    return (
        _RUN_AS(one.op) == _RUN_AS(other.op)
        and one.makers == other.makers
        and _look(one.inputs) == _look(other.inputs)
        and _look(one.outputs) == _look(other.outputs)
    )


def _look(records: Mapping[int, TensorRecord]) -> list[tuple[object, ...]]:
    return [(slot, each.shape, each.dtype, each.source, each.memory) for slot, each in records.items()]


# Both execution orders are aligned in passes, from the strictest description of an operator to the loosest; each pass aligns the gaps
# between the matches of the previous ones. Operators that remain, because statements were reordered, are matched by data flow: by their
# matched makers, readers and memory.

Token = Hashable
Execution = tuple[str, int, int]
"""The name of an operator, the number of its execution in the step, and the number of operators among which its name is a place; 0 for other names."""
MatchKind = Literal[
    "by hand",  # given in a file
    "name",  # same type, shapes, arguments, module, inputs and line
    "sequence",  # same position among operators of the same type
    "data flow",  # matched makers or readers
    "memory",  # reads the same memory
    "likeness",  # only similar properties
]
_FEW = 8
"""The largest number of integers that are arguments rather than data."""
_ROUNDS = 16
"""Limit for the passes along the data flow; each pass reaches one operator further."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of nodes, by their indices in the two traces."""

    b_of: Mapping[int, int]
    a_of: Mapping[int, int]
    kinds: Mapping[int, MatchKind] = field(default_factory=dict)
    """How each pair was matched, by the index in A."""
    storages: Mapping[int, int] = field(default_factory=dict)
    """The storage of B that corresponds to each storage of A."""

    @property
    def matched(self) -> int:
        """The number of pairs."""
        return len(self.b_of)


_NONE: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(slots=True)
class Precedents:
    """The executions matched in earlier steps. They guide later steps, because a program repeats itself, and two runs differ least in their
    first step.
    """

    _b_of: dict[Execution, tuple[Execution, MatchKind]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    """The name in B of each named tensor of A."""

    def add(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        """Add the pairs of a step. Pairs of earlier steps take precedence."""
        names_b = {storage: name for name, storage in _named_storages(b).items()}
        for name, storage in _named_storages(a).items():
            there = alignment.storages.get(storage)
            if there in names_b:
                self._names.setdefault(name, names_b[there])
        executions_a, executions_b = _executions(a), _executions(b)
        for here, there in alignment.b_of.items():
            self._b_of.setdefault(executions_a[here], (executions_b[there], alignment.kinds[here]))

    def of(self, a: Trace, b: Trace) -> Iterator[tuple[int, int, MatchKind]]:
        """Return the known pairs that occur in both traces, by node index, with their kind."""
        # Operators after the last step are recorded in it, with new counts, so an execution may occur twice.
        left_b: defaultdict[Execution, list[int]] = defaultdict(list)
        for index, execution in reversed([*enumerate(_executions(b))]):
            left_b[execution].append(index)
        for index, execution in enumerate(_executions(a)):
            found = self._b_of.get(execution)
            if found is not None and left_b[found[0]]:
                yield index, left_b[found[0]].pop(), found[1]

    def storages(self, a: Trace, b: Trace) -> dict[int, int]:
        """Return the storage of B for each storage of A whose tensor has a known name."""
        storages_b = _named_storages(b)
        return {
            storage: storages_b[there]
            for name, storage in _named_storages(a).items()
            if (there := self._names.get(name)) in storages_b
        }


def _executions(trace: Trace) -> list[Execution]:
    """The execution of each node. TensorFlow's eager operators have no names, and are numbered by type in each step (`ReadVariableOp_4`): if a step runs
    another number of them, as a first step that also creates variables, a number means another operator.
    """
    kinds = [(_numbered(node.op), node.op.graph_id) for node in trace.nodes]
    counts = Counter(kinds)
    return [
        (node.op.op_name, node.op.occurrence, counts[kind] if kind[0] else 0)
        for node, kind in zip(trace.nodes, kinds, strict=True)
    ]


def _numbered(op: OpRecord) -> str:
    """The name of an eager operator of TensorFlow without its number; empty for other operators."""
    kind, _, number = op.op_name.rpartition("_")
    is_numbered = op.kernel.startswith("tf::") and kind.endswith(op.op_type) and number[:1].isdecimal()
    return kind if is_numbered else ""


def align(a: Trace, b: Trace, given: Mapping[int, int] = _NONE, before: Precedents | None = None) -> Alignment:
    """Match the nodes of two traces. Pairs of `given` are kept; the other nodes are matched as in earlier steps if possible."""
    note("matching the operators of step", a.step)
    in_place = None if given else _in_place(a, b, before)
    if in_place is not None:
        return in_place
    pairs = dict(given)
    kinds: dict[int, MatchKind] = dict.fromkeys(given, "by hand")
    for here, there, kind in () if before is None else before.of(a, b):
        if here not in pairs and there not in given.values():
            pairs[here], kinds[here] = there, kind
    for describe in (_named, _placed, _shaped, _typed_with_shape):
        _match_gaps(a.nodes, b.nodes, describe, pairs)
        for here in pairs.keys() - kinds.keys():
            kinds[here] = "name" if describe is _named else "sequence"
    known = _with_same_contents(a, b) | ({} if before is None else before.storages(a, b))
    _follow_data(a, b, pairs, kinds, known)
    kinds = {here: kinds[here] for here in pairs}
    storages = _common_storages(a, b, pairs, known)
    return Alignment(pairs, {there: here for here, there in pairs.items()}, kinds, storages)


def _in_place(a: Trace, b: Trace, before: Precedents | None) -> Alignment | None:
    """Match operators by position if both traces run the same program and no earlier match contradicts it; otherwise return None."""
    if not run_the_same(a, b):
        return None
    earlier = [] if before is None else list(before.of(a, b))
    known = _with_same_contents(a, b) | ({} if before is None else before.storages(a, b))
    if any(here != there for here, there, _ in earlier) or any(here != there for here, there in known.items()):
        return None
    pairs = {node.index: node.index for node in a.nodes}
    kinds: dict[int, MatchKind] = dict.fromkeys(pairs, "name")
    kinds.update({here: kind for here, _, kind in earlier})
    return Alignment(pairs, dict(pairs), kinds, _common_storages(a, b, pairs, known))


def score(one: Node, other: Node) -> float:
    """The confidence in a pair: the share of compared properties that are equal, from 0 to 1."""
    same = (
        one.bare_type == other.bare_type,
        one.op.phase == other.op.phase,
        one.shapes[0] == other.shapes[0],
        one.shapes[1] == other.shapes[1],
        arguments_key(one) == arguments_key(other),
        one.module == other.module,
        _line(one) == _line(other),
        _statistics(one) == _statistics(other),
    )
    return sum(same) / len(same)


def arguments_key(node: Node) -> str:
    """The non-tensor arguments as JSON."""
    return json.dumps(dict(node.arguments), sort_keys=True, default=str)


def _leaves(node: Node) -> tuple[str, ...]:
    """The names of the tensors that an operator reads and no operator of the step made. For numbers, which TensorFlow passes as tensors without a name,
    the range.
    """
    is_of_tensorflow = node.op.kernel.startswith("tf::")
    return tuple(
        leaf_name(record) or (_range(record) if is_of_tensorflow and slot not in node.makers else "")
        for slot, record in node.inputs.items()
    )


def _range(record: TensorRecord) -> str:
    if math.prod(record.shape) > (_FEW if "int" in record.dtype else 1):
        return ""
    return f"{record.statistics.get('min')} to {record.statistics.get('max')}"


def _statistics(node: Node) -> tuple[str, ...]:
    """Maximum and minimum of each output in three digits; rounding differences rarely change them."""
    return tuple(
        f"{record.statistics[name]:.3g}"
        for record in node.outputs.values()
        for name in ("max", "min")
        if name in record.statistics
    )


def _named(node: Node) -> Token:
    return (node.bare_type, node.op.phase, node.shapes, arguments_key(node), node.module, _leaves(node), node.op.line)


def _placed(node: Node) -> Token:
    return (node.bare_type, node.op.phase, node.shapes, arguments_key(node), _statistics(node))


def _shaped(node: Node) -> Token:
    return (node.bare_type, node.op.phase, node.shapes, arguments_key(node))


def _typed_with_shape(node: Node) -> Token:
    return (node.bare_type, node.op.phase, node.shapes[1], node.are_floats)


def _match_gaps(a: Sequence[Node], b: Sequence[Node], describe: Callable[[Node], Token], pairs: dict[int, int]) -> None:
    """Align the unmatched nodes between consecutive pairs that have the same order in both traces, and add the matches to `pairs`."""
    anchors = _increasing(sorted(pairs.items()))
    taken_b = set(pairs.values())
    start_a = start_b = 0
    for end_a, end_b in [*anchors, (len(a), len(b))]:
        free_a = [node for node in a[start_a:end_a] if node.index not in pairs]
        free_b = [node for node in b[start_b:end_b] if node.index not in taken_b]
        start_a, start_b = end_a + 1, end_b + 1
        if not free_a or not free_b:
            continue
        for place_a, place_b, size in common_blocks([*map(describe, free_a)], [*map(describe, free_b)]):
            for offset in range(size):
                pairs[free_a[place_a + offset].index] = free_b[place_b + offset].index


def common_blocks(a: Sequence[Token], b: Sequence[Token]) -> Iterator[tuple[int, int, int]]:
    """The longest run of tokens that both sequences have in common, as (start in A, start in B, length), then the longest before and after it,
    and so on; in no particular order. Of equally long runs, the earliest in A counts, and for it the earliest in B.

    These are the blocks of `difflib.SequenceMatcher` without junk, which needs quadratic time for each block if thousands of tokens are alike, as
    in a loop. Here, blocks of one length are found in one pass. There are at most as many lengths as the square root of twice the tokens.
    """
    numbers: dict[Token, int] = {}
    both = np.array([numbers.setdefault(token, len(numbers)) for token in (*a, object(), *b)])  # object() is in neither
    levels = [both]  # numbers of the runs of 1, 2, 4, ... tokens; those of equal runs are equal
    while (half := 1 << (len(levels) - 1)) * 2 <= min(len(a), len(b)):
        levels.append(np.unique(levels[-1][:-half] * len(both) + levels[-1][half:], return_inverse=True)[1])

    def runs(start: int, end: int, size: int) -> NDArray[np.int64]:
        """A number for each run of this size. The runs of a power of two at its start and its end identify it."""
        level, power = levels[size.bit_length() - 1], 1 << (size.bit_length() - 1)
        begin, end_with = level[start : end - size + 1], level[start + size - power : end - power + 1]
        keys: NDArray[np.int64] = begin * len(both) + end_with
        return keys

    def is_too_long(start_a: int, end_a: int, start_b: int, end_b: int, size: int) -> bool:
        return not np.intersect1d(runs(start_a, end_a, size), runs(start_b, end_b, size)).size

    waiting = [(0, len(a), len(a) + 1, len(both))]
    while waiting:
        first_a, end_a, first_b, end_b = waiting.pop()
        sizes = range(1, min(end_a - first_a, end_b - first_b) + 1)
        size = bisect_left(sizes, True, key=partial(is_too_long, first_a, end_a, first_b, end_b))
        if not size:
            continue
        places = defaultdict[int, list[int]](list)
        for place, run in enumerate(runs(first_b, end_b, size).tolist(), first_b):
            places[run].append(place)
        for place, run in enumerate(runs(first_a, end_a, size).tolist(), first_a):
            at = bisect_left(places.get(run, ()), first_b)
            if place >= first_a and at < len(places.get(run, ())):
                there = places[run][at]
                yield place, there - len(a) - 1, size
                waiting.append((first_a, place, first_b, there))
                first_a, first_b = place + size, there + size
        waiting.append((first_a, end_a, first_b, end_b))


_Chain = tuple[tuple[int, int], "_Chain | None"]


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest subsequence of the pairs, which are sorted by the first number, in which the second increases too."""
    tails: list[int] = []
    chains: list[_Chain] = []
    for pair in pairs:
        at = bisect_left(tails, pair[1])
        tails[at : at + 1] = [pair[1]]
        chains[at : at + 1] = [(pair, chains[at - 1] if at else None)]
    found = []
    chain = chains[-1] if chains else None
    while chain is not None:
        found.append(chain[0])
        chain = chain[1]
    return found[::-1]


def _follow_data(
    a: Trace, b: Trace, pairs: dict[int, int], kinds: dict[int, MatchKind], known: Mapping[int, int]
) -> None:
    """Match the remaining nodes by makers, readers and memory, and rematch pairs that contradict the data flow."""
    by_storage = _readers_of_storages(b)
    steps = _steps_of(a, b, pairs)
    for _ in range(_ROUNDS):
        storages = _common_storages(a, b, pairs, known)
        shared = _read_by_the_model(a, storages)
        owned = owners(a, shared.keys()), owners(b, set(shared.values()))
        sides = _Sides(a, b, a.users(), b.users(), storages, known, *owned, steps)
        doubtful = {
            here for here, there in pairs.items() if kinds[here] != "by hand" and sides.is_doubtful(pairs, here, there)
        }
        former = dict(pairs)
        weak = {here for here in doubtful if sides.agreement(pairs, here, pairs[here]) < 0}
        for here in doubtful:
            del pairs[here]
        free_b = set(range(len(b.nodes))).difference(pairs.values())
        _match_by_evidence(sides, pairs, kinds, free_b, former, by_storage)
        for here in sorted(doubtful - weak - pairs.keys()):
            if former[here] in free_b:
                pairs[here] = former[here]  # the evidence is balanced, and no better candidate was found
        if pairs == former:
            return


_SHARE: Final = 0.1
"""Fewer pairs between two steps are operators that were matched with those of another step by chance."""


def _steps_of(a: Trace, b: Trace, pairs: Mapping[int, int]) -> dict[int, set[int]]:
    """For each step of A, the steps of B in which at least a tenth of its pairs are. Runs that are compared as a whole repeat their operators."""
    counts = Counter((a.nodes[here].op.step, b.nodes[there].op.step) for here, there in pairs.items())
    totals = Counter[int]()
    for (step, _), count in counts.items():
        totals[step] += count
    found: dict[int, set[int]] = defaultdict(set)
    for (step, other), count in counts.items():
        if count >= _SHARE * totals[step]:
            found[step].add(other)
    return found


def _match_by_evidence(
    sides: _Sides,
    pairs: dict[int, int],
    kinds: dict[int, MatchKind],
    free_b: set[int],
    former: Mapping[int, int],
    by_storage: Mapping[int, list[int]],
) -> None:
    """Match each unmatched node of A with its best candidate in `free_b`, and remove that candidate from `free_b`."""
    b, by_type = sides.b, defaultdict[Token, list[int]](list)
    for index in sorted(free_b):
        by_type[_key(b.nodes[index])].append(index)
    # In execution order, so that the makers of a node are matched before it.
    for node in sides.a.nodes:
        if node.index in pairs:
            continue
        key = _key(node)
        near = _near(node, pairs, sides.users_b, sides.storages, by_storage) | sides.of_the_same_owner(node.index)
        candidates = [index for index in near if index in free_b and _key(b.nodes[index]) == key]
        candidates = candidates or [index for index in by_type.get(key, ())[:_MOST_CANDIDATES] if index in free_b]
        candidates = sides.of_the_same_step(node, candidates)
        best, index = max(((sides.score(pairs, node, each), -each) for each in candidates), default=(0.0, 0))
        if best > 1:
            if former.get(node.index) != -index:
                kinds[node.index] = sides.kind(pairs, node.index, -index)
            pairs[node.index] = -index
            free_b.discard(-index)


_MOST_CANDIDATES = 200
_CERTAIN: Final = 8.0
"""The weight of a storage known to correspond; a maker or reader has weight 1."""


def _key(node: Node) -> Token:
    return (node.bare_type, node.op.phase, node.sizes, node.are_floats)


def _near(
    node: Node,
    pairs: Mapping[int, int],
    users_b: Mapping[Place, list[Place]],
    storages: Mapping[int, int],
    by_storage: Mapping[int, list[int]],
) -> set[int]:
    """The nodes of B that read the outputs of the node's matched makers, or the corresponding memory."""
    found: set[int] = set()
    for maker, slot in node.makers.values():
        if maker in pairs:
            found.update(index for index, _ in users_b.get((pairs[maker], slot), ()))
    for record in node.inputs.values():
        if record.memory is not None and record.memory.storage in storages:
            found.update(by_storage.get(storages[record.memory.storage], ()))
    return found


def _reads(trace: Trace) -> Iterator[tuple[Node, TensorRecord, int]]:
    """The inputs with known memory: the operator, the record and the storage."""
    for node in trace.nodes:
        for record in node.inputs.values():
            if record.memory is not None:
                yield node, record, record.memory.storage


def _read_by_the_model(trace: Trace, storages: Mapping[int, int]) -> dict[int, int]:
    """The storages that the forward pass of A reads: parameters, but not optimizer states."""
    read = {storage for node, _, storage in _reads(trace) if node.op.phase == "forward"}
    return {here: there for here, there in storages.items() if here in read}


def _readers_of_storages(trace: Trace) -> Mapping[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for node, _, storage in _reads(trace):
        found[storage].append(node.index)
    return found


def _named_storages(trace: Trace) -> dict[str, int]:
    return {leaf_name(record): storage for _, record, storage in _reads(trace) if leaf_name(record)}


def _with_same_contents(a: Trace, b: Trace) -> dict[int, int]:
    """Pairs of storages that contained the same floats at some time, if no other storage of either run did."""
    contents_b = _contents(b)
    votes = Counter(
        (storage, contents_b[content]) for content, storage in _contents(a).items() if content in contents_b
    )
    return _most_voted(votes)


def _contents(trace: Trace) -> dict[Token, int]:
    """The storages of named float inputs, by type, size, maximum and minimum. Contents of several storages and constants are left out."""
    found: dict[Token, set[int]] = defaultdict(set)
    for _, record, storage in _reads(trace):
        most, least = record.statistics.get("max"), record.statistics.get("min")
        if leaf_name(record) and "float" in record.dtype and most != least:
            found[record.dtype, math.prod(record.shape), most, least].add(storage)
    return {content: storages.pop() for content, storages in found.items() if len(storages) == 1}


def _most_voted(*votes: Counter[tuple[int, int]], known: Mapping[int, int] = _NONE) -> dict[int, int]:
    """Add the pairs with the most votes to the known ones. Earlier counters take precedence."""
    found = dict(known)
    used = set(found.values())
    for (here, there), _ in (pair for counted in votes for pair in counted.most_common()):
        if here not in found and there not in used:
            found[here] = there
            used.add(there)
    return found


def _common_storages(a: Trace, b: Trace, pairs: Mapping[int, int], known: Mapping[int, int]) -> Mapping[int, int]:
    """The storage of B for each storage of A: the `known` ones, then those that most matched operators read in the same slot."""
    votes: Counter[tuple[int, int]] = Counter()
    states: Counter[tuple[int, int]] = Counter()
    for here, there in pairs.items():
        one, other = a.nodes[here], b.nodes[there]
        for slot, record in one.inputs.items():
            after = other.inputs.get(slot)
            if after is not None and record.memory is not None and after.memory is not None:
                counted = states if one.op.phase == "optimizer" else votes
                counted[record.memory.storage, after.memory.storage] += 1
    # An optimizer runs the same operators for every parameter, so its inputs decide last.
    return _most_voted(votes, states, known=known)


@dataclass(frozen=True, slots=True)
class _Sides:
    a: Trace
    b: Trace
    users_a: Mapping[Place, list[Place]]
    users_b: Mapping[Place, list[Place]]
    storages: Mapping[int, int]
    known: Mapping[int, int]
    """The storages matched by content, or in an earlier step."""
    owners_a: Mapping[int, int]
    owners_b: Mapping[int, int]
    """The storage of the parameter that each optimizer operator updates."""
    steps: Mapping[int, Collection[int]]
    """The steps of B for each step of A, in traces of several steps."""

    def of_the_same_step(self, node: Node, candidates: Sequence[int]) -> list[int]:
        """The candidates in a step of B that stands for the step of a node of A."""
        steps = self.steps.get(node.op.step)
        return [index for index in candidates if steps is None or self.b.nodes[index].op.step in steps]

    def of_the_same_owner(self, here: int) -> set[int]:
        """The optimizer operators of B for the parameter that a node of A updates."""
        owner = self.storages.get(self.owners_a.get(here, -1))
        return set() if owner is None else {index for index, other in self.owners_b.items() if other == owner}

    def agreement(self, pairs: Mapping[int, int], here: int, there: int) -> float:
        """The weight of the makers, readers and storages that are matched with each other, minus the weight of those matched with others."""
        agree, disagree = self._evidence(pairs, here, there)
        return agree - disagree

    def score(self, pairs: Mapping[int, int], node: Node, there: int) -> float:
        """The evidence for a pair, with the likeness of the nodes. An optimizer runs the same operators for every parameter, so likeness does not
        identify one.
        """
        agreement = self.agreement(pairs, node.index, there)
        if agreement <= 0 and node.op.phase == "optimizer":
            return -math.inf
        return agreement + _likeness(node, self.b.nodes[there])

    def is_doubtful(self, pairs: Mapping[int, int], here: int, there: int) -> bool:
        """Whether there is evidence against a pair, or for an optimizer operator, no evidence for it."""
        agree, disagree = self._evidence(pairs, here, there)
        return disagree > 0 or (agree == 0 and self.a.nodes[here].op.phase == "optimizer")

    def _evidence(self, pairs: Mapping[int, int], here: int, there: int) -> tuple[float, float]:
        """The weight of the evidence for a pair, and against it."""
        one, other = self.a.nodes[here], self.b.nodes[there]
        weights = {True: 0.0, False: 0.0}
        if here in self.owners_a and there in self.owners_b:
            weights[self.storages[self.owners_a[here]] == self.owners_b[there]] += _CERTAIN
        for slot, maker in one.makers.items():
            expected = pairs.get(maker[0])
            if expected is not None:
                weights[other.makers.get(slot) == (expected, maker[1])] += 1.0
        for weight, agrees in self._evidence_of_inputs(one, other):
            weights[agrees] += weight
        readers = Counter(pairs.get(user, -1) for slot in one.outputs for user, _ in self.users_a.get((here, slot), ()))
        readers_there = Counter(user for slot in other.outputs for user, _ in self.users_b.get((there, slot), ()))
        return weights[True] + float((readers & readers_there).total()), weights[False]

    def _evidence_of_inputs(self, one: Node, other: Node) -> Iterator[tuple[float, bool]]:
        """The weight of each input that has a known storage or a name, and whether it is for the pair."""
        for slot, record in one.inputs.items():
            after = other.inputs.get(slot)
            if after is None:
                continue
            if record.memory is not None and after.memory is not None and record.memory.storage in self.storages:
                weight = _CERTAIN if record.memory.storage in self.known else 1.0
                yield weight, self.storages[record.memory.storage] == after.memory.storage
            elif leaf_name(record) and leaf_name(record) == leaf_name(after):
                yield 0.5, True

    def kind(self, pairs: Mapping[int, int], here: int, there: int) -> MatchKind:
        """How the two nodes are matched."""
        one, other = self.a.nodes[here], self.b.nodes[there]
        if any((pairs.get(maker), slot) in other.makers.values() for maker, slot in one.makers.values()):
            return "data flow"
        held = {self.storages.get(record.memory.storage) for record in one.inputs.values() if record.memory is not None}
        if any(record.memory is not None and record.memory.storage in held for record in other.inputs.values()):
            return "memory"
        return "data flow" if self.agreement(pairs, here, there) > 0 else "likeness"


def _likeness(one: Node, other: Node) -> float:
    of_shapes = 1.0 if one.shapes == other.shapes else -2.0 if one.shapes[1] != other.shapes[1] else 0.0
    same = (
        arguments_key(one) == arguments_key(other),
        one.module == other.module,
        _line(one) == _line(other) != "",
        _statistics(one) == _statistics(other),
    )
    return of_shapes + sum(same) / 2


def _line(node: Node) -> str:
    return node.op.stack[0].code if node.op.stack else ""


# Gradients that only A computes although both run the forward operator, for example because of `detach`.


@dataclass(frozen=True, slots=True)
class Lost:
    """The place where gradients stop in B: the operator of A that B lacks, and the nearest operator of B."""

    missing: Node
    nearest: Node | None
    slot: int
    """The input of `nearest` that gets no gradient."""


class LostGradients:
    """Finds the operators of A's backward pass that B neither runs nor replaces."""

    def __init__(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        self._a, self._b, self._alignment = a, b, alignment
        self._users = a.users()
        self._forward = _grouped(a, attrgetter("op_name"))
        self._gradients_a, self._gradients_b = _grouped(a, _forward_of), _grouped(b, _forward_of)

    def first(self, nodes: Iterable[Node]) -> Lost | None:
        """The first of these nodes of A that B lacks. The gradient stops there, so later operators are missing as well."""
        lost = [node for node in nodes if self._is_lost(node)]
        sums = [node for node in lost if _adds_up(node)]
        # A sum of gradients is missing because a summand is; the summand is the cause if it is in the list.
        node = next((each for each in lost if each not in sums), next(iter(sums), None))
        return None if node is None else self._placed(node)

    def _is_lost(self, node: Node) -> bool:
        if node.op.phase != "backward" or node.index in self._alignment.b_of or not self._partners(node):
            return False
        return all(other.outputs.keys() < node.outputs.keys() for other in self._instead(node))

    def _partners(self, node: Node) -> list[Node]:
        """The forward operators of B whose gradient the node would compute."""
        forward, b_of = self._forward.get(node.op.forward_op, ()), self._alignment.b_of
        return [self._b.nodes[b_of[each.index]] for each in forward if each.index in b_of]

    def _instead(self, node: Node) -> list[Node]:
        """Operators of the same type that only B runs for these gradients."""
        return [
            other
            for partner in self._partners(node)
            for other in self._gradients_b.get(partner.op.op_name, ())
            if other.index not in self._alignment.a_of and other.bare_type == node.bare_type
        ]

    def _placed(self, node: Node) -> Lost:
        instead = self._instead(node)
        if instead:
            return Lost(node, instead[0], 0)
        if _adds_up(node):
            return Lost(node, None, 0)
        partners = self._partners(node)
        if any(not self._is_lost(each) for each in self._gradients_a.get(node.op.forward_op, ())):
            # The forward operator still has other gradients, so one of its inputs is cut off.
            return Lost(node, partners[0], 0)
        readers = {
            (reader, slot)
            for forward in self._forward[node.op.forward_op]
            for output in forward.outputs
            for reader, slot in self._users.get((forward.index, output), ())
            if self._a.nodes[reader].op.phase == "forward" and reader in self._alignment.b_of
        }
        if len(readers) != 1:
            return Lost(node, None, 0)
        ((reader, slot),) = readers
        return Lost(node, self._b.nodes[self._alignment.b_of[reader]], slot)


def _grouped(trace: Trace, name: Callable[[OpRecord], str]) -> Mapping[str, list[Node]]:
    found: defaultdict[str, list[Node]] = defaultdict(list)
    for node in trace.nodes:
        found[name(node.op)].append(node)
    return found


def _forward_of(op: OpRecord) -> str:
    """The forward operator that a backward operator belongs to; empty for others."""
    return op.forward_op if op.phase == "backward" else ""


def _adds_up(node: Node) -> bool:
    """Whether the node may sum the gradients of a tensor with several readers."""
    return node.bare_type == "add" and len(node.inputs) > 1
