"""Judges one rank of two dumps, step by step, up to the first step in which an operator introduced a difference.

The table of a comparison may have millions of rows, so `Chain` joins the rows of all steps without copying them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar, overload

from opdump import amounts
from opdump.adapters.replay import can_be_replayed, missing_packages, replayer_of
from opdump.catalog.catalog import Catalog
from opdump.comparison.accuracy import distance
from opdump.comparison.across_frameworks import (
    OTHER_STEPS,
    Outcome,
    ValueTable,
    agree_by_values,
    are_graphs_of_other_code,
    compare_across,
    of_different_frameworks,
    of_two_modes,
    without_counterpart,
)
from opdump.comparison.alignment import Alignment, Precedents, align
from opdump.comparison.arguments import other_writes, told_choices
from opdump.comparison.by_bounds import Bounded, is_bounded, judge_by_bounds
from opdump.comparison.by_statistics import StatisticsComparison, have_same_phases
from opdump.comparison.causes import proven_first
from opdump.comparison.end_state import leave_as_finite, not_finite
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
from opdump.comparison.reference_replay import ReferenceReplay
from opdump.comparison.result import Neighbour, window
from opdump.comparison.trace import (
    Trace,
    are_unrelated_programs,
    lack_evidence,
    nearest_names,
    only,
    with_makers,
    without_evidence,
)
from opdump.comparison.unexplained import Spread, agree, unexplained, unexplained_by_statistics
from opdump.plan.selection import KernelPattern
from opdump.records import TensorRecord

Item = TypeVar("Item")
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

_OTHER_BOUNDARIES: Final = (
    "step {}: the runs have different step boundaries; this step and later ones were not compared; "
    "--step N:M compares step N of A with step M of B"
)

_OTHER_COUNTS: Final = "A has {} steps, B has {}, and they do not correspond"

Patterns = tuple[KernelPattern, ...]
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
    why: str = ""
    """Why no step could be judged; empty if one could."""
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
    whole = may_join and given is None and are_cut_otherwise(a, b, rank, steps)
    judge_of_rank = _RankJudge(a, b, steps[:1] if whole else steps, rank, given, whole=whole, may_join=may_join)
    for number in range(1 if whole else len(steps)):
        if not (judge_of_rank.repeats(number) or judge_of_rank.judge(number)):
            break
        done()
    judge_of_rank.found.problems = [str(problem) for problem in (*a.problems, *b.problems)]
    return judge_of_rank.found


class _RankJudge:
    """The findings in the steps so far, and what each way of judging needs of the step before. `whole` joins all steps of each run."""

    def __init__(
        self,
        a: Catalog,
        b: Catalog,
        steps: Steps,
        rank: int,
        given: GivenMatches | None,
        *,
        whole: bool,
        may_join: bool,
    ) -> None:
        self.found = Judgement()
        self._steps, self._given, self._whole = steps, given, whole
        self._frameworks = _frameworks_of(a), _frameworks_of(b)
        self._counts = len(a.steps_of(rank)), len(b.steps_of(rank))
        selected = _selected(a, rank), _selected(b, rank)
        if whole:
            self.found.notes.append(
                "the runs have different step boundaries, so all steps of each were compared as one"
            )
        if may_join and not whole:
            self.found.notes += _left_out(a, b, steps, rank)
        if selected[0] != selected[1]:
            self.found.notes.append(f"only operators that both runs selected were compared: {_shown(*selected)}")
        self._traces = _Traces(a, b, steps, rank, selected, whole=whole)
        may_repeat = selected[0] == selected[1] and given is None and not whole
        self._repeats = Repeats(a, b, rank) if may_repeat else None
        self._precedents = Precedents()
        self._by_replay: ReferenceReplay | None = None
        self._by_statistics: StatisticsComparison | None = None
        self._by_bounds: Bounded | None = None
        self._values: StepValues | None = None

    def repeats(self, number: int) -> bool:
        """Whether a step repeats an earlier one and no operator introduced a difference in it. Then it is judged."""
        here, there = self._steps[number]
        again = None if self._repeats is None else self._repeats.of(here, there)
        if again is None or again[0].has_other_arguments:
            return False
        pair, a, b = again
        comparison = StatisticsComparison(a, b, pair.alignment, self._by_statistics)
        if not (comparison.loses_nothing() and leave_as_finite(a, b)):
            return False
        self._by_statistics = comparison
        _add_repeated(self.found, here, RepeatedStep.of(pair, a, b))
        self._count(here, a, b)
        return True

    def judge(self, number: int) -> bool:
        """Judge a step. Return whether the next one can be judged: not after a difference, nor if the steps of the runs do not correspond."""
        both = self._traces.of(number)
        assert both is not None
        a, b = both
        here, _ = self._steps[number]
        self.found.diverging = len(self.found.outputs)
        are_of_modes, have_other_steps = of_two_modes(a, b), self._counts[0] != self._counts[1]
        if are_of_modes or of_different_frameworks(a, b, self._frameworks):
            if not self._judge_across(a, b, are_of_modes=are_of_modes):
                return False
        elif have_other_steps and not self._whole and not have_same_phases(a, b):
            return self._stop(_OTHER_BOUNDARIES.format(here), "" if number else _OTHER_COUNTS.format(*self._counts))
        else:
            a, b = self._judge_matched(number, a, b)
        self._count(here, a, b)
        if number == 0 and are_unrelated_programs(self.found.matched, self.found.most):
            self.found.nearest = nearest_names(a, b)
        return not self.found.suspects

    def _judge_across(self, a: Trace, b: Trace, *, are_of_modes: bool) -> bool:
        """Judge a step of two frameworks, or of two modes of one. Return False if it cannot be judged."""
        if are_of_modes and self._counts[0] != self._counts[1]:
            counts = _OTHER_COUNTS.format(*self._counts)
            return self._stop(OTHER_STEPS.format(max(self._counts), min(self._counts)), counts)
        by_hand = [] if self._given is None else self._given.of_values(a, b)
        _add_across(self.found, a, b, compare_across(a, b, by_hand))
        if are_of_modes and not self.found.suspects and (note := without_counterpart(a, b)):
            return self._stop(note, "a result of one run was not found in the other")
        return True

    def _stop(self, note: str, why: str) -> bool:
        """Note why this step and later ones are not judged. `why` is the reason in short, if no step was judged."""
        self.found.notes.append(note)
        self.found.why = why
        return False

    def _count(self, step: int, a: Trace, b: Trace) -> None:
        self.found.steps.append(step)
        self.found.most += min(len(a.nodes), len(b.nodes))

    def _judge_matched(self, number: int, a: Trace, b: Trace) -> tuple[Trace, Trace]:
        """Match the operators, and judge each with what the dumps have. Return the traces of the findings."""
        alignment = align(a, b, {} if self._given is None else self._given.of(a, b), self._precedents)
        if _has_elements(a) and _has_elements(b) and are_graphs_of_other_code(a, b, alignment):
            self._judge_across(a, b, are_of_modes=False)
            return a, b
        self._precedents.add(a, b, alignment)
        _add_new(self.found.notes, filter(None, [told_choices(a, b)]))
        if not (_has_elements(a) and _has_elements(b)):
            a, b, alignment = self._judge_by_statistics(self._steps[number][0], a, b, alignment)
        elif is_bounded(a, b):
            _add_matches(self.found, a, b, alignment)
            self._judge_by_bounds(a, b, alignment)
        else:
            told = list(self.found.notes), list(self.found.without_effect), set(self.found.not_run)
            self._judge_by_replay(number, a, b, alignment)
            agreed = None
            if self.found.suspects and _are_of_other_code(a, b, alignment):
                agreed = agree_by_values(a, b, self._traces.beside(number))
            if agreed is None:
                _add_matches(self.found, a, b, alignment)
            else:
                self.found.notes, self.found.without_effect, self.found.not_run = told
                _add_across(self.found, a, b, agreed)
        if self.found.suspects:
            self.found.window = window(a, b, alignment, self.found.suspects[0])
        return a, b

    def _judge_by_statistics(
        self, step: int, a: Trace, b: Trace, alignment: Alignment
    ) -> tuple[Trace, Trace, Alignment]:
        found = self.found
        found.alone.add(step)
        self._by_statistics = StatisticsComparison(a, b, alignment, self._by_statistics)
        judged = self._by_statistics.judged()
        graphs = judge_graphs(a, b, alignment)
        _add_graphs(found, graphs)
        found.suspects = [*(each for each in judged.suspects if not graphs.judged(each)), *graphs.suspects]
        nodes = [*a.nodes, *b.nodes]
        # The results of code that XLA compiled show its differences; its operators are not recorded.
        is_replayable = any(can_be_replayed(node.op) for node in nodes) and not any(
            node.op.op_type == "XlaLaunch" for node in nodes
        )
        self._weigh_by_results(a, b, alignment, graphs, None if is_replayable else self._by_statistics.spread)
        found.suspects = found.suspects or not_finite(a, b, alignment) or unexplained_by_statistics(a, b, alignment)
        _add_new(found.without_effect, (f"{each.other.op.op_name}: {each.told}" for each in judged.without_effect))
        once = None if found.suspects or self._repeats is None else self._repeats.add(a, b, alignment)
        if once is None:
            _add_matches(found, a, b, alignment)
        else:
            _add_repeated(found, step, once)
        return judged.a, judged.b, judged.alignment

    def _judge_by_bounds(self, a: Trace, b: Trace, alignment: Alignment) -> None:
        self._by_bounds = judge_by_bounds(a, b, alignment, self._by_bounds)
        self.found.suspects = self._by_bounds.suspects or not_finite(a, b, alignment)
        # If every operator has a counterpart, each was judged by its bound, and the accumulated difference is within bounds.
        if not self.found.suspects and not alignment.matched == len(a.nodes) == len(b.nodes):
            self.found.suspects = unexplained(a, b, alignment)
        _add_new(self.found.notes, self._by_bounds.notes)

    def _judge_by_replay(self, number: int, a: Trace, b: Trace, alignment: Alignment) -> None:
        """Judge a step by the sweep over its operators, its compiled graphs, and the operators that cannot be run again."""
        found = self.found
        self._by_replay = step = ReferenceReplay(a, b, alignment, self._by_replay, partial(self._traces.of, number + 1))
        if not _can_be_run(a, b):
            self._values = StepValues(a, b, alignment, self._values)
        graphs = judge_graphs(a, b, alignment)
        apart = [suspect for suspect in step.sweep() if not graphs.judged(suspect)]
        opaque, not_proven = opaque_suspects(a, b, alignment)
        drawn = initial_draws(a, b, alignment)
        found.suspects = proven_first(_merged([*drawn, *opaque], [*apart, *graphs.suspects]))
        spread = None if self._values is None else self._values.spread
        self._weigh_by_results(a, b, alignment, graphs, spread)
        if not found.suspects:
            found.suspects = other_writes(a, b) or not_finite(a, b, alignment)
        if not found.suspects:
            left = unexplained(a, b, alignment, spread or step.float64_check.spread, graphs)
            found.suspects = (step.found.permuted or left) if left else []
        _add_graphs(found, graphs)
        _add_new(found.without_effect, step.found.without_effect)
        if not found.suspects:
            names = map(_permuted_name, step.found.permuted)
            found.notes += [f"step {a.step}: {name} has the same elements in a different order" for name in names]
        found.notes += [
            f"step {a.step}: {name} differs, and no difference at the end depends on it"
            for name in dict.fromkeys(step.found.idle)
        ]
        found.not_run |= not_proven | (step.found.not_run - graphs.kernels)
        step.release()

    def _weigh_by_results(
        self, a: Trace, b: Trace, alignment: Alignment, graphs: JudgedGraphs, spread: Spread | None
    ) -> None:
        """If no operator can be run again, decide by the results whether the programs differ: another way to the same results is not a difference.
        `spread` is the effect of rounding, from the statistics of all values; None if operators can be run again, and then nothing is done.

        In runs that are compared as a whole, differing arguments do not count either, because operators of one type with different purposes may be
        matched.
        """
        if spread is None:
            return
        found = self.found
        if agree(a, b, alignment, spread, graphs):
            of_graphs = {id(each) for each in graphs.suspects}
            counted = _OF_WHAT_IS_GIVEN - {"argument"} if self._whole else _OF_WHAT_IS_GIVEN
            found.suspects = [
                each
                for each in found.suspects
                if id(each) in of_graphs or (each.kind in counted and not _is_given_elsewhere(a, b, each))
            ]
        elif not found.suspects:
            found.suspects = unexplained(a, b, alignment, spread, graphs)


class _Traces:
    """The steps of both dumps, each read once, with only the operators that both runs selected."""

    def __init__(
        self, a: Catalog, b: Catalog, steps: Steps, rank: int, selected: Sequence[Patterns], *, whole: bool
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
            one, other = with_makers(one), with_makers(other)
            if lack_evidence(one, other):
                one, other = without_evidence(one), without_evidence(other)
            self._read[number] = one, other
            self._read.pop(number - 2, None)
        return self._read[number]

    def beside(self, number: int) -> tuple[Trace, Trace] | None:
        """The two traces of the next step, or of the one before the last; None if there is only one."""
        return self.of(number + 1) or (self.of(number - 1) if number else None)

    def _is_selected(self, op_name: str, op_type: str) -> bool:
        return all(
            not patterns or any(pattern.matches(op_name, op_type) for pattern in patterns)
            for patterns in self._selected
        )


def _left_out(a: Catalog, b: Catalog, steps: Steps, rank: int) -> list[str]:
    """A note for each run that has steps that are not compared."""
    left = [sorted(set(dump.steps_of(rank)) - {pair[side] for pair in steps}) for side, dump in enumerate((a, b))]
    return [
        f"{amounts.steps(numbers)} of {name} {'has' if len(numbers) == 1 else 'have'} no counterpart, and {'was' if len(numbers) == 1 else 'were'} not compared"
        for name, numbers in zip("AB", left, strict=True)
        if numbers
    ]


def _selected(dump: Catalog, rank: int) -> Patterns:
    """The patterns of the operators that a run recorded; empty if it recorded all, or if its selection is unknown."""
    plans = [run.plan for run in dump.runs if run.rank_id == rank]
    if not plans or plans[-1].get("selection") != "kernels":
        return ()
    return tuple(map(KernelPattern.parse, plans[-1].get("kernels", ())))


def _shown(*selected: Patterns) -> str:
    return "; ".join(
        f"{', '.join(pattern.text for pattern in patterns) or 'all'} in {name}"
        for name, patterns in zip("AB", selected, strict=True)
    )


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


def _add_new(notes: list[str], more: Iterable[str]) -> None:
    """Add the notes that are new: every step may have the same ones."""
    notes += [each for each in dict.fromkeys(more) if each not in notes]


def _permuted_name(suspect: Suspect) -> str:
    """The name of a suspect's input."""
    assert suspect.b is not None
    record = suspect.b.inputs[suspect.slot]
    return record.source or record.argument or suspect.b.op.op_name


