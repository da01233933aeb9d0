"""Judges one rank of two dumps, step by step, up to the first step in which an operator introduced a difference.

The table of a comparison may have millions of rows, so `Chain` joins the rows of all steps without copying them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar, overload

from opdump import amounts
from opdump.adapters.replay import replayer_of
from opdump.catalog.catalog import Catalog
from opdump.comparison.across_frameworks import (
    OTHER_STEPS,
    Outcome,
    ValueTable,
    compare_across,
    of_different_frameworks,
    of_two_modes,
    without_counterpart,
)
from opdump.comparison.alignment import Alignment, Precedents, align
from opdump.comparison.arguments import told_choices
from opdump.comparison.by_bounds import Bounded, is_bounded, judge_by_bounds
from opdump.comparison.by_statistics import StatisticsComparison, have_same_phases
from opdump.comparison.causes import proven_first
from opdump.comparison.ends import leave_as_finite, not_finite
from opdump.comparison.integrity import holds_elements, initial_draws
from opdump.comparison.kernel_accuracy import JudgedGraphs, judge_graphs, opaque_suspects
from opdump.comparison.lost_values import StepValues
from opdump.comparison.memory import are_cut_otherwise, read_step, read_whole
from opdump.comparison.nodes import Suspect
from opdump.comparison.pairs import (
    GivenMatches,
    Outputs,
    RepeatedMatches,
    RepeatedStep,
    Repeats,
    StepMatches,
    matches_of,
    outputs_of,
)
from opdump.comparison.result import Neighbour, window
from opdump.comparison.sweep import Comparison
from opdump.comparison.trace import Trace, are_strangers, nearest_names, only, with_makers
from opdump.comparison.unexplained import Spread, agree, unexplained, unexplained_by_statistics
from opdump.plan.selection import KernelPattern

Item_co = TypeVar("Item_co", covariant=True)


class Part(Protocol[Item_co]):
    """One part of a chain: sized and iterable. It may create its items on each iteration."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Item_co]: ...


class Chain(Sequence[Item_co]):
    """The items of all parts, in order."""

    def __init__(self, parts: Sequence[Part[Item_co]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Item_co]:
        return itertools.chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> Item_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item_co]: ...
    def __getitem__(self, index: int | slice) -> Item_co | Sequence[Item_co]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        for part in self._parts:
            if place < len(part):
                return next(itertools.islice(part, place, None))
            place -= len(part)
        raise IndexError(index)  # unreachable: `range` has raised already

    def __repr__(self) -> str:
        return f"<{len(self)} items>"


_SHOWN_PROBLEMS: Final = 3
_OF_WHAT_IS_GIVEN: Final = frozenset({"argument", "data", "parameter", "random", "precision"})
"""Kinds of suspects that count even if the results agree, because the program was given something else."""

Steps = Sequence[tuple[int, int]]
"""Pairs of a step of A and the step of B to compare it with."""


