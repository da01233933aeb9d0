"""The checks of a dump, and what they say of an executed operator.

A check is a function of the facts of a tensor, its element type and the thresholds; it gives a few words, or none. The status words
of overflow files (`overflow`) are no such function: they are found already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from opdump.checks.all_zero import all_zero
from opdump.checks.extreme import extreme
from opdump.checks.facts import Facts
from opdump.checks.finding import CheckName, Finding, Thresholds
from opdump.checks.inf import inf
from opdump.checks.nan import nan
from opdump.checks.operator_classes import class_of
from opdump.checks.overflow import has_only_finite_arguments
from opdump.records import OpRecord, TensorRecord

Check = Callable[[Facts, str, Thresholds], str]

CHECKS: Final[Mapping[CheckName, Check]] = MappingProxyType(
    {
        "nan": nan,
        "inf": inf,
        "all zero": all_zero,
        "extreme": extreme,
    }
)
_NOT_FINITE: Final = ("nan", "inf")


class Checks:
    """The checks over the operators of one step, in execution order.

    Every output is judged. An input is where nobody else tells of it: a parameter or data of the program, or, where the dump does not
    say who made it, one whose kind of finding no output of the step has had yet.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._found: set[CheckName] = set()
        self._has_origin = False

    def findings(self, op: OpRecord, tensors: Iterable[tuple[TensorRecord, Facts]]) -> list[Finding]:
        """What is wrong with an operator's tensors, inputs first."""
        checked = [(record, self._words(record, facts)) for record, facts in tensors]
        has_read = any(name in words for record, words in checked if record.io == "input" for name in _NOT_FINITE)
        # What moves numbers, or was given an infinity to write, means it: a mask of -Inf has no origin.
        makes_it_up = class_of(op.op_type) == "moves" or not has_only_finite_arguments(op.arguments)
        found: list[Finding] = []
        for record, words in checked:
            for name, text in words.items():
                if record.io == "input" and not self._is_news(record, name):
                    continue
                if makes_it_up and name not in _NOT_FINITE:
                    continue
                finding = _finding(op, record, name, text)
                if name in _NOT_FINITE and record.io == "output":
                    is_origin = not (has_read or makes_it_up or self._has_origin)
                    finding = replace(finding, origin=is_origin, inherited=has_read)
                found.append(finding)
        self._has_origin = self._has_origin or any(finding.origin for finding in found)
        self._found.update(finding.check for finding in found)
        return found

    def _words(self, record: TensorRecord, facts: Facts) -> dict[CheckName, str]:
        words = {name: check(facts, record.dtype, self._thresholds) for name, check in CHECKS.items()}
        return {name: text for name, text in words.items() if text}

    def _is_news(self, record: TensorRecord, name: CheckName) -> bool:
        if record.source:
            return record.source.startswith(("Parameter.", "data-"))
        return name not in self._found


def _finding(op: OpRecord, record: TensorRecord, name: CheckName, text: str) -> Finding:
    return Finding(
        check=name,
        text=text,
        op_name=op.op_name,
        op_type=op.op_type,
        net_name=op.net_name,
        rank=op.rank_id,
        step=op.step,
        order=op.order,
        occurrence=op.occurrence,
        source=f"{op.stack[0].file}:{op.stack[0].line}" if op.stack else "",
        io=record.io,
        slot=record.slot,
        argument=record.argument,
        dtype=record.dtype,
        shape=record.shape,
    )
