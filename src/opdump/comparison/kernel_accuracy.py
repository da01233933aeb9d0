"""Compares the outputs of a kernel with float64 results for its own inputs. This finds wrong kernels and flipped bits."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opdump import amounts
from opdump.adapters.replay import replayer_of
from opdump.checks.operator_classes import class_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.differences import (
    Difference,
    apart,
    difference,
    epsilon_of,
    equal_elements,
    largest_of,
    same_bits,
    same_statistics,
    unshaped_difference,
)
from opdump.comparison.execution import (
    Execution,
    draws,
    recorded,
    recorded_input,
    recorded_inputs,
    recorded_values,
    replay,
    same_inputs,
)
from opdump.comparison.nodes import Node, Suspect, are_of_two_modes, reachable
from opdump.comparison.trace import Trace, leaf_name
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import OpRecord, TensorRecord

Array = NDArray[Any]


class Kernel(Protocol):
    """One execution of an operator: a node of a comparison, or its record in a catalog."""

    @property
    def op(self) -> OpRecord: ...

    @property
    def inputs(self) -> Mapping[int, TensorRecord]: ...


_EXACT_CLASSES: Final = frozenset({"moves", "casts"})
"""Classes of operators that compute nothing."""
_ROUNDINGS: Final = 256.0
_NARROW_ROUNDINGS: Final = 8.0
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
    """The operators before `end` that only one program has, without moves and random draws."""
    return (node for node in trace.nodes[:end] if node.index not in matched and not node.moves and not draws(node))


def kernel_suspect(one: Node, other: Node) -> Suspect | None:
    """A suspect if one run's output is wrong for its own inputs. Both nodes are the same operator with the same arguments."""
    for slot, (first, second) in _outputs_of_both(one, other).items():
        record = other.outputs[slot]
        allowed = max(allowed_error(other, record), allowed_error(one, one.outputs[slot]))
        if not allowed or difference(first, second).peak <= allowed:
            continue
        own_a, own_b = _own_error(one, slot, first), _own_error(other, slot, second)
        if own_a is None or own_b is None:
            continue
        for mine, its, is_b in ((own_b, own_a, True), (own_a, own_b, False)):
            if mine > allowed and mine > _TIMES_THE_OTHER * its:
                what = (
                    f"{'' if is_b else 'in A: '}its output differs by {mine:.2g} of its largest element from a float64 computation on the "
                    f"same inputs; in the other run by {its:.2g}"
                )
                return Suspect("kernel", one, other, "output", slot, mine / rounding_of(record, None), what)
    return None


def _outputs_of_both(one: Node, other: Node) -> dict[int, tuple[Array, Array]]:
    """The recorded elements of the outputs that both nodes have, by slot, without those whose contents are unspecified."""
    unspecified = unspecified_outputs(other.op.kernel or other.op.op_type)
    return {
        slot: (first, second)
        for slot, record in other.outputs.items()
        if slot in one.outputs and slot not in unspecified
        if (first := recorded(one.outputs[slot])) is not None and (second := recorded(record)) is not None
    }


def lone_kernel_suspect(node: Node, *, is_b: bool) -> Suspect | None:
    """A suspect if a few elements of an output are further from the float64 result than rounding allows, and further than all the others.

    For an operator that only one program has.
    """
    for slot, record in node.outputs.items():
        given = recorded(record)
        allowed = allowed_error(node, record)
        if (
            given is None
            or given.size < _FEWEST
            or not allowed
            or slot in unspecified_outputs(node.op.kernel or node.op.op_type)
        ):
            continue
        reference = _replayed(node, slot)
        summands = _summands(node, slot)
        if reference is None or reference.shape != given.shape:
            continue
        kept = ~_left_its_type(reference, given, largest_of(record.dtype))
        if kept.sum() < _FEWEST:
            continue
        reference, given = reference[kept], given[kept]
        with np.errstate(all="ignore"):
            errors = np.abs(given.astype(reference.dtype) - reference)
        errors[equal_elements(given, reference)] = 0.0
        errors[~np.isfinite(errors)] = math.inf
        usual = float(np.quantile(errors, _SHARE_OF_USUAL, method="higher"))
        if not errors.max() > _TIMES_THE_OTHER * usual:
            continue
        error = error_of(reference, given, None if summands is None else summands[kept])
        if error > allowed:
            what = (
                f"{'' if is_b else 'in A: '}{int((errors > _TIMES_THE_OTHER * usual).sum()):,} of {math.prod(record.shape):,} elements differ from a "
                f"float64 computation on the same inputs, by up to {error:.2g} of the largest"
            )
            one, other = (None, node) if is_b else (node, None)
            return Suspect("kernel", one, other, "output", slot, error / rounding_of(record, None), what)
    return None


