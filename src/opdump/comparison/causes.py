"""Why an input of an operator of B holds something else than in A: which operator in between is to blame."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.alignment import Alignment, arguments_key
from opdump.comparison.constants import Constants
from opdump.comparison.differences import Difference, epsilon_of
from opdump.comparison.execution import Execution, input_of
from opdump.comparison.fills import fill_as_infinity
from opdump.comparison.gradients import LostGradients
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Kind, Suspect
from opdump.comparison.trace import leaf_name

Array = NDArray[Any]


class Causes:
    """Looks for causes among the operators that only one of the programs has."""

    def __init__(self, reference: Execution, run: Execution, alignment: Alignment) -> None:
        self._reference, self._run, self._alignment = reference, run, alignment
        self._users_a, self._users_b = reference.trace.users(), run.trace.users()
        self._gradients = LostGradients(reference.trace, run.trace, alignment)
        self._constants_a, self._constants_b = Constants(reference), Constants(run)

    def of_input(self, one: Node, other: Node, slot: int, found: Difference) -> Suspect:
        """The cause of an input that differs."""
        writers_a = self._reference.writers.get((one.index, slot), frozenset())
        writers_b = self._run.writers.get((other.index, slot), frozenset())
        return self._cause(one, other, slot, writers_a, writers_b, found)

    def of_final(
        self, one: Node, other: Node, writers_a: frozenset[int], writers_b: frozenset[int], found: Difference
    ) -> Suspect:
        """The cause of a parameter that differs at the end of the step."""
        last_b = max(writers_b, default=-1)
        last_a = max(writers_a, default=-1)
        suspect = self._cause(one, other, 0, writers_a, writers_b, found)
        if suspect.a is one or suspect.b is other:
            # No operator reads it: who wrote it last stands for it.
            node_a = self._reference.trace.nodes[last_a] if last_a >= 0 else None
            node_b = self._run.trace.nodes[last_b] if last_b >= 0 else None
            if node_a is not None and node_b is not None and node_a.op.phase != node_b.op.phase:
                # One of the programs does not write it in this step: the other's operator is what is missing, or too much.
                if node_a.op.order > node_b.op.order:
                    node_b = None
                else:
                    node_a = None
            kind: Kind = "missing" if node_b is None else "extra" if node_a is None else "input"
            return Suspect(kind, node_a, node_b, "output", 0, suspect.score, suspect.evidence)
        return suspect

    def _cause(
        self, one: Node, other: Node, slot: int, writers_a: frozenset[int], writers_b: frozenset[int], found: Difference
    ) -> Suspect:
        record = other.inputs.get(slot) or one.inputs[slot]
        epsilon = epsilon_of(record.dtype)
        score = found.relative / epsilon if epsilon else math.inf
        all_a = self._only(self._reference, writers_a, self._alignment.b_of)
        all_b = self._only(self._run, writers_b, self._alignment.a_of)
        # A copy is no cause, unless nothing else is: then one of the programs lacks it.
        only_a = [node for node in all_a if not node.moves]
        only_b = [node for node in all_b if not node.moves]
        if not only_a and not only_b:
            only_a = [node for node in all_a if node.index not in self._alignment.b_of]
            only_b = [node for node in all_b if node.index not in self._alignment.a_of]
            if only_a and only_b:
                moved = self._unexplained(
                    self._run, only_b, writers_b, self._values(self._reference, only_a, one, slot), self._constants_b
                )
                if moved is not None:
                    return self._operator(moved, only_a, score)
                only_a = only_b = []
        if not only_a and not only_b:
            one, other, slot = self._other_parameter(writers_a, writers_b) or (one, other, slot)
            writers_a = self._reference.writers.get((one.index, slot), frozenset())
            writers_b = self._run.writers.get((other.index, slot), frozenset())
            return Suspect(
                "input", one, other, "input", slot, score, self._wiring(one, other, slot, writers_a, writers_b)
            )
        if not only_a:
            guilty = self._first_with_the_same(only_b)
            what = f"{guilty.op.op_name} has no counterpart in A, and {other.op.op_name} reads its output"
            return Suspect("extra", None, guilty, "output", 0, score, what)
        known_a = self._values(self._reference, only_a, one, slot)
        odd = self._unexplained(self._run, only_b, writers_b, known_a, self._constants_b)
        if odd is None or odd.op.phase != "backward":
            # What reads gradients afterwards does without those that are missing.
            cut = self._cut(only_a, other, slot, score)
            if cut is not None:
                return cut
        if not only_b:
            missing = only_a[-1]
            what = f"{missing.op.op_name} of A has no counterpart in B, and {other.op.op_name} reads its input instead"
            return Suspect("missing", missing, other, "input", slot, score, what)
        if odd is None:
            known_b = self._values(self._run, only_b, other, slot)
            lost = self._unexplained(self._reference, only_a, writers_a, known_b, self._constants_a)
            if lost is None and epsilon and (table := self._unexplained(self._run, only_b, writers_b, known_a, ())):
                # A table of floats is written in one way; indices and masks stand for each other.
                return self._operator(table, only_a, score)
            if lost is None:
                return Suspect(
                    "input", one, other, "input", slot, score, self._wiring(one, other, slot, writers_a, writers_b)
                )
            what = f"{other.op.op_name} does not read the output of {lost.op.op_name} of A"
            return Suspect("missing", lost, other, "input", slot, score, what)
        return self._operator(odd, only_a, score)

    def _operator(self, odd: Node, only_a: list[Node], score: float) -> Suspect:
        """Another operator in B than in A."""
        partner = self._partner(odd, only_a)
        what = f"{odd.op.op_type} computes a value that no operator of A produces here"
        if partner is not None:
            what += f" ({partner.op.op_type} in A)"
        return Suspect("operator", partner, odd, "output", 0, score, what)

    def _cut(self, only_a: Iterable[Node], other: Node, slot: int, score: float) -> Suspect | None:
        """The place where gradients cease to flow in B, if that is why it lacks these operators."""
        lost = self._gradients.first(only_a)
        if lost is None:
            return None
        what = f"no gradient flows back here: {lost.missing.op.op_name} of A has no counterpart in B"
        if lost.nearest is not None:
            return Suspect("missing", lost.missing, lost.nearest, "input", lost.slot, score, what)
        is_backward = other.op.phase == "backward" and other.index < len(self._run.trace.nodes)
        return Suspect("missing", lost.missing, other if is_backward else None, "input", slot, score, what)

    def _other_parameter(self, writers_a: frozenset[int], writers_b: frozenset[int]) -> tuple[Node, Node, int] | None:
        """The makers of what is read, if both do the same to the same, but with other parameters or data."""
        if len(writers_a) != 1 or len(writers_b) != 1 or -1 in writers_a | writers_b:
            return None
        one, other = self._reference.trace.nodes[min(writers_a)], self._run.trace.nodes[min(writers_b)]
        if one.bare_type != other.bare_type or one.shapes != other.shapes or arguments_key(one) != arguments_key(other):
            return None
        odd = [slot for slot in one.inputs if not self._is_same_tensor(one, other, slot)]
        outlast = all(_outlasts(self._reference, one, slot) and _outlasts(self._run, other, slot) for slot in odd)
        return (one, other, odd[0]) if outlast and 0 < len(odd) < len(one.inputs) else None

    def _is_same_tensor(self, one: Node, other: Node, slot: int) -> bool:
        """Whether an input is the same tensor in both programs."""
        made_a = self._reference.writers.get((one.index, slot))
        made_b = self._run.writers.get((other.index, slot))
        if made_a is not None or made_b is not None:
            return {self._alignment.b_of.get(index, index) for index in made_a or ()} == set(made_b or ())
        first, second = one.inputs[slot].memory, other.inputs[slot].memory
        if first is None or second is None:
            return leaf_name(one.inputs[slot]) == leaf_name(other.inputs[slot])
        return self._alignment.storages.get(first.storage) == second.storage and first.offset == second.offset

    def _first_with_the_same(self, nodes: list[Node]) -> Node:
        """The last node, or the first that already gave what it gave: a copy onto itself is no cause."""
        last = {fingerprint(value) for value in self._run.outputs.get(nodes[-1].index, {}).values()}
        for node in nodes:
            if last and last <= {fingerprint(value) for value in self._run.outputs.get(node.index, {}).values()}:
                return node
        return nodes[-1]

    def _only(self, run: Execution, writers: Iterable[int], matched: Any) -> list[Node]:
        """The operators of one program alone that lead to what these wrote, in execution order."""
        found: dict[int, Node] = {}
        waiting = [index for index in writers if index >= 0]
        while waiting:
            index = waiting.pop()
            node = run.trace.nodes[index]
            if index in found or (index in matched and not node.moves):
                continue
            found[index] = node
            for slot in node.inputs:
                waiting.extend(each for each in run.writers.get((index, slot), ()) if each >= 0)
        return [found[index] for index in sorted(found)]

    def _values(self, run: Execution, nodes: Iterable[Node], reader: Node, slot: int) -> set[tuple[float, ...]]:
        """Fingerprints of what these operators read and wrote, as it was read, and of what the reader reads."""
        users = self._users_a if run is self._reference else self._users_b
        seen: list[Array | None] = [input_of(run, reader, slot)]
        for node in nodes:
            seen.extend(run.inputs.get(node.index, {}).values())
            seen.extend(run.outputs.get(node.index, {}).values())
            for output in node.outputs:
                seen.extend(
                    input_of(run, run.trace.nodes[user], place) for user, place in users.get((node.index, output), ())
                )
        return {fingerprint(value) for value in seen if value is not None}

    def _unexplained(
        self,
        run: Execution,
        nodes: list[Node],
        writers: Iterable[int],
        known: set[tuple[float, ...]],
        cleared: Container[int],
    ) -> Node | None:
        """The operator that gives what the other side has nowhere, though what it reads is there; none of those `cleared`.

        Looked for on the ways back from the `writers` of what differs, which end where the other side has the value.
        """
        inside = {node.index for node in nodes}
        waiting = [index for index in writers if index >= 0]
        seen: set[int] = set()
        unexplained: list[Node] = []
        while waiting:
            index = waiting.pop()
            node = run.trace.nodes[index]
            if index in seen or not (index in inside or node.moves):
                continue
            seen.add(index)
            if index in cleared or self._is_explained(run.outputs.get(index, {}).values(), known):
                continue
            if index in inside:
                unexplained.append(node)
            for slot in node.inputs:
                waiting.extend(each for each in run.writers.get((index, slot), ()) if each >= 0)
        for node in sorted(unexplained, key=lambda each: -each.index):
            reads = [
                value
                for slot, value in run.inputs.get(node.index, {}).items()
                if (made_by := run.writers.get((node.index, slot), frozenset())) & inside
                and not all(index in cleared for index in made_by)
            ]
            if all(fingerprint(value) in known for value in reads):
                return node
        return None

    def _is_explained(self, values: Iterable[Array], known: set[tuple[float, ...]]) -> bool:
        given = list(values)
        return bool(given) and all(fingerprint(value) in known for value in given[:1])

    def _partner(self, guilty: Node, candidates: list[Node]) -> Node | None:
        same = [node for node in candidates if node.bare_type == guilty.bare_type]
        shaped = [node for node in candidates if node.shapes[1] == guilty.shapes[1]]
        return (same or shaped or candidates or [None])[-1]  # type: ignore[list-item]

    def _wiring(self, one: Node, other: Node, slot: int, writers_a: frozenset[int], writers_b: frozenset[int]) -> str:
        def named(run: Execution, writers: frozenset[int], node: Node) -> str:
            nodes = [run.trace.nodes[index].op.op_name for index in sorted(writers) if index >= 0]
            if nodes:
                return " and ".join(nodes[-2:])
            return (leaf_name(node.inputs[slot]) if slot in node.inputs else "") or "an input of the program"

        before, after = named(self._reference, writers_a, one), named(self._run, writers_b, other)
        made_b = {self._alignment.b_of.get(index, -1) for index in writers_a if index >= 0}
        if made_b and made_b == {index for index in writers_b if index >= 0}:
            return f"reads another part of what {after} wrote, or reads it at another time"
        return f"reads {after}; in A it reads {before}"


def _outlasts(run: Execution, node: Node, slot: int) -> bool:
    """Whether an input is there before the step, or is a parameter after it."""
    kept = {record.memory.storage for record in run.trace.finals.values() if record.memory is not None}
    memory = node.inputs[slot].memory
    return (node.index, slot) not in run.writers or (memory is not None and memory.storage in kept)


def fingerprint(values: Array) -> tuple[float, ...]:
    """What stays the same when elements change places: count, sum, sum of squares, largest and smallest, in nine digits; of what is finite
    and no fill of a mask.
    """
    flat = np.asarray(values, dtype=np.complex128 if values.dtype.kind == "c" else np.float64).reshape(-1)
    flat = fill_as_infinity(flat)
    finite = flat[np.isfinite(flat)]
    counts = float(flat.size), float(flat.size - finite.size)
    if finite.size == 0:
        return counts
    with np.errstate(all="ignore"):
        magnitudes = np.abs(finite)
        top = float(magnitudes.max())
        parts = (
            float(np.abs(finite.sum())) if finite.dtype.kind == "c" else float(finite.sum()),
            float((magnitudes**2).sum()),
            top,
            float(magnitudes.min()),
        )
    scale = top * flat.size
    # Sums are rounded by what they are sums of: one that is zero by mathematics is zero here.
    return (
        *counts,
        round(parts[0] / scale, 7) + 0.0 if scale else 0.0,
        _digits(parts[1]),
        _digits(parts[2]),
    )


def _digits(value: float) -> float:
    return float(f"{value:.6e}")
