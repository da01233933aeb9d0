"""Compares the outputs of a kernel with float64 results for its own inputs. This finds wrong kernels and flipped bits."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump import amounts
from opdump.adapters.replay import replayer_of
from opdump.comparison.accuracy import (
    CONSTANTS,
    GRAPH,
    KERNEL,
    LARGEST,
    OPAQUE,
    RECORDED_GRAPH,
    Float64Outputs,
    allowed_error,
    error_of,
    record_difference,
    told_error,
)
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.differences import (
    WHOLLY,
    Array,
    Difference,
    coarsest,
    difference,
    epsilon_of,
    equal_elements,
    in_roundings,
    largest_of,
    root_mean_square,
    same_bits,
    unshaped_difference,
)
from opdump.comparison.execution import (
    Execution,
    draws,
    outputs_of_both,
    recorded,
    recorded_input,
    recorded_inputs,
    recorded_output,
    recorded_values,
    replay,
    same_inputs,
)
from opdump.comparison.integrity import data_suspect
from opdump.comparison.nodes import Node, Place, Suspect, are_of_two_modes, reachable
from opdump.comparison.trace import Trace, leaf_name
from opdump.graph import PARAMETER_PREFIX
from opdump.records import TensorRecord

_TIMES_THE_OTHER: Final = 64.0
_FEWEST: Final = 8
"""With fewer elements than this, none can be called an outlier."""
_SHARE_OF_USUAL: Final = 0.9


def erring_kernel(
    a: Trace, b: Trace, alignment: Alignment, alike: Sequence[tuple[Node, Node]], suspects: Sequence[Suspect]
) -> Suspect | None:
    """The first kernel that errs: among pairs with the same inputs, then among operators that only B has, then among those that only A has.

    Only operators before the first suspect are examined, because later inputs differ.
    """
    first_a = min((each.a.index for each in suspects if each.a is not None), default=len(a.nodes))
    first_b = min((each.b.index for each in suspects if each.b is not None), default=len(b.nodes))
    found = chain(
        (kernel_suspect(one, other) for one, other in alike if other.index <= first_b),
        (lone_kernel_suspect(node, is_b=True) for node in _lone(b, alignment.a_of, first_b)),
        (lone_kernel_suspect(node, is_b=False) for node in _lone(a, alignment.b_of, first_a)),
    )
    return next(filter(None, found), None)


def _lone(trace: Trace, matched: Container[int], end: int) -> Iterator[Node]:
    """The operators before `end` that only one program has, without moves, random draws, and those that the framework rewrote."""
    return (
        node
        for node in trace.nodes[:end]
        if node.index not in matched and not node.moves and not node.is_rewritten and not draws(node)
    )


def kernel_suspect(one: Node, other: Node) -> Suspect | None:
    """A suspect if one run's output is wrong for its own inputs. Both nodes are the same operator with the same arguments."""
    exact = cache(Float64Outputs.of)
    is_rewritten = one.is_rewritten or other.is_rewritten  # then outputs do not follow from the recorded inputs
    for slot, first, second in () if is_rewritten else outputs_of_both(one, other):
        record = other.outputs[slot]
        allowed = max(allowed_error(other, record), allowed_error(one, one.outputs[slot]))
        if not allowed or slot in other.unspecified or difference(first, second).peak <= allowed:
            continue
        exact_a, exact_b = exact(one), exact(other)
        own_a = None if exact_a is None else exact_a.error(slot, first)
        own_b = None if exact_b is None else exact_b.error(slot, second)
        if own_a is None or own_b is None:
            continue
        for mine, its, is_b in ((own_b, own_a, True), (own_a, own_b, False)):
            if mine > allowed and mine > _TIMES_THE_OTHER * its:
                what = f"{'' if is_b else 'in A: '}{told_error(mine)}; in the other run by {its:.2g}"
                return Suspect("kernel", one, other, "output", slot, mine / epsilon_of(record.dtype), what)
    return None