@dataclass(slots=True)
class Judgement:
    """The findings in one rank. `outputs` has one part per step, with the outputs of all matched operators in the order of B. `diverging` is
    the first part that may contain an introduced difference.
    """

    matched: int = 0
    unmatched: int = 0
    most: int = 0
    """How many operators could be matched at most: the number in the smaller program, over all steps."""
    steps: list[int] = field(default_factory=list)
    """Steps of A that were judged: all up to the first with a difference."""
    suspects: Sequence[Suspect] = ()
    window: Sequence[Neighbour] = ()
    outputs: list[list[Outputs] | RepeatedStep] = field(default_factory=list)
    matches: list[Part[StepMatches]] = field(default_factory=list)
    diverging: int = 0
    alone: set[int] = field(default_factory=set)
    """Steps that have only statistics."""
    not_run: set[str] = field(default_factory=set)
    """Kernels that could not be run again."""
    without_effect: list[str] = field(default_factory=list)
    """Operators whose arguments differ without effect on their outputs."""
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Parts of the dumps that could not be read."""
    nearest: list[str] = field(default_factory=list)
    """Similar names, if the programs have hardly any operators in common."""
    is_judged: bool = True
    """Whether any step could be judged."""
    of_frameworks: bool = False
    """Whether the runs are of different frameworks, so that equal bits are not expected."""


def judge(
    a: Catalog,
    b: Catalog,
    steps: Steps,
    rank: int,
    given: GivenMatches | None = None,
    done: Callable[[], None] = lambda: None,
    *,
    may_join: bool = False,
) -> Judgement:
    """Judge a rank of two dumps, keeping the matched pairs in `given`. `done` is called after each step. With `may_join`, all steps of each run are
    judged as one if the runs have different step boundaries.
    """
    found = Judgement()
    before: Comparison | None = None
    before_alone: StatisticsComparison | None = None
    values: StepValues | None = None
    bounded: Bounded | None = None
    precedents = Precedents()
    whole = may_join and given is None and are_cut_otherwise(a, b, rank)
    if whole:
        steps = steps[:1]
        found.notes.append("the runs have different step boundaries, so all steps of each were compared as one")
    selected = _selected(a, rank), _selected(b, rank)
    if selected[0] != selected[1]:
        found.notes.append(f"only operators that both runs selected were compared: {_shown(*selected)}")
    traces = _Traces(a, b, steps, rank, selected, whole=whole)
    repeats = Repeats(a, b, rank) if selected[0] == selected[1] else None
    frameworks = _frameworks_of(a), _frameworks_of(b)
    for number, (here, there) in enumerate(steps):
        again = None if repeats is None or given is not None or whole else repeats.of(here, there)
        if again is not None:
            before_again = StatisticsComparison(again[1], again[2], again[0].alignment, before_alone)
            if (
                not again[0].has_other_arguments
                and before_again.loses_nothing()
                and leave_as_finite(again[1], again[2])
            ):
                before_alone = before_again
                _add_repeated(found, here, RepeatedStep.of(*again))
                found.steps.append(here)
                found.most += min(len(again[1].nodes), len(again[2].nodes))
                done()
                continue
        both = traces.of(number)
        assert both is not None
        trace_a, trace_b = both
        found.diverging = len(found.outputs)
        counts = len(a.steps_of(rank)), len(b.steps_of(rank))
        is_of_two_modes = of_two_modes(trace_a, trace_b)
        if is_of_two_modes and counts[0] != counts[1]:
            found.notes.append(OTHER_STEPS.format(max(counts), min(counts)))
            found.is_judged = False
            break
        if is_of_two_modes or of_different_frameworks(trace_a, trace_b, frameworks):
            by_hand = [] if given is None else given.of_values(trace_a, trace_b)
            _add_across(found, trace_a, trace_b, compare_across(trace_a, trace_b, by_hand))
            note = "" if found.suspects or not is_of_two_modes else without_counterpart(trace_a, trace_b)
            if note:
                found.notes.append(note)
                found.is_judged = False
                break
        elif not whole and counts[0] != counts[1] and not have_same_phases(trace_a, trace_b):
            found.notes.append(
                f"step {here}: the runs have different step boundaries; this step and later ones were not compared; "
                "--step N:M compares step N of A with step M of B"
            )
            found.is_judged = number > 0
            break
        else:
            alignment = align(trace_a, trace_b, {} if given is None else given.of(trace_a, trace_b), precedents)
            precedents.add(trace_a, trace_b, alignment)
            told = told_choices(trace_a, trace_b)
            found.notes += [told] if told and told not in found.notes else []
            if not (_has_elements(trace_a) and _has_elements(trace_b)):
                found.alone.add(here)
                before_alone = StatisticsComparison(trace_a, trace_b, alignment, before_alone)
                judged = before_alone.judged()
                graphs = judge_graphs(trace_a, trace_b, alignment)
                _add_graphs(found, graphs)
                found.suspects = [*(each for each in judged.suspects if not graphs.judged(each)), *graphs.suspects]
                spread = None if _can_be_run(trace_a, trace_b) else before_alone.spread
                _weigh_by_results(found, trace_a, trace_b, alignment, graphs, spread, whole=whole)
                found.suspects = (
                    found.suspects
                    or not_finite(trace_a, trace_b, alignment)
                    or unexplained_by_statistics(trace_a, trace_b, alignment)
                )
                _note_arguments(found, [f"{each.other.op.op_name}: {each.told}" for each in judged.without_effect])
                may_repeat = repeats is not None and not found.suspects and given is None and not whole
                once = repeats.add(trace_a, trace_b, alignment) if repeats is not None and may_repeat else None
                if once is None:
                    _add_matches(found, trace_a, trace_b, alignment)
                else:
                    _add_repeated(found, here, once)
                trace_a, trace_b, alignment = judged.a, judged.b, judged.alignment
            elif is_bounded(trace_a, trace_b):
                _add_matches(found, trace_a, trace_b, alignment)
                bounded = judge_by_bounds(trace_a, trace_b, alignment, bounded)
                found.suspects = (
                    bounded.suspects
                    or not_finite(trace_a, trace_b, alignment)
                    or (
                        []
                        if _are_all_matched(trace_a, trace_b, alignment)
                        else unexplained(trace_a, trace_b, alignment)
                    )
                )
                found.notes += [note for note in bounded.notes if note not in found.notes]
            else:
                _add_matches(found, trace_a, trace_b, alignment)
                before = Comparison(trace_a, trace_b, alignment, before, partial(traces.of, number + 1))
                if not _can_be_run(trace_a, trace_b):
                    values = StepValues(trace_a, trace_b, alignment, values)
                _add_sweep(found, before, judge_graphs(trace_a, trace_b, alignment), values, whole=whole)
                before.release()
            if found.suspects:
                found.window = window(trace_a, trace_b, alignment, found.suspects[0])
        found.steps.append(here)
        found.most += min(len(trace_a.nodes), len(trace_b.nodes))
        if number == 0 and are_strangers(found.matched, found.most):
            found.nearest = nearest_names(trace_a, trace_b)
        if found.suspects:
            break
        done()
    found.problems = [str(problem) for problem in (*a.problems, *b.problems)]
    return found


class _Traces:
    """The steps of both dumps, each read once, with only the operators that both runs selected."""

    def __init__(
        self,
        a: Catalog,
        b: Catalog,
        steps: Steps,
        rank: int,
        selected: tuple[Sequence[KernelPattern], Sequence[KernelPattern]],
        *,
        whole: bool = False,
    ) -> None:
        self._a, self._b, self._steps, self._rank, self._whole = a, b, steps, rank, whole
        self._selected = selected
        self._read: dict[int, tuple[Trace, Trace]] = {}

    def of(self, number: int) -> tuple[Trace, Trace] | None:
        """The two traces of a step, by its position among the steps; None after the last."""
        if number == len(self._steps):
            return None
        if number not in self._read:
            here, there = self._steps[number]
            if self._whole:
                one, other = read_whole(self._a, self._rank), read_whole(self._b, self._rank)
            else:
                one, other = read_step(self._a, here, self._rank), read_step(self._b, there, self._rank)
            if self._selected[0] != self._selected[1]:
                one, other = (only(trace, self._is_selected) for trace in (one, other))
            self._read[number] = with_makers(one), with_makers(other)
            self._read.pop(number - 2, None)
        return self._read[number]

    def _is_selected(self, op_name: str, op_type: str) -> bool:
        return all(
            not patterns or any(pattern.matches(op_name, op_type) for pattern in patterns)
            for patterns in self._selected
        )


def _selected(dump: Catalog, rank: int) -> tuple[KernelPattern, ...]:
    """The patterns of the operators that a run recorded; empty if it recorded all, or if its selection is unknown."""
    plans = [run.plan for run in dump.runs if run.rank_id == rank]
    if not plans or plans[-1].get("selection") != "kernels":
        return ()
    return tuple(map(KernelPattern.parse, plans[-1].get("kernels", ())))


def _shown(*selected: Sequence[KernelPattern]) -> str:
    return "; ".join(
        f"{', '.join(pattern.text for pattern in patterns) or 'all'} in {name}"
        for name, patterns in zip("AB", selected, strict=True)
    )


def _are_all_matched(a: Trace, b: Trace, alignment: Alignment) -> bool:
    """Whether every operator has a counterpart. Then each was judged by its bound, and the accumulated difference is within bounds."""
    return alignment.matched == len(a.nodes) == len(b.nodes)


def _add_matches(found: Judgement, a: Trace, b: Trace, alignment: Alignment) -> None:
    found.matches.append([matches_of(a, b, alignment)])
    found.matched += alignment.matched
    found.unmatched += len(a.nodes) + len(b.nodes) - 2 * alignment.matched
    found.outputs.append(
        [
            pair
            for index_b, index in sorted(alignment.a_of.items())
            for pair in outputs_of(a.nodes[index], b.nodes[index_b], alignment.kinds[index])
        ]
    )


def _add_repeated(found: Judgement, step: int, repeated: RepeatedStep) -> None:
    found.alone.add(step)
    found.matches.append(RepeatedMatches(repeated))
    found.matched += repeated.pair.alignment.matched
    found.unmatched += repeated.pair.unmatched
    found.outputs.append(repeated)


def _add_sweep(
    found: Judgement, comparison: Comparison, graphs: JudgedGraphs, values: StepValues | None, *, whole: bool
) -> None:
    """Add the findings of the sweep of a step, and those of compiled graphs. `values` is None if operators can be run again."""
    apart = [suspect for suspect in comparison.sweep() if not graphs.judged(suspect)]
    opaque, not_proven = opaque_suspects(comparison.a, comparison.b, comparison.alignment)
    drawn = initial_draws(comparison.a, comparison.b, comparison.alignment)
    found.suspects = proven_first(_merged([*drawn, *opaque], [*apart, *graphs.suspects]))
    spread = None if values is None else values.spread
    _weigh_by_results(found, comparison.a, comparison.b, comparison.alignment, graphs, spread, whole=whole)
    if not found.suspects:
        found.suspects = not_finite(comparison.a, comparison.b, comparison.alignment)
    if not found.suspects:
        by_rounding: Spread = spread or comparison.rehearsal.spread
        left = unexplained(comparison.a, comparison.b, comparison.alignment, by_rounding, graphs)
        found.suspects = (comparison.found.permuted or left) if left else []
    _add_graphs(found, graphs)
    _note_arguments(found, comparison.found.without_effect)
    if not found.suspects:
        names = (_permuted_name(each) for each in comparison.found.permuted)
        found.notes += [
            f"step {comparison.a.step}: {name} has the same elements in a different order" for name in names
        ]
    found.notes += [
        f"step {comparison.a.step}: {name} differs, and no difference at the end depends on it"
        for name in dict.fromkeys(comparison.found.idle)
    ]
    found.not_run |= not_proven | (comparison.found.not_run - graphs.kernels)


def _permuted_name(suspect: Suspect) -> str:
    """The name of a suspect's input."""
    assert suspect.b is not None
    record = suspect.b.inputs[suspect.slot]
    return record.source or record.argument or suspect.b.op.op_name


