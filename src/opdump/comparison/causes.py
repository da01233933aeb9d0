"""Finds the causes of a difference: the operators where values first appear that the other program lacks.

A value that the other program lacks may still be right: a mask of another form, three weights in one matrix, an image cut into columns. It is right
if the other program has a value that is read or computed from it. That also clears the values that it was made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from typing import Final

import numpy as np

from opdump.comparison.alignment import Alignment, LostGradients, arguments_key
from opdump.comparison.arguments import differing
from opdump.comparison.differences import Array, Difference, epsilon_of, fill_as_infinity, has_elements, in_roundings
from opdump.comparison.execution import Constants, Execution, input_of, same_inputs
from opdump.comparison.nodes import Kind, Node, Suspect, pass_of, reachable, runs_in_any_order, storages_of, without
from opdump.comparison.trace import Trace, leaf_name


@dataclass
class Sources:
    """The values of a program that the other program lacks, and their makers. Filled in execution order."""

    trace: Trace
    makers: dict[int, set[int]] = field(default_factory=dict)
    """By node: the makers of the inputs that the other program lacks."""
    unknown: set[int] = field(default_factory=set)
    """Nodes with an output that the other program lacks."""
    _beginning: set[int] = field(default_factory=set)
    """Nodes with an input that no node made and the other program lacks: data, or a state, which two runs round differently."""
    _floating: set[int] = field(default_factory=set)
    """The nodes of `unknown` with float outputs."""
    _parts: dict[int, dict[object, int]] = field(default_factory=dict)
    """By node: the parts of its outputs that were read and are known, and their sizes."""
    _telling: set[int] = field(default_factory=set)
    """Forward nodes whose outputs are known and depend on the inputs. Known values of the backward pass and the optimizer prove nothing: a
    normalisation cancels a scale, and a gradient may depend only on the shape of an input.
    """

    def read(self, node: Node, slot: int, value: Array, makers: Iterable[int], *, is_known: bool) -> None:
        """Record an input of a node and its makers."""
        made = {maker for maker in makers if maker >= 0}
        if not is_known:
            self.makers.setdefault(node.index, set()).update(made)
            if not made:
                self._beginning.add(node.index)
        elif node.op.phase != "optimizer" and _varies(value):
            record = node.inputs[slot]
            part = (record.shape, record.memory and (record.memory.offset, record.memory.strides))
            for maker in made:
                self._parts.setdefault(maker, {})[part] = value.size

    def gives(self, node: Node, outputs: Mapping[int, Array], *, is_known: bool) -> None:
        """Record the outputs of a node, after all its inputs."""
        if not is_known:
            self.unknown.add(node.index)
            if any(value.dtype.kind in "fc" for value in outputs.values()):
                self._floating.add(node.index)
        elif node.op.phase == "forward" and not node.moves and any(map(_varies, outputs.values())):
            self._telling.add(node.index)

    def of(self, lasting: Iterable[int], matched: Container[int], constants: Container[int] = ()) -> list[int]:
        """The nodes whose inputs the other program has and whose outputs it lacks, on the paths to the nodes `lasting`, without constants.

        `matched` nodes have a partner in the other program. If some sources are the only ones behind a difference in a matched node, only these
        are returned.
        """
        unknown = {index for index in self.unknown if index not in constants}
        found = self._firsts(lasting, unknown - self._cleared()) or self._firsts(lasting, unknown)
        found = [index for index in found if index not in self._beginning]
        reached = Counter(index for source in found for index in self._followers(source))
        alone = [
            source
            for source in found
            if any(reached[index] == 1 and index in matched for index in self._followers(source))
        ]
        return sorted(self._computing(set().union(*(self._who_computes(source) for source in alone or found))))

    def _who_computes(self, index: int) -> AbstractSet[int]:
        """The node itself, or, for a node that only moves values, the operators that compute something from them."""
        readers = self._computing(set(self._readers.get(index, ())))
        if not self.trace.nodes[index].moves or not readers:
            return {index}
        return set().union(*map(self._who_computes, readers))

    def _computing(self, nodes: AbstractSet[int]) -> AbstractSet[int]:
        """The forward nodes, or all nodes if none is forward; of these, the nodes with float outputs, or all if none has any."""
        forward = {index for index in nodes if self.trace.nodes[index].op.phase == "forward"} or nodes
        return {index for index in forward if index in self._floating} or forward

    def _followers(self, source: int) -> set[int]:
        """The node, and the nodes whose outputs the other program lacks because of it."""
        return reachable([source], lambda index: self.unknown.intersection(self._readers.get(index, ())))

    @cached_property
    def _readers(self) -> Mapping[int, list[int]]:
        """By node: the readers of its outputs that the other program lacks."""
        found: dict[int, list[int]] = {}
        for index, made in self.makers.items():
            for maker in made:
                found.setdefault(maker, []).append(index)
        return found

    def _firsts(self, lasting: Iterable[int], among: AbstractSet[int]) -> list[int]:
        makers = {index: made & among for index, made in self.makers.items()}
        found = reachable(among & set(lasting), lambda index: makers.get(index, ()))
        return [index for index in found if not makers.get(index)]

    def _cleared(self) -> set[int]:
        """The nodes of `unknown` that are right: the other program has all parts that are read from them, or a value computed from them."""
        found: set[int] = set()
        for index in sorted(self.unknown, reverse=True):
            size = max(self.trace.nodes[index].sizes, default=0)
            if sum(self._parts.get(index, {}).values()) >= size or any(
                reader in self._telling or reader in found for reader in self._readers.get(index, ())
            ):
                found.add(index)
        return found


def _varies(value: Array) -> bool:
    """Whether the values are floats and not all equal: only such values are evidence for what they were computed from."""
    return value.dtype.kind in "fc" and value.size > 1 and bool((value.reshape(-1) != value.flat[0]).any())


# Ranks suspects: independent ones come before those that follow from others.

OF_THE_RUN: Final = frozenset({"memory", "kernel", "data", "parameter"})
"""Kinds that were observed directly. They count even if the programs end in the same state."""


class Reach:
    """What follows from an operator: the readers of its outputs, their readers and so on, and the gradients of all these."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._gradients: dict[str, list[int]] = {}
        for node in trace.nodes:
            if node.op.forward_op:
                self._gradients.setdefault(node.op.forward_op, []).append(node.index)

    def __len__(self) -> int:
        return len(self._trace.nodes)

    def of(self, start: int) -> set[int]:
        """The nodes that follow from a node, without the node itself."""

        def followers(index: int) -> Iterator[int]:
            yield from self._trace.readers(index)
            yield from self._gradients.get(self._trace.nodes[index].op.op_name, ())

        return reachable([start], followers) - {start}


