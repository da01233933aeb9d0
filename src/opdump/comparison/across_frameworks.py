"""Compares runs of two frameworks: matches operators by their values, and judges each segment between two matched values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from opdump.adapters.replay import replayer_of
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import other_writes
from opdump.comparison.common_results import (
    have_open_results,
    have_same_results,
    held_by_both,
    is_near,
    leading_to,
    results_apart,
    results_lost,
    results_of_other_shapes,
    unused_by_both,
)
from opdump.comparison.differences import Array
from opdump.comparison.kernel_accuracy import has_graphs
from opdump.comparison.nodes import Node, Place, Suspect, pass_of, reachable
from opdump.comparison.pairs import Match, Outputs, StepMatches, names_of
from opdump.comparison.results import computed_results, reads_only_shapes
from opdump.comparison.trace import Trace, leaf_name, names_a_state
from opdump.comparison.value_matching import (
    STANDS_FOR,
    Flow,
    Matched,
    Pair,
    Partners,
    Shared,
    drifted_inputs,
    match_dependents,
    match_flow,
    match_kinds,
    match_names,
    match_values,
    same_kind,
    share_inputs,
)
from opdump.comparison.value_run import (
    Failure,
    Replays,
    ValueRun,
    between,
    named,
    run_on_values,
    wrong_kernel,
    wrong_kernels,
)
from opdump.graph import PYNATIVE

_CERTAIN: Final = 1e-4
"""A pair whose values differ by at most this, relative to their root mean square, is never doubted."""
_TRIALS: Final = 64
"""How many times a doubtful pair is dropped to see whether fewer pairs fail."""
_EXPLAINED: Final = 8
"""For how many failing pairs operators are changed to see what explains them. Later ones are hardly read, and one fault may fail all gradients."""


@dataclass(slots=True)
class Outcome:
    """The result of comparing two traces."""

    pairs: Sequence[Pair]
    failing: Collection[Pair] = ()
    """The pairs whose values differ by more than rounding."""
    suspects: list[Suspect] = field(default_factory=list)
    between: tuple[Collection[int], Collection[int]] = ((), ())
    """The nodes of A and of B that lead to a common value and have none themselves."""
    unused: tuple[Collection[int], Collection[int]] = ((), ())
    """The nodes that lead to no result of the other program."""
    unmatched: tuple[Collection[int], Collection[int]] = ((), ())
    not_run: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def alone(self) -> tuple[set[int], set[int]]:
        """The nodes of A and of B without a counterpart, including suspects of kind `missing` and `extra`."""
        missing = {each.a.index for each in self.suspects if each.kind == "missing" and each.a is not None}
        extra = {each.b.index for each in self.suspects if each.kind == "extra" and each.b is not None}
        return missing.union(self.unmatched[0]), extra.union(self.unmatched[1])

    @property
    def told(self) -> tuple[dict[int, str], dict[int, str]]:
        """For nodes of A and of B without a single counterpart, the text for the report: other operators in the other program, or no result."""
        paired = {pair.a[0] for pair in self.pairs}, {pair.b[0] for pair in self.pairs}
        both = zip(paired, self.between, self.unused, self.alone, "BA", strict=True)
        a, b = (
            {
                **dict.fromkeys({*pairs, *between} - alone, f"other operators in {other}"),
                **dict.fromkeys({*unused} - alone, "leads to no result"),
            }
            for pairs, between, unused, alone, other in both
        )
        return a, b


def of_different_frameworks(a: Trace, b: Trace, frameworks: tuple[Collection[str], Collection[str]] = ((), ())) -> bool:
    """Whether the dumps are of different frameworks, or the runs have hardly any operator names in common. A program in which an optimiser
    replaced operators also counts as different from the original.
    """
    if _optimised(a) != _optimised(b):
        return True
    if all(frameworks) and not set(frameworks[0]) & set(frameworks[1]):
        return True
    if has_graphs(a.nodes) or has_graphs(b.nodes):
        return False  # a compiled program has no operator names in common with the eager one
    ours, theirs = ({node.kernel for node in trace.nodes} for trace in (a, b))
    return bool(ours and theirs) and len(ours & theirs) * 4 < min(len(ours), len(theirs))


def are_graphs_of_other_code(a: Trace, b: Trace, alignment: Alignment) -> bool:
    """Whether both runs are of ONNX models in which less than half of the operators correspond: other code built them. Their operators have no
    lines, scopes and phases to be matched by, only values.
    """
    names = (node.op.kernel.partition("::")[0] for node in (*a.nodes, *b.nodes))
    are_of_onnx = all(name.startswith(("ai.onnx", "com.microsoft")) for name in names)
    return are_of_onnx and alignment.matched * 2 < min(len(a.nodes), len(b.nodes))


def _optimised(trace: Trace) -> set[tuple[str, str]]:
    """The operators with which an optimiser replaced others, and the names of those."""
    return {
        (node.op.kernel, str(node.op.arguments[STANDS_FOR])) for node in trace.nodes if STANDS_FOR in node.op.arguments
    }


def compare_across(
    a: Trace, b: Trace, given: Sequence[tuple[int, int]] = (), *, sides: tuple[str, str] = ("A", "B")
) -> Outcome:
    """Match two traces by values, and judge each common value.

    The pairs of nodes in `given` are kept. `sides` are the names of the two runs in messages.
    """
    if (_can_run(b), not _optimised(b)) > (_can_run(a), not _optimised(a)):
        return _turned(compare_across(b, a, [(there, here) for here, there in given], sides=("B", "A")), a)
    matched = match_values(a, b, given)
    if not matched.pairs and not share_inputs(a, b):
        return Outcome([], unmatched=(range(len(a.nodes)), range(len(b.nodes))))
    judged = _JudgedPairs.of(a, b, matched)
    if judged.failures or have_open_results(a, b, judged.pairs, matched.only(judged.pairs)):
        judged.narrow(a, b, matched)
    pairs, failures, matched = judged.pairs, judged.failures, matched.only(judged.pairs)
    found = Outcome(list(pairs.values()), {failure.pair for failure in failures}, not_run=judged.not_run)
    found.suspects = _suspects(a, b, judged, matched, sides)
    _count(a, b, found, matched, sides)
    if not found.suspects and have_open_results(a, b, pairs, matched):
        found.notes.append(
            "both programs have results that were not found in the other; whether these agree is not proven"
        )
    return found


def agree_by_values(a: Trace, b: Trace, beside: tuple[Trace, Trace] | None) -> Outcome | None:
    """How two programs agree, if their values prove it: each result of one is a result of the other, and A's operators compute B's values from B's
    values. Otherwise None. The operators may differ, or run in another order. `beside` is another step of the two runs.
    """
    if _can_run(b) > _can_run(a):
        turned = agree_by_values(b, a, beside and beside[::-1])
        return None if turned is None else _turned(turned, a)
    matched = match_values(a, b)
    judged = _JudgedPairs.of(a, b, matched)
    pairs, matched = judged.pairs, matched.only(judged.pairs)
    if not pairs or judged.failures or not have_same_results(a, b, matched, beside) or other_writes(a, b):
        return None
    found = Outcome(list(pairs.values()), not_run=judged.not_run)
    _count(a, b, found, matched, ("A", "B"))
    return found


@dataclass
class _JudgedPairs:
    """Pairs of values of two programs, of which `failures` differ by more than rounding when A runs on B's values."""

    pairs: dict[Place, Pair]
    drifted: Mapping[Place, Array]
    replays: Replays
    failures: list[Failure] = field(default_factory=list)
    not_run: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, a: Trace, b: Trace, matched: Matched) -> _JudgedPairs:
        """Judge the matched values; those that are likely a pair by chance are dropped if then no other fails."""
        judged = cls(dict(matched.pairs), drifted_inputs(a, b, matched), Replays())
        run = judged.run(a, b, judged.pairs)
        judged.failures, judged.not_run = run.failures, run.not_run
        if judged.failures:
            certain = _without(judged.pairs, _doubtful(a, judged.pairs, judged.failures))
            if not judged.run(a, b, certain).failures:
                judged.pairs, judged.failures = certain, []
        return judged

    def run(self, a: Trace, b: Trace, pairs: Mapping[Place, Pair]) -> ValueRun:
        return run_on_values(a, b, pairs, drifted=self.drifted, replays=self.replays)

    def narrow(self, a: Trace, b: Trace, matched: Matched) -> None:
        """Narrow failures down to single operators: pair operators by kind where values differ too much to be matched.

        A failing pair is doubtful. It is dropped if later pairs no longer fail without it.
        """
        pairs = {**(match_names(a, b) if _optimised(b) else {}), **self.pairs}
        partners = Partners(a, b)
        if of_two_modes(a, b):
            flows = Flow.both(a, b, matched, pairs)
            pairs = {**match_flow(*_unpaired(a, b, pairs), flows, partners), **pairs}
            open_nodes = _unpaired(a, b, pairs)
        else:  # operators beyond the failures are other ones, although they may be of one kind
            failed = [failure.pair for failure in self.failures]
            segments = (
                _segments(a, [pair.a[0] for pair in failed], pairs),
                _segments(b, [pair.b[0] for pair in failed], {pair.b for pair in pairs.values()}),
            )
            pairs = {**match_dependents(a, b, matched, partners), **pairs}
            open_nodes = (
                _open(a, segments[0], set(pairs), matched.a),
                _open(b, segments[1], {pair.b for pair in pairs.values()}, matched.b),
            )
        pairs = {**match_kinds(*open_nodes, _depend_alike(partners, matched)), **pairs}
        left = self.run(a, b, pairs).failures
        trials = _TRIALS
        while trials > 0:
            best = pairs, left
            for pair in _doubtful(a, pairs, left)[:trials]:
                without = _without(pairs, [pair])
                then = self.run(a, b, without).failures
                trials -= 1
                if len(then) < len(best[1]):
                    best = without, then
                if len(then) < len(left) - 1:
                    break  # a later pair no longer fails, either
            if best[0] is pairs:
                break
            pairs, left = best
        self.pairs, self.failures = pairs, left