def _left_its_type(reference: Array, given: Array, largest: float) -> NDArray[np.bool_]:
    """Where an output is infinite or NaN because the float64 result is too, or because the value exceeds the range of the type."""
    with np.errstate(invalid="ignore"):
        return ~np.isfinite(given) & (equal_elements(given, reference) | (np.abs(reference) > largest / 2))


def allowed_error(node: Kernel, record: TensorRecord) -> float:
    """The allowed error of a kernel's output relative to float64, as a share of the largest element: long sums and fast algorithms round repeatedly.

    A kernel may compute in the narrowest type that it reads, whatever the type of its result: sums of bfloat16 may be kept in bfloat16. No kernel
    computes in fewer bits than that. 0 for outputs of exact types.
    """
    epsilon = epsilon_of(record.dtype)
    if epsilon and class_of(node.op.op_type) not in _EXACT_CLASSES:
        narrowest = max((epsilon_of(each.dtype) for each in node.inputs.values()), default=0.0)
        epsilon = max(epsilon, min(narrowest, epsilon_of("bfloat16")))
    return allowed_for(epsilon)


def allowed_for(epsilon: float) -> float:
    """The same for a kernel that computes in a type with this rounding."""
    return epsilon * (_ROUNDINGS if epsilon <= epsilon_of("float32") else _NARROW_ROUNDINGS)


def _own_error(node: Node, slot: int, given: Array) -> float | None:
    """The largest difference from float64, as in `error_of`; None if the operator cannot be run again."""
    reference = _replayed(node, slot)
    return None if reference is None else error_of(reference, given, _summands(node, slot))


def _replayed(node: Node, slot: int) -> Array | None:
    """The float64 output for the recorded inputs; None if the operator cannot be run again."""
    done = replay(node, recorded_inputs(node))
    return None if done is None else done.outputs.get(slot)


def _summands(node: Node, slot: int) -> Array | None:
    """The same for the absolute values of the inputs."""
    done = replay(node, {place: np.abs(value) for place, value in recorded_inputs(node).items()})
    return None if done is None else done.outputs.get(slot)


def error_of(reference: Array, given: Array, summands: Array | None) -> float:
    """The largest difference from float64, divided by the largest element or the largest sum of absolute summands, whichever is larger.

    Elements that are NaN in both, or the same infinity, are equal and have no size.
    """
    finite = np.isfinite(reference)
    if not finite.all() and reference.shape == given.shape:
        kept = finite | ~((reference == given) | (np.isnan(reference) & np.isnan(given)))
        if not kept.any():
            return 0.0
        reference, given = reference[kept], given[kept]
        summands = summands[kept] if summands is not None and summands.shape == kept.shape else None
    found = unshaped_difference(reference, given)
    if found.peak == 0 or summands is None:
        return found.peak
    top, reach = float(np.abs(reference).max()), float(np.abs(summands).max())
    if top == 0 and 0 < reach < math.inf:
        # The terms cancel exactly in float64, so the kernel's output is only its rounding.
        largest = float(np.abs(given).max())
        return largest / reach if math.isfinite(largest) else math.inf
    if not math.isfinite(found.peak):
        return found.peak
    return found.peak * top / max(top, reach if math.isfinite(reach) else top)