def _is_given_elsewhere(a: Trace, b: Trace, suspect: Suspect) -> bool:
    """Whether each run gives the other run's data of the suspect to an operator of the same type: then operators of two lines were matched."""
    one, other = suspect.a, suspect.b
    if suspect.kind != "data" or one is None or other is None or suspect.slot not in one.inputs:
        return False

    def is_given(trace: Trace, op_type: str, record: TensorRecord) -> bool:
        return any(
            node.bare_type == op_type and slot not in node.makers and distance(record, given) == 0
            for node in trace.nodes
            for slot, given in node.inputs.items()
        )

    return is_given(a, one.bare_type, other.inputs[suspect.slot]) and is_given(
        b, other.bare_type, one.inputs[suspect.slot]
    )


def _can_be_run(a: Trace, b: Trace) -> bool:
    """Whether any operator of two runs can be run again."""
    return any(replayer_of(node.op) for trace in (a, b) for node in trace.nodes)


_OTHER_CODE: Final = 0.9
"""A step of which a smaller part of the operators is matched may be written differently in the two programs."""


def _are_of_other_code(a: Trace, b: Trace, alignment: Alignment) -> bool:
    return alignment.matched < _OTHER_CODE * min(len(a.nodes), len(b.nodes))


def _add_graphs(found: Judgement, graphs: JudgedGraphs) -> None:
    found.notes += graphs.notes
    found.matched += graphs.pairs
    found.unmatched -= 2 * graphs.pairs