def _suspects(a: Trace, b: Trace, judged: _JudgedPairs, matched: Matched, sides: tuple[str, str]) -> list[Suspect]:
    """The operators behind the failing pairs; else results that differ. A loss that differs also precedes differences of the backward pass."""
    found = _wrong_operators(a, b, judged.pairs, judged.failures, sides, judged.replays)
    if not found:
        found = _other_results(a, b, judged.pairs, matched)
    elif not any(pass_of(each.b or each.a) == 0 for each in found):
        found += results_lost(a, b, judged.pairs, matched)
    # An exporter gives parameters with the same elements one name.
    other_parameters = _other_parameters(a, b, judged.pairs) if found and of_two_modes(a, b) else []
    return [*other_parameters, *_by_pass(found)]


def _wrong_operators(
    a: Trace,
    b: Trace,
    pairs: Mapping[Place, Pair],
    failures: Sequence[Failure],
    sides: tuple[str, str],
    replays: Replays,
) -> list[Suspect]:
    """The operators behind the failing pairs, and kernels of A that err."""
    failures = sorted(failures, key=lambda failure: pass_of(b.nodes[failure.pair.b[0]]))
    segments = {node.index for failure in failures[:_EXPLAINED] for node in between(a, failure.pair.a[0], pairs)}
    inputs = run_on_values(a, b, pairs, segments, replays=replays).inputs if failures else {}
    found = _distinct(
        wrong_kernel(a, b, pairs, failure.pair, failure.off, sides)
        or named(a, b, pairs, failure, inputs if number < _EXPLAINED else None, sides)
        for number, failure in enumerate(failures)
    )
    # The run on values recomputes A, so A's recorded outputs were not judged: check its kernels wherever these differ from B.
    failing = {failure.pair for failure in failures}
    apart = [pair for pair in pairs.values() if pair.distance > _CERTAIN and pair not in failing]
    return [*found, *wrong_kernels(a, b, pairs, apart, sides)]