def lone_kernel_suspect(node: Node, *, is_b: bool) -> Suspect | None:
    """A suspect if a few elements of an output are further from the float64 result than rounding allows, and further than all the others.

    For an operator that only one program has.
    """
    exact = Float64Outputs.of(node) if node.rounding else None
    if exact is None:
        return None
    for slot, reference in exact.exact.items():
        record, given = node.outputs[slot], recorded_output(node, slot)
        allowed = 0.0 if slot in node.unspecified else allowed_error(node, record)
        if given is None or given.shape != reference.shape or not allowed:
            continue
        kept = ~_left_its_type(reference, given, largest_of(record.dtype))
        if kept.sum() < _FEWEST:
            continue
        exact_kept, given = reference[kept], given[kept]
        with np.errstate(all="ignore"):
            errors = np.abs(given.astype(reference.dtype) - exact_kept)
        errors[equal_elements(given, exact_kept)] = 0.0
        errors[~np.isfinite(errors)] = math.inf
        usual = float(np.quantile(errors, _SHARE_OF_USUAL, method="higher"))
        if not errors.max() > _TIMES_THE_OTHER * usual:
            continue
        summands = exact.summands.get(slot)
        error = error_of(exact_kept, given, None if summands is None else summands[kept])
        if error > allowed:
            what = (
                f"{'' if is_b else 'in A: '}{int((errors > _TIMES_THE_OTHER * usual).sum()):,} of {math.prod(record.shape):,} elements differ from a "
                f"float64 computation on the same inputs, by up to {error:.2g} of the largest"
            )
            one, other = (None, node) if is_b else (node, None)
            return Suspect("kernel", one, other, "output", slot, error / epsilon_of(record.dtype), what)
    return None


def _left_its_type(reference: Array, given: Array, largest: float) -> NDArray[np.bool_]:
    """Where an output is infinite or NaN because the float64 result is too, or because the value exceeds the range of the type."""
    with np.errstate(invalid="ignore"):
        return ~np.isfinite(given) & (equal_elements(given, reference) | (np.abs(reference) > largest / 2))


# Judges operators that cannot be run again (of other packages, graphs of `torch.compile`) by their recorded values. If their inputs have the same
# bits in both runs, their outputs may differ only by the rounding of all that they compute.

_OF_SEVERAL_PROCESSES: Final = "c10d"
"""Part of the names of collectives, whose outputs depend on other processes."""


def opaque_suspects(a: Trace, b: Trace, alignment: Alignment) -> tuple[list[Suspect], set[str]]:
    """The operators whose outputs differ although their inputs have the same bits, and the kernels whose differences prove nothing."""
    suspects: list[Suspect] = []
    not_proven: set[str] = set()
    for there, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[there]
        if replayer_of(one.op) is not None or replayer_of(other.op) is not None:
            continue
        suspect, are_same = _judged(one, other)
        if suspect is not None:
            suspects.append(suspect)
        elif not are_same:
            not_proven.add(other.kernel)
    return suspects, not_proven


def _judged(one: Node, other: Node) -> tuple[Suspect | None, bool]:
    """The suspect for an operator, or None, and whether its outputs are equal in both runs."""
    are_given_the_same = (
        same_inputs(one, other)
        and not differing(one, other)
        and not (one.is_rewritten or other.is_rewritten)
        and _OF_SEVERAL_PROCESSES not in other.op.kernel
    )
    outputs = [each for each in outputs_of_both(one, other) if each[0] not in other.unspecified]
    are_same = True
    for slot, first, second in outputs:
        record = other.outputs[slot]
        found = (unshaped_difference if are_of_two_modes(one, other) else difference)(first, second)
        are_same &= not found
        epsilon = coarsest((record, one.outputs[slot]))
        if are_given_the_same and found.relative > OPAQUE.of(epsilon):
            values = *recorded_inputs(one).values(), *(of_a for _, of_a, _ in outputs)
            if found.absolute > LARGEST * epsilon * max(map(_largest, values)):
                what = f"the inputs have the same bits in both runs and the outputs differ; {other.kernel} cannot be run again"
                return Suspect(
                    "kernel", one, other, "output", slot, in_roundings(found.relative, epsilon_of(record.dtype)), what
                ), False
    return None, are_same