def ranked(suspects: Sequence[Suspect], latent: Sequence[Suspect], a: Trace, b: Trace) -> list[Suspect]:
    """The suspects, with those that follow from others last.

    `latent` are differences of the programs without an effect at their own operator. They count if a suspect follows from them.
    """
    reach_a, reach_b = Reach(a), Reach(b)
    followers: dict[int, tuple[set[int], set[int]]] = {}

    def reached(suspect: Suspect) -> tuple[set[int], set[int]]:
        if id(suspect) not in followers:
            followers[id(suspect)] = (_reached(reach_a, suspect.a), _reached(reach_b, suspect.b))
        return followers[id(suspect)]

    def follows(suspect: Suspect, cause: Suspect) -> bool:
        in_a, in_b = reached(cause)
        return (suspect.a is not None and suspect.a.index in in_a) or (
            suspect.b is not None and suspect.b.index in in_b
        )

    forward = [suspect for suspect in suspects if not _is_gradient(suspect)]
    gradients = [suspect for suspect in suspects if _is_gradient(suspect)]
    causes = [each for each in latent if any(follows(suspect, each) for suspect in suspects)]
    # Differing values were replaced by A's, so forward suspects are independent of each other. The gradient of a different operator is
    # a different operator as well, so gradients that follow from a forward suspect come last.
    by_order = sorted([*forward, *causes], key=_order)
    own = [
        each for each in gradients if not any(is_gradient_of(each, cause) or follows(each, cause) for cause in by_order)
    ]
    return [*sorted([*by_order, *own], key=_order), *sorted(without(gradients, own), key=_order)]


def causes_first(
    found: Sequence[Suspect], causes: Sequence[Suspect], leading: Sequence[Suspect], settled: Container[Hashable]
) -> list[Suspect]:
    """The suspects in this order, but with the causes of a different end state before the others, and the leading causes first.

    Suspects that concern the run and not the program (memory, a kernel, data) rank with the causes. `settled` suspects rank last among their equals:
    they had no effect on the end state of this or an earlier step, or none beyond that of the causes.
    """
    of_causes, of_leading = ({suspect.name for suspect in those} for those in (causes, leading))
    return sorted(
        found,
        key=lambda suspect: (
            suspect.kind not in OF_THE_RUN and suspect.name not in of_causes,
            suspect.name in settled,
            suspect.kind not in OF_THE_RUN and suspect.name not in of_leading,
        ),
    )