def _other_results(a: Trace, b: Trace, pairs: Mapping[Place, Pair], matched: Matched) -> list[Suspect]:
    """Results that differ although no operator was found to cause it."""
    are_of_modes = of_two_modes(a, b)
    return (
        # Compiled functions count their operators separately, so equal names mean nothing between two modes.
        list(() if are_of_modes else results_apart(a, b, pairs))
        or results_lost(a, b, pairs, matched)
        or (results_of_other_shapes(a, b, matched) if are_of_modes else [])
        or other_writes(a, b)
    )


def _by_pass(suspects: Iterable[Suspect]) -> list[Suspect]:
    return sorted(suspects, key=lambda each: pass_of(each.b or each.a))


def _other_parameters(a: Trace, b: Trace, pairs: Mapping[Place, Pair]) -> list[Suspect]:
    """The first operator of B that reads another parameter than its counterpart, if both programs have both parameters: they may be equal at first."""
    names = _parameters(a) & _parameters(b)
    for pair in sorted(pairs.values(), key=lambda pair: pair.b):
        one, other = a.nodes[pair.a[0]], b.nodes[pair.b[0]]
        for slot in sorted(one.inputs.keys() & other.inputs.keys()) if same_kind(one, other) else ():
            ours, theirs = leaf_name(one.inputs[slot]), leaf_name(other.inputs[slot])
            if ours != theirs and {ours, theirs} <= names:
                what = f"reads {theirs}; in A it reads {ours}"
                return [Suspect("parameter", one, other, "input", slot, math.inf, what)]
    return []