def _largest(values: Array) -> float:
    """The largest absolute finite element; 0 if there is none."""
    if values.dtype.kind not in "fc":
        return 0.0
    absolute = np.abs(values)
    finite = absolute[np.isfinite(absolute)]
    return float(finite.max()) if finite.size else 0.0


# Judges a compiled graph, which is one operator, against the operators that compute the same in the other run. These are run again in float64 on the
# inputs of each run. A graph rounds at different places, so its error is compared with theirs. Operators of TensorFlow are not run again: the outputs
# of a graph compiled by XLA are compared with the recorded outputs of the other run.

_TIMES_THE_OPERATORS: Final = 8.0
"""A graph may be this many times further off than the operators, because it rounds at different places."""
_CLOSE: Final = 1e-3
"""Relative: buffers without a name (running statistics) that are this close are the same buffer in both runs."""
_LAUNCH: Final = "XlaLaunch"
_WRAPPED: Final = "_orig_mod."
"""The prefix that `torch.compile` adds to the names of a module's parameters."""


@dataclass(slots=True)
class JudgedGraphs:
    """The findings about the graphs of a part of a step."""

    suspects: list[Suspect] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    of_a: set[int] = field(default_factory=set)
    """The operators of A that were judged: graphs, and operators that compute the same."""
    of_b: set[int] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    """The kernel names of these graphs in the dumps."""

    left_a: set[Place] = field(default_factory=set)
    """Outputs of the operators of A that were not judged: they are compared like those of other operators."""
    left_b: set[Place] = field(default_factory=set)
    pairs: int = 0
    """The number of graphs that were compared with operators of the other run, and so have a counterpart."""

    def judged(self, suspect: Suspect) -> bool:
        """Whether a suspect concerns an operator that is judged here, or an input that such an operator made."""
        return any(
            node is not None
            and (
                node.index in judged or (suspect.io == "input" and node.makers.get(suspect.slot, (-1, 0))[0] in judged)
            )
            for node, judged in ((suspect.a, self.of_a), (suspect.b, self.of_b))
        )

    def mirrored(self) -> JudgedGraphs:
        """The same with A and B exchanged."""
        suspects = [each.turned() for each in self.suspects]
        return JudgedGraphs(
            suspects, self.notes, self.of_b, self.of_a, self.kernels, self.left_b, self.left_a, self.pairs
        )


def judge_graphs(a: Trace, b: Trace, alignment: Alignment) -> JudgedGraphs:
    """Judge the graphs without a counterpart, if exactly one of the runs has any."""
    in_a = has_graphs(node for node in a.nodes if node.index not in alignment.b_of)
    in_b = has_graphs(node for node in b.nodes if node.index not in alignment.a_of)
    if in_a == in_b:
        return JudgedGraphs()
    if in_b:
        return _Graphs(a, b, alignment.b_of, "B", "A").judge()
    return _Graphs(b, a, alignment.a_of, "A", "B").judge().mirrored()


def has_graphs(nodes: Iterable[Node]) -> bool:
    """Whether any of the nodes is a compiled graph."""
    return any(map(_is_graph, nodes))


def _is_graph(node: Node) -> bool:
    return _is_launch(node) or (node.op.kernel.startswith("compiled") and "::" not in node.op.kernel)


def _is_launch(node: Node) -> bool:
    """Whether the node is code that XLA compiled from a TensorFlow program."""
    return node.op.kernel == _LAUNCH