def _note_arguments(found: Judgement, told: Sequence[str]) -> None:
    """Note operators whose arguments differ without effect, each once."""
    new = [each for each in dict.fromkeys(told) if each not in found.without_effect]
    found.without_effect += new


def _can_be_run(a: Trace, b: Trace) -> bool:
    """Whether any operator of two runs can be run again."""
    return any(replayer_of(node.op) for trace in (a, b) for node in trace.nodes)


def _weigh_by_results(
    found: Judgement,
    a: Trace,
    b: Trace,
    alignment: Alignment,
    graphs: JudgedGraphs,
    spread: Spread | None,
    *,
    whole: bool,
) -> None:
    """If no operator can be run again, decide by the results whether the programs differ: another way to the same results is no difference.
    `spread` is the effect of rounding, from the statistics of all values; None if operators can be run again, and then nothing is done.

    In runs that are compared as a `whole`, differing arguments do not count either, because operators of one type with different purposes may be
    matched.
    """
    if spread is None:
        return
    if agree(a, b, alignment, spread, graphs):
        of_graphs = {id(each) for each in graphs.suspects}
        counted = _OF_WHAT_IS_GIVEN - {"argument"} if whole else _OF_WHAT_IS_GIVEN
        found.suspects = [each for each in found.suspects if each.kind in counted or id(each) in of_graphs]
    elif not found.suspects:
        found.suspects = unexplained(a, b, alignment, spread, graphs)