def _parameters(trace: Trace) -> set[str]:
    """The names of the parameters and states that a program reads."""
    return {name for node in trace.nodes for record in node.inputs.values() if names_a_state(name := leaf_name(record))}


def _distinct(suspects: Iterable[Suspect]) -> list[Suspect]:
    """The first suspect of each kind and operator of A, which may have several readers."""
    found: dict[tuple[str, int], Suspect] = {}
    for each in suspects:
        assert each.a is not None, "A is the program that was run"
        found.setdefault((each.kind, each.a.index), each)
    return list(found.values())


def _turned(found: Outcome, b: Trace) -> Outcome:
    """The outcome with A and B swapped; `b` is the trace of the new B."""
    found.pairs = [pair.turned(b) for pair in found.pairs]
    found.failing = {pair.turned(b) for pair in found.failing}
    found.suspects = [each.turned() for each in found.suspects]
    found.between, found.unused, found.unmatched = found.between[::-1], found.unused[::-1], found.unmatched[::-1]
    return found


def _can_run(trace: Trace) -> int:
    """How well the operators of a run can be run again, from 0 to 2; PyTorch is preferred, because most of its operators run in float64."""
    known = [node for node in trace.nodes if replayer_of(node.op)]
    return bool(known) + any(node.op.kernel.startswith("aten::") for node in known)


def _segments(trace: Trace, failed: Iterable[int], ends: Collection[Place]) -> set[int]:
    """The nodes between failing values and the pairs before them."""
    return {node.index for last in failed for node in between(trace, last, ends)}


def _open(trace: Trace, failing: AbstractSet[int], ends: Collection[Place], shared: Shared) -> list[Node]:
    """The nodes in failing segments, and those that lead to no paired value; without those that are paired, only cast, or move a common value."""
    found = failing | ({node.index for node in trace.nodes} - leading_to(trace, (index for index, _ in ends)))
    nodes = (trace.nodes[index] for index in sorted(found) if (index, 0) not in ends)
    return [
        each
        for each in nodes
        if each.operator_class not in (("casts", "moves") if (each.index, 0) in shared.made else ("casts",))
    ]


def _unpaired(a: Trace, b: Trace, pairs: Mapping[Place, Pair]) -> tuple[list[Node], list[Node]]:
    """The nodes whose first output is in no pair, without those that only move or cast."""
    ends = set(pairs), {pair.b for pair in pairs.values()}
    ours, theirs = (
        [
            node
            for node in trace.nodes
            if (node.index, 0) not in paired and not node.arranges and node.operator_class != "casts"
        ]
        for trace, paired in zip((a, b), ends, strict=True)
    )
    return ours, theirs


def _without(pairs: Mapping[Place, Pair], dropped: Iterable[Pair]) -> dict[Place, Pair]:
    places = {pair.a for pair in dropped}
    return {place: pair for place, pair in pairs.items() if place not in places}