def proven_first(suspects: Sequence[Suspect]) -> list[Suspect]:
    """The suspects, with the earliest proven one first if it ran before the first suspect: no later operator is a better cause.

    A suspect is proven if its inputs have the same bits in both runs, and its type or its arguments differ.
    """
    proven = [each for each in suspects if each.kind in ("argument", "operator") and _is_proven(each)]
    if not proven:
        return list(suspects)
    earliest = min(proven, key=_order)
    first = suspects[0]
    if first is earliest or first.kind in OF_THE_RUN or _order(first) <= _order(earliest):
        return list(suspects)
    return [earliest, *(each for each in suspects if each is not earliest)]


def _is_proven(suspect: Suspect) -> bool:
    one, other = suspect.a, suspect.b
    if one is None or other is None or not other.inputs:
        return False
    differs = one.bare_type != other.bare_type or bool(differing(one, other))
    return (
        differs
        and all(has_elements(record) for record in other.inputs.values() if not record.skip)
        and same_inputs(one, other)
    )


def _reached(reach: Reach, node: Node | None) -> set[int]:
    return set() if node is None or node.index < 0 or node.index >= len(reach) else reach.of(node.index)


def _is_gradient(suspect: Suspect) -> bool:
    return all(node is None or node.op.phase == "backward" for node in (suspect.a, suspect.b))


def is_gradient_of(suspect: Suspect, cause: Suspect) -> bool:
    """Whether the suspect concerns a gradient of an operator that the cause concerns."""
    forward = {node.op.op_name for node in (cause.a, cause.b) if node is not None}
    return any(node is not None and node.op.forward_op in forward for node in (suspect.a, suspect.b))


def _order(suspect: Suspect) -> tuple[int, int]:
    """The phase in code that runs in any order, and the position in B, or in A if B lacks the operator. Operator numbers restart in records that are
    added to a step after its end.
    """
    node = suspect.b or suspect.a
    if node is None:
        return 0, 0
    # A graph of TensorFlow runs an operator of the backward pass that reads only constants before the forward pass.
    return pass_of(node) if runs_in_any_order(node) else 0, node.index


# Finds the operator that makes an input of B differ from A's.