def rounding_of(one: TensorRecord, other: TensorRecord | None) -> float:
    """The rounding of the narrower type."""
    return max(epsilon_of(one.dtype), 0.0 if other is None else epsilon_of(other.dtype))


def in_roundings(found: Difference, record: TensorRecord) -> float:
    """A difference in units of the element type's rounding; infinite for types that are exact."""
    epsilon = epsilon_of(record.dtype)
    return found.relative / epsilon if epsilon else math.inf


# Judges operators that cannot be run again (of other packages, graphs of `torch.compile`) by their recorded values. If their inputs have the same
# bits in both runs, their outputs may differ only by the rounding of all that they compute.

_MOST_OF_ROUNDING: Final = 256.0
"""Units of rounding that may accumulate in an operator that is a whole network."""
_HALF: Final = 0.5
"""The limit for narrow types, relative."""
_OF_THE_LARGEST: Final = 64.0
"""In units of rounding of the largest input or output element: a result that cancels to almost nothing may be off by this much."""
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
            not_proven.add(other.op.kernel or other.op.op_type)
    return suspects, not_proven


def _judged(one: Node, other: Node) -> tuple[Suspect | None, bool]:
    """The suspect for an operator, or None, and whether its outputs are equal in both runs."""
    are_given_the_same = (
        same_inputs(one, other)
        and not differing(one, other)
        and not (one.is_rewritten or other.is_rewritten)
        and _OF_SEVERAL_PROCESSES not in other.op.kernel
    )
    outputs = _outputs_of_both(one, other)
    are_same = True
    for slot, (first, second) in outputs.items():
        record = other.outputs[slot]
        found = (unshaped_difference if are_of_two_modes(one, other) else difference)(first, second)
        are_same &= not found
        epsilon = rounding_of(record, one.outputs[slot])
        if are_given_the_same and found.relative > min(_HALF, _MOST_OF_ROUNDING * epsilon):
            values = *recorded_inputs(one).values(), *(of_a for of_a, _ in outputs.values())
            if found.absolute > _OF_THE_LARGEST * epsilon * max(map(_largest, values)):
                what = f"the inputs have the same bits in both runs and the outputs differ; {other.op.kernel or other.op.op_type} cannot be run again"
                return Suspect("kernel", one, other, "output", slot, in_roundings(found, record), what), False
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

Place = tuple[int, int]
"""A node and the slot of an output."""

_TIMES_THE_OPERATORS: Final = 8.0
"""A graph may be this many times further off than the operators, because it rounds at different places."""
_MOST_OF_A_GRAPH: Final = 2.0**14
"""Units of rounding. A larger error is not rounding: a step function, such as `floor` of a sum near 1, turns a last bit into a difference."""
_CLOSE: Final = 1e-3
"""Relative: buffers without a name (running statistics) that are this close are the same buffer in both runs."""
_RECORDED_ROUNDINGS: Final = 100.0
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

    pairs: int = 0
    """The number of graphs that were compared with operators of the other run by recorded values, and so have a counterpart."""

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
        suspects = [replace(each, a=each.b, b=each.a) for each in self.suspects]
        return JudgedGraphs(suspects, self.notes, self.of_b, self.of_a, self.kernels, self.pairs)


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