def _add_graphs(found: Judgement, graphs: JudgedGraphs) -> None:
    found.notes += graphs.notes
    found.matched += graphs.pairs
    found.unmatched -= 2 * graphs.pairs


def _merged(seen: Sequence[Suspect], others: Sequence[Suspect]) -> list[Suspect]:
    """All suspects, each place once. Suspects in `seen` that ran before the first of `others` come first, the rest of them last."""
    others = _numbers_last(others)
    told = {suspect.place for suspect in others}
    first = others[0].b if others else None
    new = [suspect for suspect in seen if suspect.place not in told]
    before = [each for each in new if first is None or (each.b is not None and each.b.index < first.index)]
    return [*before, *others, *(each for each in new if each not in before)]


def _numbers_last(suspects: Sequence[Suspect]) -> list[Suspect]:
    """The suspects, with single numbers that the program supplied moved behind the others: they may be computed from an earlier difference."""
    first = min((each.b.index for each in suspects if each.kind != "data" and each.b is not None), default=math.inf)

    def is_counted(suspect: Suspect) -> bool:
        node = suspect.b
        return (
            suspect.kind == "data"
            and node is not None
            and node.index > first
            and math.prod(node.inputs[suspect.slot].shape) == 1
        )

    return sorted(suspects, key=is_counted)


