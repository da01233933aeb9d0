"""Checks steps in columns: numpy says which operators the checks must see, and records are made of these alone.

    chosen = ChosenOperators(thresholds)
    for op, tensors in chosen.of(columns, checks):      # in execution order; none of a step in which nothing is unusual
        checks.findings(op, tensors)

An operator is chosen where a tensor of it has NaN, infinities, zeros alone or a number near the largest of its type, and where it
changes what the checks know of others by its names and types. To choose more than that changes no finding; to choose all is to check the records.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump.checks import CHECKS, Checks, Thresholds
from opdump.checks.consequences import PARAMETER, PROGRAMS_OWN, Consequences, Known
from opdump.checks.inspected_tensor import INTEGERS
from opdump.checks.not_finite import written
from opdump.checks.tensor_checks import LARGEST
from opdump.checks.tensor_stats import stats_of
from opdump.index.columns import BatchColumns, FactsByProgram
from opdump.kernels import SUMMARY_FIELDS
from opdump.records import OpRecord, TensorRecord

_OWN_CHECKS: Final = frozenset({"nan", "inf", "all zero", "extreme"})
_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)
_ZERO, _MAX, _MIN = (SUMMARY_FIELDS.index(name) for name in ("zero", "max", "min"))


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What is known of a program but its numbers. Arrays have one item for each tensor, or for each operator."""

    has_data: NDArray[np.bool_]
    """The tensors that were not left out."""
    known: NDArray[np.bool_]
    """The tensors that the checks can see."""
    owners: NDArray[np.intp]
    """The place of the operator of each tensor."""
    tensors_of: Sequence[Sequence[int]]
    """The tensors of each operator that the checks can see."""
    all_zeros: NDArray[np.float64]
    """How many zeros make a tensor one of zeros alone; infinite where that means nothing."""
    bounds: NDArray[np.float64]
    """From which number on a tensor is extreme; infinite where its type has no such number."""
    kept: NDArray[np.bool_]
    """The tensors of two axes or more that belong to the program: of zeros there, more is asked at the end of the step."""
    changing: NDArray[np.bool_]
    """The operators that change what is known of others."""


class ChosenOperators:
    """Chooses for one rank."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._facts = FactsByProgram(lambda columns: _facts_of(columns, thresholds))

    @staticmethod
    def can_choose() -> bool:
        """Whether all checks are opdump's own: those of packages see every operator."""
        return CHECKS.loaded().keys() == _OWN_CHECKS

    def count(self, columns: BatchColumns) -> tuple[int, int]:
        """How many tensors a step has, and of how many of them nothing is known."""
        facts = self._facts.of(columns)
        tensors = int(np.count_nonzero(facts.has_data))
        return tensors, tensors - int(np.count_nonzero(facts.known))

    def of(self, columns: BatchColumns, checks: Checks) -> Iterator[tuple[OpRecord, list[Known]]]:
        """The operators that `checks`, which are those of the step, must be told of, with all their tensors, in execution order."""
        facts = self._facts.of(columns)
        unusual, zeros = self._unusual(facts, columns.summaries)
        if not unusual.any():
            return
        chosen = facts.changing.copy()
        chosen[facts.owners[unusual]] = True
        if (zeros & facts.kept).any():
            chosen[:] = True
        for place in range(len(chosen)):
            if facts.tensors_of[place] and (chosen[place] or checks.follow_memory):
                yield _execution(columns, place, facts.tensors_of[place])

    def _unusual(self, facts: _Facts, rows: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The tensors that a check may say something of; of these, those of zeros alone."""
        zeros = facts.known & (rows[:, _ZERO] >= facts.all_zeros)
        # A number that is NaN is not below the bound either.
        is_small = (np.abs(rows[:, _MAX]) < facts.bounds) & (np.abs(rows[:, _MIN]) < facts.bounds)
        unusual = zeros | (facts.known & (~is_small | rows[:, _NOT_FINITE].any(axis=1)))
        return unusual, zeros


def _execution(columns: BatchColumns, place: int, tensors: Sequence[int]) -> tuple[OpRecord, list[Known]]:
    op = columns.op(place)
    known: list[Known] = []
    for tensor in tensors:
        record = columns.tensor(op, tensor)
        stats = stats_of(record.statistics, math.prod(record.shape))
        if stats is not None:
            known.append((record, stats))
    return op, known


def _facts_of(columns: BatchColumns, thresholds: Thresholds) -> _Facts:
    ops, tensors = columns.records()
    has_data = np.array([not (each.skip or each.op.skip) for each in tensors], np.bool_)
    known = has_data & columns.with_summary
    owners = np.array([place for place, _ in columns.pattern.tensors], np.intp)
    tensors_of: list[list[int]] = [[] for _ in ops]
    for number in np.flatnonzero(known).tolist():
        tensors_of[owners[number]].append(number)
    return _Facts(
        has_data=has_data,
        known=known,
        owners=owners,
        tensors_of=tensors_of,
        all_zeros=np.array([_all_zeros(each, thresholds) for each in tensors], np.float64),
        bounds=np.array([thresholds.extreme * LARGEST.get(each.dtype, math.inf) for each in tensors], np.float64),
        kept=np.array([len(each.shape) >= 2 and _is_of_program(each) for each in tensors], np.bool_),
        changing=_changing(ops, [[tensors[number] for number in numbers] for numbers in tensors_of], thresholds),
    )


def _all_zeros(record: TensorRecord, thresholds: Thresholds) -> float:
    count = math.prod(record.shape)
    is_asked = record.dtype not in INTEGERS and record.dtype != "bool" and thresholds.zeros <= count < 2**63
    return float(count) if is_asked else math.inf


def _is_of_program(record: TensorRecord) -> bool:
    return record.op.op_type == PARAMETER or record.source.startswith(PROGRAMS_OWN)


def _changing(
    ops: Sequence[OpRecord], tensors_of: Sequence[Sequence[TensorRecord]], thresholds: Thresholds
) -> NDArray[np.bool_]:
    """Which operators change what `Consequences` know without a look at numbers, or take that of an earlier one of the same name back."""
    names = Counter(op.op_name for op in ops)
    consequences = Consequences(thresholds)
    found = np.zeros(len(ops), np.bool_)
    for place, (op, records) in enumerate(zip(ops, tensors_of, strict=True)):
        known = written(op, records)
        inputs = [each for each in known if each.io == "input"]
        outputs = [each for each in known if each.io == "output"]
        found[place] = consequences.observe_origin(op, inputs, outputs) or names[op.op_name] > 1
    return found