def _doubtful(a: Trace, pairs: Mapping[Place, Pair], failures: Iterable[Failure]) -> list[Pair]:
    return [
        pair
        for pair in (failure.pair for failure in failures)
        if pair.kind not in ("by hand", "name") and pair.distance > _CERTAIN and _leads_to_a_pair(a, pair.a[0], pairs)
    ]


def _depend_alike(partners: Partners, matched: Matched) -> Callable[[Node, Node], bool]:
    """A test whether a node of A and one of B may be partners. They depend on the same common value or, if they are known to run in one pass, each
    on any common value: optimizers may keep different states. This separates operators that draw initial weights from those that update them, and
    constants from both.
    """
    of_a, of_b = _last_shared(partners.a, matched.a), _last_shared(partners.b, matched.b)

    def depend_alike(one: Node, other: Node) -> bool:
        if not partners.may_pair((one.index, 0), (other.index, 0)):
            return False
        ours, theirs = of_a[one.index], of_b[other.index]
        are_of_pass = partners.know_passes and one.op.phase == other.op.phase
        return bool(ours and theirs) if are_of_pass else not ours.isdisjoint(theirs)

    return depend_alike


def _last_shared(trace: Trace, shared: Shared) -> Sequence[frozenset[int]]:
    """For each node, the numbers of the last common values that it depends on: read directly, or through values that only its run has."""
    found: list[frozenset[int]] = []
    for node in trace.nodes:
        read: set[int] = set()
        for slot in node.inputs:
            maker, number = node.makers.get(slot), shared.of_input(node, slot)
            if number is not None:
                read.add(number)
            elif maker is not None:
                read |= found[maker[0]]
        found.append(frozenset(read))
    return found


def _leads_to_a_pair(a: Trace, index: int, pairs: Mapping[Place, Pair]) -> bool:

    def readers(node: int) -> Iterator[int]:
        return (each for each in a.readers(node) if not reads_only_shapes(a.nodes[each]))

    return not reachable([index], readers).isdisjoint({other for other, _ in pairs} - {index})


def _count(a: Trace, b: Trace, found: Outcome, matched: Matched, sides: tuple[str, str]) -> None:
    """Sort operators into those with a value of the other run, those that lead to one, and those that lead to no result of the other program."""
    direct = {pair.a[0] for pair in found.pairs}, {pair.b[0] for pair in found.pairs}
    held = held_by_both(a, b, found.pairs, matched)
    left = {node.index for node in a.nodes} - held[0], {node.index for node in b.nodes} - held[1]
    found.between = held[0] - direct[0], held[1] - direct[1]
    found.unused = unused_by_both(a, b, held)
    found.unmatched = left[0] - found.unused[0], left[1] - found.unused[1]
    (one, other), (ours, theirs) = sides, found.unused
    unused = (
        f"; {len(ours):,} of {one} and {len(theirs):,} of {other} lead to no result of the other program"
        if ours or theirs
        else ""
    )
    found.notes.append(
        f"operators were matched by their values: {len(direct[0]):,} of {one} have the values of {len(direct[1]):,} of {other}; "
        f"{len(found.between[0]):,} of {one} and {len(found.between[1]):,} of {other} lie between them{unused}"
    )


# How matches by value are reported: in the table, in match.yaml, and in the window around a divergence.


