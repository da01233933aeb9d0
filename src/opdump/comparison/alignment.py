"""Finds which operator of one run is which operator of the other, without a mapping file.

Both execution orders are aligned by what stands still between two versions of a program: in passes from the strictest description of an
operator to the loosest, each pass between the matches of the one before. What is left over, because statements were reordered, is
matched by the data flow: an operator whose makers, or whose readers, are matched with those of another.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from opdump.comparison.trace import Node, Trace, leaf_name

Token = Hashable
_ROUNDS = 4
"""How often pairs are looked for along the data flow: each round reaches one operator further."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Pairs of nodes, by their index in either trace."""

    b_of: Mapping[int, int]
    a_of: Mapping[int, int]

    @property
    def matched(self) -> int:
        """How many pairs there are."""
        return len(self.b_of)


def align(a: Trace, b: Trace) -> Alignment:
    """Matches the nodes of two traces."""
    pairs: dict[int, int] = {}
    for describe in (_named, _placed, _shaped, _typed_with_shape):
        _match_gaps(a.nodes, b.nodes, describe, pairs)
    _follow_data(a, b, pairs)
    return Alignment(pairs, {there: here for here, there in pairs.items()})


def arguments_key(node: Node) -> str:
    """The arguments that are no tensors, as text."""
    return json.dumps(dict(node.op.arguments), sort_keys=True, default=str)


def _leaves(node: Node) -> tuple[str, ...]:
    return tuple(leaf_name(record) for record in node.inputs.values())


def _statistics(node: Node) -> tuple[str, ...]:
    """The outputs' statistics in three digits: the same where values differ by rounding alone, mostly."""
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
    return (node.bare_type, node.op.phase, node.shapes[1])


def _match_gaps(
    a: Sequence[Node], b: Sequence[Node], describe: Callable[[Node], Token], pairs: dict[int, int]
) -> None:
    """Aligns the runs of unmatched nodes between neighbouring pairs that stand in the same order."""
    anchors = _increasing(sorted(pairs.items()))
    taken_b = set(pairs.values())
    start_a = start_b = 0
    for end_a, end_b in [*anchors, (len(a), len(b))]:
        free_a = [node for node in a[start_a:end_a] if node.index not in pairs]
        free_b = [node for node in b[start_b:end_b] if node.index not in taken_b]
        start_a, start_b = end_a + 1, end_b + 1
        if not free_a or not free_b:
            continue
        matcher = SequenceMatcher(
            None, [describe(node) for node in free_a], [describe(node) for node in free_b], autojunk=False
        )
        for block in matcher.get_matching_blocks():
            for offset in range(block.size):
                pairs[free_a[block.a + offset].index] = free_b[block.b + offset].index


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part of pairs, sorted by the first, in which the second grows too."""
    from bisect import bisect_left

    tails: list[int] = []
    ends: list[int] = []
    previous: list[int] = []
    for place, (_, value) in enumerate(pairs):
        at = bisect_left(tails, value)
        previous.append(ends[at - 1] if at else -1)
        if at == len(tails):
            tails.append(value)
            ends.append(place)
        else:
            tails[at], ends[at] = value, place
    found = []
    place = ends[-1] if ends else -1
    while place >= 0:
        found.append(pairs[place])
        place = previous[place]
    return found[::-1]


def _follow_data(a: Trace, b: Trace, pairs: dict[int, int]) -> None:
    """Matches what is left over by makers and readers, and pairs again what was paired against the data flow."""
    users_a, users_b = a.users(), b.users()
    for _ in range(_ROUNDS):
        back = {there: here for here, there in pairs.items()}
        doubtful = {
            here for here, there in pairs.items() if _agreement(a, b, users_a, users_b, pairs, here, there) < 0
        }
        free_a = [node for node in a.nodes if node.index not in pairs or node.index in doubtful]
        free_b = [node for node in b.nodes if node.index not in back or back[node.index] in doubtful]
        by_type: dict[Token, list[Node]] = defaultdict(list)
        for node in free_b:
            by_type[node.bare_type, node.op.phase].append(node)
        found = []
        for node in free_a:
            for other in by_type.get((node.bare_type, node.op.phase), ()):
                if node.sizes != other.sizes:
                    continue
                score = _agreement(a, b, users_a, users_b, pairs, node.index, other.index) + _likeness(node, other)
                found.append((score, node.index, other.index))
        found.sort(key=lambda each: (-each[0], each[1], abs(each[1] - each[2])))
        changed = False
        used_a: set[int] = set()
        used_b: set[int] = set()
        for score, here, there in found:
            if score <= 1 or here in used_a or there in used_b:
                continue
            used_a.add(here)
            used_b.add(there)
            if pairs.get(here) != there:
                former = pairs.pop(here, None)
                if there in back and pairs.get(back[there]) == there:
                    del pairs[back[there]]
                pairs[here] = there
                changed = changed or former != there
        if not changed:
            return


def _agreement(
    a: Trace,
    b: Trace,
    users_a: Mapping[tuple[int, int], list[tuple[int, int]]],
    users_b: Mapping[tuple[int, int], list[tuple[int, int]]],
    pairs: Mapping[int, int],
    here: int,
    there: int,
) -> float:
    """How many makers and readers of the two are pairs, less those that are pairs with others."""
    score = 0.0
    one, other = a.nodes[here], b.nodes[there]
    for slot, maker in one.makers.items():
        expected = pairs.get(maker[0])
        if expected is None:
            continue
        actual = other.makers.get(slot)
        score += 1.0 if actual is not None and actual == (expected, maker[1]) else -1.0
    leaves = [(leaf_name(record), leaf_name(other.inputs[slot])) for slot, record in one.inputs.items() if slot in other.inputs]
    for name, name_there in leaves:
        if name and name_there:
            score += 1.0 if name == name_there else -0.5
    readers = Counter(pairs.get(user) for slot in one.outputs for user, _ in users_a.get((here, slot), ()))
    readers_there = Counter(user for slot in other.outputs for user, _ in users_b.get((there, slot), ()))
    score += sum((readers & readers_there).values())
    return score


def _likeness(one: Node, other: Node) -> float:
    score = 0.0
    if one.shapes == other.shapes:
        score += 1
    elif one.shapes[1] != other.shapes[1]:
        score -= 2
    if arguments_key(one) == arguments_key(other):
        score += 0.5
    if one.module == other.module:
        score += 0.5
    if one.op.stack and other.op.stack and one.op.stack[0].code and one.op.stack[0].code == other.op.stack[0].code:
        score += 0.5
    if _statistics(one) == _statistics(other):
        score += 0.5
    return score