class _Graphs:
    """The graphs of one run, `other`, and the operators of `plain`. `matched` maps nodes of `plain` to their counterparts in `other`."""

    def __init__(self, plain: Trace, other: Trace, matched: Mapping[int, int], name: str, plain_name: str) -> None:
        self.plain, self.other, self.matched = plain, other, matched
        self.name, self.plain_name = name, plain_name
        self.plain_of = {there: here for here, there in matched.items()}
        self.places = self._places()
        self.graph_place = {place: graph for graph, place in self.places.items()}

    def judge(self) -> JudgedGraphs:
        found = JudgedGraphs()
        if not self.places:
            return found
        self._leave(found)
        by_record = {graph: place for graph, place in self.places.items() if _is_launch(self.other.nodes[graph[0]])}
        self._compare(found, by_record)
        if len(by_record) == len(self.places):
            return found
        leaves = _StepInputs(self.other)
        own, theirs = self._run(None), self._run(leaves)
        found.suspects += self._changed_data(leaves)
        off: dict[int, list[tuple[float, float]]] = {}
        for graph, place in self.places.items():
            if not all(place[0] in run and place[1] in run[place[0]].exact for run in (own, theirs)):
                found.left_a.add(place)
                found.left_b.add(graph)
                continue
            found.of_a |= self._between(place[0])
            found.of_b.add(graph[0])
            found.kernels.add(self.other.nodes[graph[0]].op.kernel)
            suspect, errors = self._judged(graph, place, own, theirs)
            if suspect is not None:
                found.suspects.append(suspect)
            elif errors is not None:
                off.setdefault(graph[0], []).append(errors)
        found.notes += [self._note(index, errors) for index, errors in off.items()]
        found.pairs += len(found.of_b - {index for index, _ in by_record})
        return found

    def _changed_data(self, leaves: _StepInputs) -> Iterator[Suspect]:
        """Data that differ between the runs. In a training, these may be states that differ by the rounding of earlier steps."""
        if any(node.op.phase != "forward" for node in (*self.plain.nodes, *self.other.nodes)):
            return
        for (here, slot), (there, place) in leaves.changed.items():
            one, other = self.plain.nodes[here], self.other.nodes[there]
            values = recorded(one.inputs[slot]), recorded(other.inputs[place])
            if values[0] is not None and values[1] is not None:
                apart = difference(values[0], values[1])
                if apart.relative > CONSTANTS.of(epsilon_of(one.inputs[slot].dtype)):
                    yield data_suspect(one, other, place, (values[0], values[1]), apart)

    def _leave(self, found: JudgedGraphs) -> None:
        """Note the outputs that no operator reads and that have no counterpart, if graphs have any."""
        judged = {graph for graph, _ in self.places}
        graphs = (place for place in _unread(self.other, self.plain_of) if place[0] in judged)
        found.left_b.update(place for place in graphs if place not in self.places)
        if found.left_b:
            found.left_a.update(place for place in _unread(self.plain, self.matched) if place not in self.graph_place)

    def _compare(self, found: JudgedGraphs, places: Mapping[Place, Place]) -> None:
        """Compare the recorded outputs of graphs with those of the plain run."""
        if not places:
            return
        # An operator without a counterpart may be inside a graph. It only affects the outputs compared here, or inputs of matched operators.
        found.of_a |= {node.index for node in self.plain.nodes if node.index not in self.matched}
        for graph, place in sorted(places.items()):
            found.of_b.add(graph[0])
            suspect = self._unlike(graph, place)
            if suspect is not None:
                found.suspects.append(suspect)
        for index in sorted({index for index, _ in places}):
            found.pairs += 1
            op = self.other.nodes[index].op
            found.kernels.add(op.kernel)
            found.notes.append(
                f"{op.op_name} of {self.name} (step {op.step}) is compiled by XLA: its outputs were compared with those of the operators of "
                f"{self.plain_name}; its writes to variables are compared when the variables are read next"
            )

    def _unlike(self, graph: Place, place: Place) -> Suspect | None:
        """A suspect if the output of a graph is further from the plain run's than rounding allows."""
        other, record, expected = (
            self.other.nodes[graph[0]],
            self.other.at(graph),
            self.plain.at(place),
        )
        found = _recorded_difference(expected, record)
        relative, absolute = found.relative, found.absolute
        between = [self.plain.nodes[index] for index in sorted(self._between(place[0]))]
        epsilon = max(coarsest([record]), *(each.rounding for each in between))
        largest = max(map(_largest_recorded, self._summands(place)), default=0.0)
        is_near = relative <= RECORDED_GRAPH.of(epsilon) or absolute <= LARGEST * epsilon * largest
        if expected.shape != record.shape:
            relative, size = math.inf, f"it has shape {record.shape} instead of {expected.shape}"
        elif is_near:
            return None
        else:
            size = f"off by {relative:.2g} of its size" if math.isfinite(relative) else f"off by {absolute:.2g} from 0"
        what = (
            f"its output differs from that of {between[0].op.op_name} to {between[-1].op.op_name} of {self.plain_name} ({amounts.count(len(between), 'operator')}), "
            f"{size}; it is compiled by XLA, and is not run again"
        )
        return Suspect("operator", between[-1], other, "output", graph[1], relative / (epsilon or 1.0), what)

    def _summands(self, place: Place) -> Iterable[TensorRecord]:
        """The inputs of the last computing operator before an output: a result that cancels is off by their rounding."""
        return self.plain.computing(place[0]).inputs.values()

    def _places(self) -> dict[Place, Place]:
        """Map outputs of graphs to outputs of the plain run: to one with the same readers, or else to the closest one."""
        users, users_plain = self.other.users(), self.plain.users()
        found: dict[Place, Place] = {}
        open_: list[Place] = []
        for graph in _unmatched_outputs(self.other, self.plain_of):
            node, readers = self.other.nodes[graph[0]], users.get(graph, [])
            if not _is_graph(node):
                continue
            place = self._read_by(readers, node.outputs[graph[1]])
            if place is not None:
                found[graph] = place
            elif (not readers or _is_launch(node)) and not _is_handed_on(node, graph[1]):
                open_.append(graph)
        plain = _unmatched_outputs(self.plain, self.matched)
        self._add_closest(found, open_, [place for place in plain if place not in users_plain])
        if any(_is_launch(self.other.nodes[graph[0]]) for graph in open_ if graph not in found):
            # An output that is a result of the graph may have readers in the plain run: consider those outputs too.
            self._add_closest(found, open_, plain)
        return found

    def _add_closest(self, found: dict[Place, Place], graphs: Iterable[Place], places: Iterable[Place]) -> None:
        """Pair the closest outputs first, so that two outputs of one shape are not both given the same counterpart."""
        near = [
            (*self._apart(place, graph), graph, place) for graph in graphs if graph not in found for place in places
        ]
        for _, _, graph, place in sorted(each for each in near if not math.isnan(each[0])):
            if graph not in found and place not in found.values():
                found[graph] = place

    def _apart(self, place: Place, graph: Place) -> tuple[float, bool]:
        """The distance of a graph's output from an output of the plain run, NaN if their types or sizes differ; and whether their shapes differ."""
        one, other = self.plain.at(place), self.other.at(graph)
        if not _is_like(one, other):
            return math.nan, True
        return _recorded_difference(one, other).relative, one.shape != other.shape

    def _read_by(self, readers: list[Place], record: TensorRecord) -> Place | None:
        """The output of the plain run that the same readers read there."""
        for reader, slot in readers:
            here = self.plain_of.get(reader)
            maker = None if here is None else self.plain.nodes[here].makers.get(slot)
            if maker is not None and maker[0] not in self.matched and _is_like(self.plain.at(maker), record):
                return maker
        return None

    def _run(self, leaves: _StepInputs | None) -> dict[int, Float64Outputs]:
        """Run the plain program on its own values, or on those of the other run. Operators that both runs have pass on their recorded outputs.

        Returns the results of the operators that have an output of a graph.
        """
        run, found = Execution(self.plain), dict[int, Float64Outputs]()
        compared = {index for index, _ in self.graph_place}
        unknown: set[int] = set()
        """Operators that could not be run again on the values of that run."""
        lacking: set[Place] = set()
        """Inputs that no operator made and that run lacks."""

        def leaf(node: Node, slot: int) -> Array | None:
            own = recorded_input(node, slot)
            found = own if leaves is None or own is None else leaves.of(node, slot, own)
            if found is None:
                lacking.add((node.index, slot))
            return own if found is None else found

        def is_known_input(node: Node, slot: int) -> bool:
            writers = run.writers.get((node.index, slot))
            return (node.index, slot) not in lacking if writers is None else writers.isdisjoint(unknown)

        for node, values in run.nodes(leaf):
            outputs: Mapping[int, Array] = {}
            if node.index not in self.matched:
                slots = [slot for slot, record in node.inputs.items() if not record.skip]
                is_known = all(slot in values and is_known_input(node, slot) for slot in slots)
                if is_known and node.index in compared and (exact := Float64Outputs.of(node, values)) is not None:
                    found[node.index], outputs = exact, exact.exact
                elif is_known and (done := replay(node, values)) is not None:
                    outputs = done.outputs
                else:
                    unknown.add(node.index)
                    outputs = recorded_values(node.outputs)
            run.write(node, {**outputs, **self._common(node, of_other=leaves is not None)})
        return found

    def _common(self, node: Node, *, of_other: bool) -> dict[int, Array]:
        """The recorded outputs of an operator of the plain run that the other run has as well, in either run."""
        partner = self.matched.get(node.index)
        if partner is not None:
            return recorded_values(self.other.nodes[partner].outputs if of_other else node.outputs)
        places = ((slot, self.graph_place.get((node.index, slot))) for slot in node.outputs)
        graphs = {slot: graph for slot, graph in places if graph is not None}
        return recorded_values(
            {slot: self.other.at(graph) if of_other else node.outputs[slot] for slot, graph in graphs.items()}
        )

    def _judged(
        self, graph: Place, place: Place, own: Mapping[int, Float64Outputs], theirs: Mapping[int, Float64Outputs]
    ) -> tuple[Suspect | None, tuple[float, float] | None]:
        """A suspect, or the errors of the plain run and of the graph; neither if their outputs have the same bits."""
        node, other = self.plain.nodes[place[0]], self.other.nodes[graph[0]]
        record = other.outputs[graph[1]]
        one, two = recorded(self.plain.at(place)), recorded(record)
        if one is None or two is None or same_bits(one, two):
            return None, None
        two = two.reshape(one.shape)
        exact, exact_other = own[place[0]], theirs[place[0]]
        off, off_other = exact.error(place[1], one) or 0.0, exact_other.error(place[1], two) or 0.0
        epsilon = max(self.plain.nodes[index].rounding for index in self._between(node.index))
        most = GRAPH.of(epsilon) if epsilon_of(record.dtype) else GRAPH.most
        allowed = max(KERNEL.of(epsilon), _TIMES_THE_OPERATORS * off)
        if off_other <= allowed and max(off, off_other) <= most:
            return None, (_distance(one, place[1], exact), _distance(two, place[1], exact_other))
        unequal = int(np.count_nonzero(one != two))
        what = (
            f"{unequal:,} of {one.size:,} elements of the output differ between the graph and {node.op.op_name} in {self.plain_name}. For the inputs of "
            f"each, the error against float64, relative to the largest element, is {off_other:.2g} in the graph and {off:.2g} in {self.plain_name}"
        )
        if off > most:
            what += ", which is more than rounding: the last bit decides the result"
        units = max(off, off_other) / (epsilon_of(record.dtype) or 1.0)
        return Suspect("operator", node, other, "output", graph[1], units, what), None

    def _between(self, index: int) -> set[int]:
        """This operator of the plain run and those before it, back to operators that both runs have."""
        nodes = self.plain.nodes
        return reachable(
            [index], lambda each: {maker for maker, _ in nodes[each].makers.values()} - self.matched.keys()
        )

    def _note(self, index: int, errors: list[tuple[float, float]]) -> str:
        plain, graph = (max(each[side] for each in errors) for side in (0, 1))
        op = self.other.nodes[index].op
        if plain == graph:
            closer = "both are equally close to float64"
        else:
            closer = f"{self.name if graph < plain else self.plain_name} is closer to float64"
        return (
            f"{op.op_name} of {self.name} (step {op.step}) is a compiled graph that rounds at different places than the operators of {self.plain_name}: {closer}, "
            f"{self.plain_name} is off by {plain:.2g} and {self.name} by {graph:.2g} of their size"
        )