@dataclass(slots=True)
class _Run:
    """The plain program on the values of one run."""

    exact: dict[Place, Array] = field(default_factory=dict)
    """The float64 results for outputs that a graph has as well."""
    summands: dict[Place, Array] = field(default_factory=dict)


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
        by_record = {graph: place for graph, place in self.places.items() if _is_launch(self.other.nodes[graph[0]])}
        self._compare(found, by_record)
        if len(by_record) == len(self.places):
            return found
        own, theirs = self._run(Execution(self.plain), None), self._run(Execution(self.plain), _StepInputs(self.other))
        off: dict[int, list[tuple[float, float]]] = {}
        for graph, place in self.places.items():
            if place not in own.exact or place not in theirs.exact:
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
        return found

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
            self.other.nodes[graph[0]].outputs[graph[1]],
            self._record(place),
        )
        relative, absolute = _recorded_distance(expected, record)
        between = [self.plain.nodes[index] for index in sorted(self._between(place[0]))]
        outputs = [each for step in between for each in step.outputs.values()]
        epsilon = max((epsilon_of(each.dtype) for each in (*outputs, record)), default=0.0)
        largest = max(map(_largest_recorded, self._summands(place)), default=0.0)
        if relative <= min(_HALF, _RECORDED_ROUNDINGS * epsilon) or absolute <= _OF_THE_LARGEST * epsilon * largest:
            return None
        size = f"off by {relative:.2g} of its size" if math.isfinite(relative) else f"off by {absolute:.2g} from 0"
        what = (
            f"its output differs from that of {between[0].op.op_name} to {between[-1].op.op_name} of {self.plain_name} ({amounts.count(len(between), 'operator')}), "
            f"{size}; it is compiled by XLA, and is not run again"
        )
        return Suspect("operator", between[-1], other, "output", graph[1], relative / (epsilon or 1.0), what)

    def _summands(self, place: Place) -> Iterable[TensorRecord]:
        """The inputs of the last computing operator before an output: a result that cancels is off by their rounding."""
        node = self.plain.nodes[place[0]]
        while class_of(node.op.op_type) in ("moves", "casts") and 0 in node.makers:
            node = self.plain.nodes[node.makers[0][0]]
        return node.inputs.values()

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
            elif not readers or _is_launch(node):
                open_.append(graph)
        plain = _unmatched_outputs(self.plain, self.matched)
        self._add_closest(found, open_, [place for place in plain if place not in users_plain])
        if any(_is_launch(self.other.nodes[graph[0]]) for graph in open_ if graph not in found):
            # An output that is a result of the graph may have readers in the plain run: consider those outputs too.
            self._add_closest(found, open_, plain)
        return found

    def _add_closest(self, found: dict[Place, Place], graphs: Iterable[Place], places: Iterable[Place]) -> None:
        """Pair the closest outputs first, so that two outputs of one shape are not both given the same counterpart."""
        near = [(self._apart(place, graph), graph, place) for graph in graphs if graph not in found for place in places]
        for _, graph, place in sorted(each for each in near if not math.isnan(each[0])):
            if graph not in found and place not in found.values():
                found[graph] = place

    def _apart(self, place: Place, graph: Place) -> float:
        """The distance of a graph's output from an output of the plain run; NaN if their types or sizes differ."""
        one, other = self._record(place), self.other.nodes[graph[0]].outputs[graph[1]]
        return _recorded_distance(one, other)[0] if _is_like(one, other) else math.nan

    def _read_by(self, readers: list[Place], record: TensorRecord) -> Place | None:
        """The output of the plain run that the same readers read there."""
        for reader, slot in readers:
            here = self.plain_of.get(reader)
            maker = None if here is None else self.plain.nodes[here].makers.get(slot)
            if maker is not None and maker[0] not in self.matched and _is_like(self._record(maker), record):
                return maker
        return None

    def _record(self, place: Place) -> TensorRecord:
        return self.plain.nodes[place[0]].outputs[place[1]]

    def _run(self, run: Execution, leaves: _StepInputs | None) -> _Run:
        """Run the plain program on its own values, or on those of the other run. Operators that both runs have pass on their recorded outputs."""
        found = _Run()
        unknown: set[int] = set()
        """Operators that could not be run again on the values of that run."""
        lacking: set[Place] = set()
        """Inputs that no operator made and that run lacks."""

        def leaf(node: Node, slot: int) -> Array | None:
            own = recorded_input(node, slot)
            found = own if leaves is None or own is None else leaves.of(node.inputs[slot], own)
            if found is None:
                lacking.add((node.index, slot))
            return own if found is None else found

        def is_known_input(node: Node, slot: int) -> bool:
            writers = run.writers.get((node.index, slot))
            return (node.index, slot) not in lacking if writers is None else writers.isdisjoint(unknown)

        for node, values in run.nodes(leaf):
            slots = [slot for slot, record in node.inputs.items() if not record.skip]
            is_known = all(slot in values and is_known_input(node, slot) for slot in slots)
            partner = self.matched.get(node.index)
            outputs: dict[int, Array] = {}
            if partner is not None:
                given = node.outputs if leaves is None else self.other.nodes[partner].outputs
                outputs = recorded_values(given)
            else:
                done = replay(node, values) if is_known else None
                if done is None:
                    unknown.add(node.index)
                    outputs = recorded_values(node.outputs)
                else:
                    outputs = dict(done.outputs)
                    self._note_exact(found, node, values, outputs)
                for slot in node.outputs:
                    graph = self.graph_place.get((node.index, slot))
                    if graph is not None:
                        record = node.outputs[slot] if leaves is None else self.other.nodes[graph[0]].outputs[graph[1]]
                        outputs |= recorded_values({slot: record})
            run.write(node, outputs)
        return found

    def _note_exact(self, found: _Run, node: Node, values: Mapping[int, Array], outputs: Mapping[int, Array]) -> None:
        places = [(node.index, slot) for slot in outputs if (node.index, slot) in self.graph_place]
        if not places:
            return
        absolute = replay(
            node, {slot: np.abs(value) if value.dtype != np.bool_ else value for slot, value in values.items()}
        )
        for place in places:
            found.exact[place] = outputs[place[1]]
            if absolute is not None and place[1] in absolute.outputs:
                found.summands[place] = absolute.outputs[place[1]]

    def _judged(
        self, graph: Place, place: Place, own: _Run, theirs: _Run
    ) -> tuple[Suspect | None, tuple[float, float] | None]:
        """A suspect, or the errors of the plain run and of the graph; neither if their outputs have the same bits."""
        node, other = self.plain.nodes[place[0]], self.other.nodes[graph[0]]
        record = other.outputs[graph[1]]
        one, two = recorded(self._record(place)), recorded(record)
        if one is None or two is None or same_bits(one, two):
            return None, None
        two = two.reshape(one.shape)
        off = error_of(own.exact[place], one, own.summands.get(place))
        off_other = error_of(theirs.exact[place], two, theirs.summands.get(place))
        between = (self.plain.nodes[index] for index in self._between(node.index))
        epsilon = max(epsilon_of(each.dtype) for step in between for each in step.outputs.values())
        most = min(_HALF, _MOST_OF_A_GRAPH * epsilon) if epsilon_of(record.dtype) else _HALF
        allowed = max(allowed_for(epsilon), _TIMES_THE_OPERATORS * off)
        if off_other <= allowed and max(off, off_other) <= most:
            return None, (self._distance(one, place, own), self._distance(two, place, theirs))
        unequal = int(np.count_nonzero(one != two))
        what = (
            f"{unequal:,} of {one.size:,} elements of the output differ between the graph and {node.op.op_name} in {self.plain_name}. For the inputs of "
            f"each, the error against float64, relative to the largest element, is {off_other:.2g} in the graph and {off:.2g} in {self.plain_name}"
        )
        if off > most:
            what += ", which is more than rounding: the last bit decides the result"
        units = max(off, off_other) / (epsilon_of(record.dtype) or 1.0)
        return Suspect("operator", node, other, "output", graph[1], units, what), None

    def _distance(self, given: Array, place: Place, run: _Run) -> float:
        """The root mean square difference of an output from float64, relative to its size or that of its absolute summands, whichever is larger."""
        exact = run.exact[place]
        found = unshaped_difference(exact, given)
        size = max(_root_mean_square(exact), _root_mean_square(run.summands.get(place, exact)))
        return found.absolute / size if size else found.relative

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
            closer = "both are as close to float64"
        else:
            closer = f"{self.name if graph < plain else self.plain_name} is closer to float64"
        return (
            f"{op.op_name} of {self.name} (step {op.step}) is a compiled graph that rounds at different places than the operators of {self.plain_name}: {closer}, "
            f"{self.plain_name} is off by {plain:.2g} and {self.name} by {graph:.2g} of their size"
        )