def _add_across(found: Judgement, a: Trace, b: Trace, outcome: Outcome) -> None:
    table = ValueTable(a, b, outcome)
    found.outputs.append(list(table.outputs))
    found.matches.append([table.matches])
    found.unmatched += sum(map(len, outcome.alone))
    found.matched += len(a.nodes) - len(outcome.alone[0])
    found.not_run |= outcome.not_run
    found.notes += outcome.notes
    found.of_frameworks = True
    found.suspects = outcome.suspects
    if found.suspects:
        found.window = window(a, b, table.alignment, found.suspects[0], table.outputs_of, outcome.told)


def _frameworks_of(dump: Catalog) -> set[str]:
    """The known frameworks of the runs."""
    return {run.framework for run in dump.runs if run.framework}


def _has_elements(trace: Trace) -> bool:
    return any(holds_elements(node.outputs) for node in trace.nodes)


def notes_of(judgements: Sequence[Judgement], *, can_replay: Callable[[], bool]) -> list[str]:
    """The notes of the report on how the ranks were judged."""
    notes = list(dict.fromkeys(note for found in judgements for note in found.notes))
    problems = list(dict.fromkeys(problem for found in judgements for problem in found.problems))
    notes += [f"not read: {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        notes.append(f"{len(problems) - _SHOWN_PROBLEMS:,} more were not read; opdump show lists them")
    steps = len({step for found in judgements for step in found.steps})
    not_run = sorted(set().union(*(found.not_run for found in judgements)))
    alone = set().union(*(found.alone for found in judgements))
    if not_run:
        named = ", ".join(not_run[:5]) + (", ..." if len(not_run) > 5 else "")
        notes.append(
            f"{amounts.count(len(not_run), 'kernel')} could not be run again; the recorded outputs were compared, with looser tolerances: {named}"
            + ("" if can_replay() else "; running operators again needs PyTorch: pip install torch")
        )
    without_effect = list(dict.fromkeys(each for found in judgements for each in found.without_effect))
    if without_effect:
        more = f"; and {len(without_effect) - _SHOWN_PROBLEMS:,} more" if len(without_effect) > _SHOWN_PROBLEMS else ""
        notes.append(
            f"arguments differ without changing the result: {'; '.join(without_effect[:_SHOWN_PROBLEMS])}{more}"
        )
    if alone:
        notes.append(
            f"{len(alone):,} of {steps:,} steps have only statistics, so no operator was run again; record both runs with --full to compare values"
        )
    return notes