def _unmatched_outputs(trace: Trace, matched: Container[int]) -> list[Place]:
    return [(node.index, slot) for node in trace.nodes if node.index not in matched for slot in node.outputs]


def _distance(given: Array, slot: int, outputs: Float64Outputs) -> float:
    """The root mean square difference of an output from float64, relative to its size or that of its absolute summands, whichever is larger."""
    exact = outputs.exact[slot]
    found = unshaped_difference(exact, given)
    size = max(root_mean_square(exact), root_mean_square(outputs.summands.get(slot, exact)))
    return found.absolute / size if size else found.relative


def _unread(trace: Trace, matched: Container[int]) -> list[Place]:
    """The outputs of unmatched operators that no operator reads."""
    users = trace.users()
    return [place for place in _unmatched_outputs(trace, matched) if place not in users]


def _recorded_difference(one: TensorRecord, other: TensorRecord) -> Difference:
    """The difference of two tensors. Infinite if neither elements nor statistics suffice."""
    found = record_difference(one, other)
    return WHOLLY if found is None else found


def _is_handed_on(node: Node, slot: int) -> bool:
    """Whether an output of a launch is one of its inputs, which no operator of the other run computes."""
    output = node.outputs[slot]
    return _is_launch(node) and any(
        each.shape == output.shape and each.dtype == output.dtype and not _recorded_difference(each, output)
        for each in node.inputs.values()
    )