class Causes:
    """Searches for causes among the operators that only one program has."""

    def __init__(self, reference: Execution, run: Execution, alignment: Alignment) -> None:
        self._reference, self._run, self._alignment = reference, run, alignment
        self._users_a, self._users_b = reference.trace.users(), run.trace.users()
        self._gradients = LostGradients(reference.trace, run.trace, alignment)
        self._constants_a, self._constants_b = Constants(reference), Constants(run)

    def of_input(self, one: Node, other: Node, slot: int, found: Difference) -> Suspect:
        """The cause of an input that differs."""
        return self._cause(one, other, slot, *self._writers(one, other, slot), found)

    def _writers(self, one: Node, other: Node, slot: int) -> tuple[frozenset[int], frozenset[int]]:
        """The operators that wrote an input, in A and in B."""
        none = frozenset[int]()
        return self._reference.writers.get((one.index, slot), none), self._run.writers.get((other.index, slot), none)

    def of_final(
        self, one: Node, other: Node, writers_a: frozenset[int], writers_b: frozenset[int], found: Difference
    ) -> Suspect:
        """The cause of a parameter that differs at the end of the step."""
        last_b = max(writers_b, default=-1)
        last_a = max(writers_a, default=-1)
        suspect = self._cause(one, other, 0, writers_a, writers_b, found)
        if suspect.a is one or suspect.b is other:
            # No operator reads it: report the operator that wrote it last.
            node_a = self._reference.trace.nodes[last_a] if last_a >= 0 else None
            node_b = self._run.trace.nodes[last_b] if last_b >= 0 else None
            if node_a is not None and node_b is not None and node_a.op.phase != node_b.op.phase:
                # One program does not write it in this step: the other's operator is missing or extra.
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
        score = in_roundings(found.relative, epsilon_of(record.dtype))
        only_a, only_b = self._candidates(writers_a, writers_b)
        known_a = self._values(self._reference, only_a, one, slot)
        if bool(only_a) == bool(only_b) and all(node.moves for node in (*only_a, *only_b)):
            moved = self._unexplained(self._run, only_b, writers_b, known_a, self._constants_b)
            if moved is not None:
                return self._operator(moved, only_a, score)
            one, other, slot = self._other_parameter(writers_a, writers_b) or (one, other, slot)
            return self._other_source(one, other, slot, *self._writers(one, other, slot), score)
        if not only_a:
            guilty = self._first_with_the_same(only_b)
            what = f"{guilty.op.op_name} has no counterpart in A, and {other.op.op_name} reads its output"
            return Suspect("extra", None, guilty, "output", 0, score, what)
        odd = self._unexplained(self._run, only_b, writers_b, known_a, self._constants_b)
        cut = self._cut(odd, only_a, other, slot, score)
        if cut is not None:
            return cut
        if not only_b:
            missing = only_a[-1]
            what = f"{missing.op.op_name} of A has no counterpart in B, and {other.op.op_name} reads its input instead"
            return Suspect("missing", missing, other, "input", slot, score, what)
        if odd is not None:
            return self._operator(odd, only_a, score)
        known_b = self._values(self._run, only_b, other, slot)
        lost = self._unexplained(self._reference, only_a, writers_a, known_b, self._constants_a)
        if lost is not None:
            what = f"{other.op.op_name} does not read the output of {lost.op.op_name} of A"
            return Suspect("missing", lost, other, "input", slot, score, what)
        # A constant table of floats has one form, but indices and masks may replace each other.
        table = self._unexplained(self._run, only_b, writers_b, known_a, ()) if epsilon_of(record.dtype) else None
        if table is not None:
            return self._operator(table, only_a, score)
        return self._other_source(one, other, slot, writers_a, writers_b, score)

    def _candidates(self, writers_a: frozenset[int], writers_b: frozenset[int]) -> tuple[list[Node], list[Node]]:
        """The operators behind the writers that only one program has, of A and of B. A copy is a candidate only if nothing else is, and the other
        program lacks it.
        """
        b_of, a_of = self._alignment.b_of, self._alignment.a_of
        all_a = _leading_to(self._reference, writers_a, lambda node: node.index not in b_of or node.moves)
        all_b = _leading_to(self._run, writers_b, lambda node: node.index not in a_of or node.moves)
        if all(node.moves for node in (*all_a, *all_b)):
            return [node for node in all_a if node.index not in b_of], [
                node for node in all_b if node.index not in a_of
            ]
        return [node for node in all_a if not node.moves], [node for node in all_b if not node.moves]

    def _operator(self, odd: Node, only_a: list[Node], score: float) -> Suspect:
        """A suspect: B computes the value with a different operator than A."""
        partner = self._partner(odd, only_a)
        what = f"{odd.op.op_type} computes a value that no operator of A produces here"
        if partner is not None:
            what += f" ({partner.op.op_type} in A)"
        return Suspect("operator", partner, odd, "output", 0, score, what)

    def _cut(self, odd: Node | None, only_a: Iterable[Node], other: Node, slot: int, score: float) -> Suspect | None:
        """The place where gradients stop flowing in B, if that is why B lacks these operators and has none of its own in the backward pass."""
        if odd is not None and odd.op.phase == "backward":
            return None  # later readers of gradients run without the missing ones
        lost = self._gradients.first(only_a)
        if lost is None:
            return None
        what = f"no gradient flows back here: {lost.missing.op.op_name} of A has no counterpart in B"
        if lost.nearest is not None:
            return Suspect("missing", lost.missing, lost.nearest, "input", lost.slot, score, what)
        is_backward = other.op.phase == "backward" and other.index < len(self._run.trace.nodes)
        return Suspect("missing", lost.missing, other if is_backward else None, "input", slot, score, what)

    def _other_parameter(self, writers_a: frozenset[int], writers_b: frozenset[int]) -> tuple[Node, Node, int] | None:
        """The makers of an input, if they are the same operator with the same arguments and only read another parameter or other data, and the slot."""
        if len(writers_a) != 1 or len(writers_b) != 1 or -1 in writers_a | writers_b:
            return None
        one, other = self._reference.trace.nodes[min(writers_a)], self._run.trace.nodes[min(writers_b)]
        namesake = self._reference.trace.nodes[self._alignment.a_of.get(other.index, one.index)]
        if namesake is not one and namesake.op.op_name == other.op.op_name:
            return None  # both programs have this operator, and only its reader is at fault
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
        """The first node with the same outputs as the last one: a copy of a value onto itself is not a cause."""
        last = {fingerprint(value) for value in self._run.outputs.get(nodes[-1].index, {}).values()}
        for node in nodes:
            if last and last <= {fingerprint(value) for value in self._run.outputs.get(node.index, {}).values()}:
                return node
        return nodes[-1]

    def _values(self, run: Execution, nodes: Iterable[Node], reader: Node, slot: int) -> set[tuple[float, ...]]:
        """Fingerprints of the inputs and outputs of these operators, of the outputs as they were read, and of the reader's input."""
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
        """The operator whose output the other side lacks although it has the inputs; not one of `cleared`.

        The search goes back from the `writers` of the differing value, and stops where the other side has the value.
        """
        inside = {node.index for node in nodes}

        def is_lacking(node: Node) -> bool:
            if not (node.index in inside or node.moves) or node.index in cleared:
                return False
            first = next(iter(run.outputs.get(node.index, {}).values()), None)
            return first is None or fingerprint(first) not in known

        def has_inputs(node: Node) -> bool:
            return all(
                fingerprint(value) in known
                for slot, value in run.inputs.get(node.index, {}).items()
                if (made_by := run.writers.get((node.index, slot), frozenset())) & inside
                and not all(index in cleared for index in made_by)
            )

        lacking = (node for node in reversed(_leading_to(run, writers, is_lacking)) if node.index in inside)
        return next(filter(has_inputs, lacking), None)

    def _partner(self, guilty: Node, candidates: list[Node]) -> Node | None:
        same = [node for node in candidates if node.bare_type == guilty.bare_type]
        shaped = [node for node in candidates if node.shapes[1] == guilty.shapes[1]]
        return (same or shaped or candidates or [None])[-1]  # type: ignore[list-item]

    def _other_source(
        self, one: Node, other: Node, slot: int, writers_a: frozenset[int], writers_b: frozenset[int], score: float
    ) -> Suspect:
        """A suspect: B reads the input from somewhere else than A."""

        def named(run: Execution, writers: frozenset[int], node: Node) -> str:
            nodes = [run.trace.nodes[index].op.op_name for index in sorted(writers) if index >= 0]
            if nodes:
                return " and ".join(nodes[-2:])
            return (leaf_name(node.inputs[slot]) if slot in node.inputs else "") or "an input of the program"

        before, after = named(self._reference, writers_a, one), named(self._run, writers_b, other)
        made_b = {self._alignment.b_of.get(index, -1) for index in writers_a if index >= 0}
        what = f"reads {after}; in A it reads {before}"
        if made_b and made_b == writers_b - {-1}:
            what = f"reads a different part of the output of {after}, or reads it at a different time"
        return Suspect("input", one, other, "input", slot, score, what)


