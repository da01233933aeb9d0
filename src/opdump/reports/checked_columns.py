"""Checks the steps that are stored as columns: numpy selects the operators that the checks must see, and only these become
records.

    chosen = ChosenOperators(thresholds)
    for op, tensors in chosen.of(columns, checks):      # in execution order; none if nothing in the step is unusual
        checks.findings(op, tensors)

An operator is selected if one of its tensors has NaN, infinities, only zeros or a number near the largest of its type, or if its
name and types change what the checks know about other operators. Selecting more operators than necessary changes no finding;
selecting all is the same as checking the records.
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
from opdump.checks.not_finite import written
from opdump.checks.tensor_checks import INTEGERS, LARGEST, stats_of
from opdump.index.columns import BatchColumns, FactsByProgram
from opdump.kernels import SUMMARY_FIELDS
from opdump.records import OpRecord, TensorRecord

_OWN_CHECKS: Final = frozenset({"nan", "inf", "all zero", "extreme"})
_NOT_FINITE: Final = slice(SUMMARY_FIELDS.index("nan"), SUMMARY_FIELDS.index("negative_inf") + 1)
_ZERO, _MAX, _MIN = (SUMMARY_FIELDS.index(name) for name in ("zero", "max", "min"))


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What is known of a program except its numbers. Arrays have one item per tensor or per operator."""

    has_data: NDArray[np.bool_]
    """The tensors that were not left out."""
    known: NDArray[np.bool_]
    """The tensors that the checks can see."""
    owners: NDArray[np.intp]
    """The index of the operator of each tensor."""
    tensors_of: Sequence[Sequence[int]]
    """The tensors of each operator that the checks can see."""
    all_zeros: NDArray[np.float64]
    """The number of zeros at which a tensor counts as all zero; infinite if the check does not apply to its type."""
    bounds: NDArray[np.float64]
    """The magnitude from which a tensor is extreme; infinite if its type has no such limit."""
    kept: NDArray[np.bool_]
    """The tensors of the program with two axes or more: if they are zero, the end of the step decides."""
    changing: NDArray[np.bool_]
    """The operators that change what is known of other operators."""


class ChosenOperators:
    """Selects operators for one rank."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._facts = FactsByProgram(lambda columns: _facts_of(columns, thresholds))

    @staticmethod
    def can_choose() -> bool:
        """Whether all checks are opdump's own. Checks of other packages see every operator."""
        return CHECKS.loaded().keys() == _OWN_CHECKS

    def count(self, columns: BatchColumns) -> tuple[int, int]:
        """The number of tensors in a step, and the number of those with unknown statistics."""
        facts = self._facts.of(columns)
        tensors = int(np.count_nonzero(facts.has_data))
        return tensors, tensors - int(np.count_nonzero(facts.known))

    def of(self, columns: BatchColumns, checks: Checks) -> Iterator[tuple[OpRecord, list[Known]]]:
        """The operators of the step that `checks` must see, with all their tensors, in execution order."""
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
        """The tensors about which a check may report something, and those of them that are all zero."""
        zeros = facts.known & (rows[:, _ZERO] >= facts.all_zeros)
        # NaN is not below the bound either.
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
    """The operators that change what `Consequences` knows without a look at numbers, or that undo a change by an earlier operator
    of the same name.
    """
    names = Counter(op.op_name for op in ops)
    consequences = Consequences(thresholds)
    found = np.zeros(len(ops), np.bool_)
    for place, (op, records) in enumerate(zip(ops, tensors_of, strict=True)):
        known = written(op, records)
        inputs = [each for each in known if each.io == "input"]
        outputs = [each for each in known if each.io == "output"]
        found[place] = consequences.observe_origin(op, inputs, outputs) or names[op.op_name] > 1
    return found