def _largest_recorded(record: TensorRecord) -> float:
    """The largest absolute finite element, from elements or statistics."""
    values = recorded(record)
    if values is None:
        ends = (record.statistics.get(name) for name in ("max", "min"))
        values = np.asarray([end for end in ends if end is not None], np.float64)
    return _largest(values)


def _is_like(one: TensorRecord, other: TensorRecord) -> bool:
    return one.dtype == other.dtype and np.prod(one.shape, dtype=int) == np.prod(other.shape, dtype=int)


class _StepInputs:
    """The tensors that no operator of a run made. They are found by the name of a parameter, or else by their elements."""

    def __init__(self, trace: Trace) -> None:
        run = Execution(trace)
        self._alike: dict[tuple[str, tuple[int, ...]], list[tuple[Array, Place]]] = {}
        self._digests: set[int] = set()
        for node in trace.nodes:
            for slot, record in node.inputs.items():
                own = None if record.skip or slot in node.makers else recorded(record)
                if own is not None:
                    run.fill(node, slot, own)
                    self._alike.setdefault((record.dtype, record.shape), []).append((own, (node.index, slot)))
                    self._digests.add(_digest(own))
        self._named = {
            name.replace(_WRAPPED, ""): held for name, held in run.leaves.items() if name.startswith(PARAMETER_PREFIX)
        }
        self.changed: dict[Place, Place] = {}
        """Unnamed inputs of the other run whose elements this run does not have, and the closest input here."""

    def of(self, node: Node, slot: int, own: Array) -> Array | None:
        """The run's value for an input of the other run; None if it has none."""
        record = node.inputs[slot]
        known = self._named.get(leaf_name(record).replace(_WRAPPED, ""))
        value = None if known is None else known.seen_as(record)
        if value is not None:
            return value
        if _digest(own) in self._digests:
            return own
        alike = self._alike.get((record.dtype, record.shape), ())
        near = [(difference(own, each).relative, place, each) for each, place in alike]
        apart, place, closest = min(near, key=lambda each: each[0], default=(math.inf, None, None))
        if place is None or apart > _CLOSE:
            return None
        self.changed[node.index, slot] = place
        return closest


def _digest(values: Array) -> int:
    """A hash that is equal for the same elements in any order."""
    return hash((values.size, np.sort(values, axis=None).tobytes()))