def _leading_to(run: Execution, writers: Iterable[int], follows: Callable[[Node], bool]) -> list[Node]:
    """The operators among `writers` for which `follows` is true, those that wrote their inputs and so on, in execution order."""
    nodes = run.trace.nodes

    @cache
    def is_followed(index: int) -> bool:
        return index >= 0 and follows(nodes[index])

    def before(index: int) -> Iterator[int]:
        return filter(is_followed, chain(*(run.writers.get((index, slot), ()) for slot in nodes[index].inputs)))

    return [nodes[index] for index in sorted(reachable(filter(is_followed, writers), before))]


def _outlasts(run: Execution, node: Node, slot: int) -> bool:
    """Whether an input exists before the step, or is a parameter after it."""
    kept = storages_of(run.trace.finals.values())
    memory = node.inputs[slot].memory
    return (node.index, slot) not in run.writers or (memory is not None and memory.storage in kept)


def fingerprint(values: Array) -> tuple[float, ...]:
    """Numbers that do not depend on the order of the elements: how many there are, how many are not finite or fill a mask, and the sum, the sum of
    squares and the largest magnitude of the others, with seven digits.
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
        )
    scale = top * flat.size
    # Round the sum relative to the size of its terms, so that a sum that is mathematically zero is zero.
    return (
        *counts,
        round(parts[0] / scale, 7) + 0.0 if scale else 0.0,
        _digits(parts[1]),
        _digits(top),
    )


def _digits(value: float) -> float:
    return float(f"{value:.6e}")
