"""Steps of both runs that run what two steps before did, with statistics alone: matched as these, compared as columns.

A program does the same in every step. Of such a step no record is made but of what differs, and of all where somebody asks for the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from opdump.catalog.catalog import Catalog
from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.match_file import StepMatches, matches_of
from opdump.comparison.pairs import Outputs, PairRow, measure, outputs_of
from opdump.comparison.repeated_traces import Model, RepeatedTrace, StepNumbers, repeated
from opdump.comparison.trace import Trace
from opdump.comparison.value_columns import Bools, Floats, Places, rows_apart
from opdump.index.columns import BatchColumns, Program
from opdump.kernels import SUMMARY_FIELDS
from opdump.metrics import AddedMetrics

if TYPE_CHECKING:
    from opdump.comparison.pairs import State

_COUNTS_AND_ENDS = SUMMARY_FIELDS.index("sum")
"""So many fields of a summary are statistics themselves, the first ones."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedPair:
    """Two steps that others repeat, and which output of A is which of B."""

    a: Model
    b: Model
    alignment: Alignment
    rows_a: Places
    rows_b: Places
    """Rows of `Trace.columns`, for each pair of outputs in the order of B."""
    always_identical: Places
    """Those of the pairs that have no elements, and are the same."""
    has_other_arguments: bool
    """Whether any of the matched operators has other arguments, so that what it gives has to be looked at in each step."""

    @property
    def unmatched(self) -> int:
        """Operators without a counterpart, of both."""
        return len(self.a.trace.nodes) + len(self.b.trace.nodes) - 2 * self.alignment.matched

    @classmethod
    def of(cls, a: Model, b: Model, alignment: Alignment) -> RepeatedPair:
        """Two steps that were matched."""
        pairs = list(_outputs(a.trace, b.trace, alignment))
        places = [
            (a.trace.rows.of_output[one, pair.a.slot], b.trace.rows.of_output[other, pair.b.slot])
            for one, other, pair in pairs
        ]
        rows = np.array(places, np.intp).reshape(-1, 2)
        empty = [number for number, (_, _, pair) in enumerate(pairs) if 0 in pair.a.shape and 0 in pair.b.shape]
        same = [number for number in empty if measure(pairs[number][2].a, pairs[number][2].b, AddedMetrics()).identical]
        nodes = ((a.trace.nodes[one], b.trace.nodes[other]) for one, other in alignment.b_of.items())
        has_others = any(one.op.arguments != other.op.arguments and differing(one, other) for one, other in nodes)
        return cls(a, b, alignment, rows[:, 0], rows[:, 1], np.array(same, np.intp), has_others)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedStep:
    """Two steps that repeat a pair, and in which no operator introduced a difference."""

    pair: RepeatedPair
    a: StepNumbers
    b: StepNumbers
    identical: Bools
    """Whether each pair of outputs is the same."""
    by_statistics: int
    """How many of the pairs there are statistics of."""

    @property
    def differing(self) -> int:
        """How many of the pairs are not the same."""
        return int(np.count_nonzero(~self.identical))

    @classmethod
    def of(cls, pair: RepeatedPair, a: RepeatedTrace, b: RepeatedTrace) -> RepeatedStep:
        """Compares all outputs."""
        one, other = a.columns.at(pair.rows_a), b.columns.at(pair.rows_b)
        summaries_a = a.numbers.summaries[pair.a.rows[pair.rows_a]]
        summaries_b = b.numbers.summaries[pair.b.rows[pair.rows_b]]
        distances = rows_apart(one, other)
        same = _same(summaries_a[:, :_COUNTS_AND_ENDS], summaries_b[:, :_COUNTS_AND_ENDS])
        identical = np.isnan(distances) | ((distances == 0) & same & _same(one.numbers, other.numbers))
        identical[pair.always_identical] = True
        told = ~np.isnan(distances) & (one.sizes == other.sizes) & (one.sizes > 0)
        return cls(pair, a.numbers, b.numbers, identical, int(np.count_nonzero(told)))

    def __len__(self) -> int:
        return len(self.identical)

    def __iter__(self) -> Iterator[PairRow]:
        """The rows of the table, made anew each time."""
        added = AddedMetrics()
        for _, _, pair in _outputs(*self._traces(), self.pair.alignment):
            found = measure(pair.a, pair.b, added, pair.layout)
            state: State = "identical" if found.identical else "noise"
            yield PairRow(pair, state, found)

    def matches(self) -> StepMatches:
        """What was matched."""
        return matches_of(*self._traces(), self.pair.alignment)

    def _traces(self) -> tuple[Trace, Trace]:
        return repeated(self.pair.a, self.a), repeated(self.pair.b, self.b)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedMatches:
    """What was matched in a step, as a part of a sequence of such."""

    step: RepeatedStep

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[StepMatches]:
        yield self.step.matches()


class Repeats:
    """Finds the steps of a rank that repeat others."""

    def __init__(self, a: Catalog, b: Catalog, rank: int) -> None:
        self._a, self._b, self._rank = a, b, rank
        self._pairs: dict[tuple[Program, Program], RepeatedPair] = {}
        self._read: tuple[BatchColumns, BatchColumns] | None = None
        """The steps that were asked for last."""

    def of(self, step_a: int, step_b: int) -> tuple[RepeatedPair, RepeatedTrace, RepeatedTrace] | None:
        """Two steps, if they repeat a pair."""
        a, b = _summaries_alone(self._a, step_a, self._rank), _summaries_alone(self._b, step_b, self._rank)
        self._read = None if a is None or b is None else (a, b)
        if a is None or b is None:
            return None
        pair = self._pairs.get((a.pattern.program, b.pattern.program))
        if pair is None:
            return None
        return pair, repeated(pair.a, StepNumbers.of(a)), repeated(pair.b, StepNumbers.of(b))

    def add(self, a: Trace, b: Trace, alignment: Alignment) -> RepeatedStep | None:
        """The traces of the steps that were asked for last, in which no operator introduced a difference: others may repeat them."""
        if self._read is None:
            return None
        one, other = self._read
        numbers_a, numbers_b = StepNumbers.of(one), StepNumbers.of(other)
        model_a = Model.of(a, one.pattern.program, numbers_a)
        model_b = Model.of(b, other.pattern.program, numbers_b)
        if model_a is None or model_b is None:
            return None
        pair = RepeatedPair.of(model_a, model_b, alignment)
        self._pairs[one.pattern.program, other.pattern.program] = pair
        return RepeatedStep.of(pair, repeated(model_a, numbers_a), repeated(model_b, numbers_b))


def _summaries_alone(catalog: Catalog, step: int, rank: int) -> BatchColumns | None:
    """A step of which there are summaries and nothing else."""
    columns = catalog.columns(step, rank)
    return None if columns is None or columns.files or columns.statistics else columns


def _outputs(a: Trace, b: Trace, alignment: Alignment) -> Iterator[tuple[int, int, Outputs]]:
    """The outputs that both have, with the nodes in A and in B that give them."""
    for other, one in sorted(alignment.a_of.items()):
        for pair in outputs_of(a.nodes[one], b.nodes[other], alignment.kinds[one]):
            yield one, other, pair


def _same(one: Floats, other: Floats) -> Bools:
    """Whether the numbers of each row are the same, NaN being the same as NaN."""
    found: Bools = np.all((one == other) | (np.isnan(one) & np.isnan(other)), axis=1)
    return found