def _unmatched_outputs(trace: Trace, matched: Container[int]) -> list[Place]:
    return [(node.index, slot) for node in trace.nodes if node.index not in matched for slot in node.outputs]


def _recorded_distance(one: TensorRecord, other: TensorRecord) -> tuple[float, float]:
    """The distance of two tensors, relative to the size of the first and as a root mean square, from elements or statistics. Infinite if neither
    suffices.
    """
    first, second = recorded(one), recorded(other)
    if first is not None and second is not None:
        found = unshaped_difference(first, second)
        return found.relative, found.absolute
    if same_statistics(one, other):
        return 0.0, 0.0
    relative = apart(one, other)
    return (math.inf, math.inf) if relative is None else (relative, relative * _size_of(one))


def _largest_recorded(record: TensorRecord) -> float:
    """The largest absolute finite element, from elements or statistics."""
    values = recorded(record)
    if values is None:
        ends = (record.statistics.get(name) for name in ("max", "min"))
        values = np.asarray([end for end in ends if end is not None], np.float64)
    numbers = np.abs(values) if values.dtype.kind in "fc" else np.zeros(0)
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def _size_of(record: TensorRecord) -> float:
    """The root mean square of the elements, from statistics."""
    count = math.prod(record.shape)
    return float(record.statistics.get("l2norm", math.inf)) / math.sqrt(count) if count else 0.0