@dataclass(frozen=True)
class ValueTable:
    """The pairs of values of a step."""

    a: Trace
    b: Trace
    found: Outcome

    @cached_property
    def pairs(self) -> Sequence[Pair]:
        """The pairs in the order of B."""
        return sorted(self.found.pairs, key=lambda pair: (pair.b, pair.a))

    @cached_property
    def outputs(self) -> Sequence[Outputs]:
        """One row per pair."""
        return [self._outputs(pair) for pair in self.pairs]

    @property
    def matches(self) -> StepMatches:
        """The entries of match.yaml: one per pair of operators, with its best score."""
        found: dict[tuple[int, int], Match] = {}
        for pair, row in zip(self.pairs, self.outputs, strict=True):
            here, there = pair.a[0], pair.b[0]
            match = Match(
                self._names[0][here], self._names[1][there], pair.kind, row.match_score, row.with_a, row.with_b
            )
            if (here, there) not in found or found[here, there].score < match.score:
                found[here, there] = match
        unmatched, unused = (
            [[self._names[side][index] for index in sorted(each[side])] for side in (0, 1)]
            for each in (self.found.unmatched, self.found.unused)
        )
        return StepMatches(
            self.a.rank, self.a.step, self.b.step, [found[each] for each in sorted(found)], *unmatched, *unused
        )

    @property
    def alignment(self) -> Alignment:
        """The first partner of each operator."""
        b_of: dict[int, int] = {}
        a_of: dict[int, int] = {}
        for pair in self.pairs:
            here, there = pair.a[0], pair.b[0]
            if here not in b_of and there not in a_of:
                b_of[here], a_of[there] = there, here
        return Alignment(b_of, a_of)

    def outputs_of(self, one: Node, other: Node) -> Iterable[Outputs]:
        """The rows of two operators."""
        places = one.index, other.index
        return [row for pair, row in zip(self.pairs, self.outputs, strict=True) if (pair.a[0], pair.b[0]) == places]

    def _outputs(self, pair: Pair) -> Outputs:
        one, other = self.a.at(pair.a), self.b.at(pair.b)
        with_a, with_b = (
            [self._names[side][node.index] for node in between(trace, last, ends) if node.index != last]
            for side, (trace, last, ends) in enumerate(
                ((self.a, pair.a[0], self._ends[0]), (self.b, pair.b[0], self._ends[1]))
            )
        )
        score = round(max(0.0, 1.0 - pair.distance), 3)
        return Outputs(one, other, pair.kind, score, pair.layout, with_a, with_b, pair in self.found.failing)

    @cached_property
    def _ends(self) -> tuple[set[Place], set[Place]]:
        return {pair.a for pair in self.found.pairs}, {pair.b for pair in self.found.pairs}

    @cached_property
    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        return names_of(self.a), names_of(self.b)


# A program of JAX or MindSpore recorded in two modes, compiled and operator by operator: only values can be matched.

_COMPILED: Final = 0.25
"""The modes differ if the shares of operators in compiled functions differ by more than this."""
OTHER_STEPS: Final = (
    "one run compiles its step and has {} steps, the other runs operator by operator and has {}: they were not compared; call dump.step() at "
    "the end of each step of both programs, and record again"
)
OTHER_RESULTS: Final = (
    "one run compiles what the other runs operator by operator. Output {} of {}, which is a result, has no counterpart within rounding; the "
    "cause was not found: compare two compiled runs, or two that are not compiled"
)


def of_two_modes(a: Trace, b: Trace) -> bool:
    """Whether one run compiles what the other runs operator by operator."""
    shares = [_compiled_share(trace) for trace in (a, b)]
    return None not in shares and abs((shares[0] or 0.0) - (shares[1] or 0.0)) > _COMPILED


def _compiled_share(trace: Trace) -> float | None:
    """The share of operators that ran in compiled functions; None if the run is of neither framework."""
    kernels = [node.op.kernel for node in trace.nodes]
    if any(kernel.startswith("mindspore::") for kernel in kernels):
        return sum(node.op.graph_id != PYNATIVE for node in trace.nodes) / len(kernels)
    if not any(kernel.startswith(("jax::", "lax::", "jnp::")) for kernel in kernels):
        return None
    return sum(bool(node.op.graph_id) for node in trace.nodes) / len(kernels)


def without_counterpart(a: Trace, b: Trace) -> str:
    """A note on the first result of either run that the other run lacks; empty if there is none, or if operators can be run again."""
    if _can_run(a) or _can_run(b):
        return ""
    for here, there in ((a, b), (b, a)):
        others = [((node.index, slot), record) for node in there.nodes for slot, record in node.outputs.items()]
        for place in computed_results(here):
            record = here.at(place)
            alike = (
                other
                for other, found in others
                if not found.skip and (found.shape, found.dtype) == (record.shape, record.dtype)
            )
            if place[1] >= 0 and not any(is_near(here, place, there, other) for other in alike):
                return OTHER_RESULTS.format(place[1], here.nodes[place[0]].op.op_name)
    return ""