def _merged(seen: Sequence[Suspect], others: Sequence[Suspect]) -> list[Suspect]:
    """All suspects, each place once. Suspects in `seen` that ran before the first of `others` come first, the rest of them last.

    If operators are accused, the results of their function are not.
    """
    others = _numbers_last(others)
    if others:
        seen = [each for each in seen if each.b is None or not each.b.op.repeats_operators]
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


def notes_of(judgements: Sequence[Judgement]) -> list[str]:
    """The notes of the report on how the ranks were judged."""
    notes = distinct(found.notes for found in judgements)
    problems = distinct(found.problems for found in judgements)
    not_run = sorted(distinct(found.not_run for found in judgements))
    without_effect = distinct(found.without_effect for found in judgements)
    alone = distinct(found.alone for found in judgements)
    notes += [f"not read: {problem}" for problem in problems[:_SHOWN_PROBLEMS]]
    if len(problems) > _SHOWN_PROBLEMS:
        notes.append(f"{len(problems) - _SHOWN_PROBLEMS:,} more were not read; opdump show lists them")
    if not_run:
        lacking = missing_packages(not_run)
        named = ", ".join(not_run[:5]) + (", ..." if len(not_run) > 5 else "")
        notes.append(
            f"{amounts.count(len(not_run), 'kernel')} could not be run again; the recorded outputs were compared, with looser tolerances: {named}"
            + (f"; running operators again needs more packages: pip install {' '.join(lacking)}" if lacking else "")
        )
    if without_effect:
        more = f"; and {len(without_effect) - _SHOWN_PROBLEMS:,} more" if len(without_effect) > _SHOWN_PROBLEMS else ""
        notes.append(
            f"arguments differ without changing the result: {'; '.join(without_effect[:_SHOWN_PROBLEMS])}{more}"
        )
    if alone:
        steps = distinct(found.steps for found in judgements)
        notes.append(
            f"{len(alone):,} of {len(steps):,} steps have only statistics, so no operator was run again; record both runs with --full to compare values"
        )
    return notes


def distinct(parts: Iterable[Iterable[Item]]) -> list[Item]:
    return list(dict.fromkeys(itertools.chain.from_iterable(parts)))