def _root_mean_square(values: Array) -> float:
    return math.sqrt(
        float(np.mean(np.square(np.abs(values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)))))
    )


def _is_like(one: TensorRecord, other: TensorRecord) -> bool:
    return one.dtype == other.dtype and np.prod(one.shape, dtype=int) == np.prod(other.shape, dtype=int)


class _StepInputs:
    """The tensors that no operator of a run made. They are found by the name of a parameter, or else by their elements."""

    def __init__(self, trace: Trace) -> None:
        run = Execution(trace)
        self._alike: dict[tuple[str, tuple[int, ...]], list[Array]] = {}
        self._digests: set[int] = set()
        for node in trace.nodes:
            for slot, record in node.inputs.items():
                own = None if record.skip or slot in node.makers else recorded(record)
                if own is not None:
                    run.fill(node, slot, own)
                    self._alike.setdefault((record.dtype, record.shape), []).append(own)
                    self._digests.add(_digest(own))
        self._named = {name.replace(_WRAPPED, ""): held for name, held in run.leaves.items() if not _is_number(name)}

    def of(self, record: TensorRecord, own: Array) -> Array | None:
        """The run's value for an input of the other run; None if it has none."""
        known = self._named.get(leaf_name(record).replace(_WRAPPED, ""))
        value = None if known is None else known.seen_as(record)
        if value is not None:
            return value
        if _digest(own) in self._digests:
            return own
        alike = self._alike.get((record.dtype, record.shape), ())
        closest = min(alike, key=lambda each: difference(own, each).relative, default=None)
        return closest if closest is not None and difference(own, closest).relative <= _CLOSE else None


def _is_number(name: str) -> bool:
    """Whether a name only numbers the tensors of a run, as `data-3` does."""
    return not name.startswith("Parameter.")


def _digest(values: Array) -> int:
    """A hash that is equal for the same elements in any order."""
    return hash((values.size, np.sort(values, axis=None).tobytes()))
