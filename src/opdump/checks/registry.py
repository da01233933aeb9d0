"""Runs the registered checks over the operators of a step.

A check is a function of the statistics of a tensor, its element type and the thresholds. It returns a short text, empty for no
finding. An installed package adds one by an entry point of the group `opdump.checks`. The status words of overflow files
(`overflow`) are findings already and need no function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from opdump.checks.nonfinite_lineage import Histories
from opdump.checks.not_finite import (
    PARAMETER,
    PROGRAMS_OWN,
    Consequences,
    Known,
    Parameters,
    has_only_finite_arguments,
    is_lowest,
    is_root_input,
    written,
)
from opdump.checks.operator_classes import class_of, takes_out
from opdump.checks.tensor_checks import CheckName, Finding, TensorStats, Thresholds
from opdump.extensions import Registry
from opdump.records import OpRecord, TensorRecord

Check = Callable[[TensorStats, str, Thresholds], str]

CHECKS: Final[Registry[Check]] = Registry(
    "opdump.checks",
    {
        "nan": "opdump.checks.tensor_checks:nan",
        "inf": "opdump.checks.tensor_checks:inf",
        "all zero": "opdump.checks.tensor_checks:all_zero",
        "extreme": "opdump.checks.tensor_checks:extreme",
    },
)
_NOT_FINITE: Final = ("nan", "inf")


class Checks:
    """The checks over the operators of one step, in execution order; call `end_step` after the last.

    Every output is checked. An input is checked if no recorded output is its source: a parameter, data of the program or, if the
    dump has no sources, an input with a kind of finding that no output of the step has had yet. Consequences of inputs are not
    findings (`consequences`).
    """

    def __init__(
        self,
        thresholds: Thresholds,
        *,
        is_first_step: bool = True,
        is_poisoned: bool = False,
        histories: Histories | None = None,
    ) -> None:
        """`is_first_step`: parameters may have their initial values; `is_poisoned`: parameters had NaN or infinities before;
        `histories`: those of the earlier steps, which this step continues.
        """
        self._histories = histories or Histories()
        self._thresholds = thresholds
        self._checks = CHECKS.loaded()
        self._was_poisoned = is_poisoned
        self.poisons = False
        """Whether the optimizer, or a parameter at the end of the step, has NaN or infinities in its outputs."""
        self._found: set[CheckName] = set()
        self._reported: set[tuple[str, CheckName]] = set()
        self._has_origin = False
        self._consequences = Consequences(thresholds)
        self._parameters = Parameters()
        self._is_first_step = is_first_step
        self._zero_parameters: dict[str, Finding] = {}
        """Parameters that were zero when first read; the end of the step decides which of them are findings."""

    @property
    def follow_memory(self) -> bool:
        """Whether every later operator must be processed, because it may overwrite NaN or infinities in memory."""
        return self._histories.follow_memory

    def findings(self, op: OpRecord, tensors: Iterable[tuple[TensorRecord, TensorStats]]) -> list[Finding]:
        """The findings about an operator's tensors, inputs first."""
        stats = {id(record): (record, stats) for record, stats in tensors}
        known = [stats[id(record)] for record in written(op, (record for record, _ in stats.values()))]
        inputs = [each for each in known if each[0].io == "input"]
        outputs = [each for each in known if each[0].io == "output"]
        bad = [each for each in _not_finite(inputs) if not self._consequences.is_mask(*each)]
        if op.op_type == PARAMETER or op.phase == "optimizer":
            self.poisons = self.poisons or bool(_not_finite(outputs))
        found = [*self._of_inputs(op, inputs), *self._of_outputs(op, inputs, outputs, bad)]
        found += self._follow(op, inputs, outputs, bad)
        self._consequences.observe(op, inputs, outputs)
        self._parameters.observe(op, inputs, outputs)
        self._has_origin |= any(finding.origin for finding in found)
        self._found.update(finding.check for finding in found)
        return found

    def _of_inputs(self, op: OpRecord, inputs: Sequence[Known]) -> Iterator[Finding]:
        for record, stats in inputs:
            for name, text in self._words(record, stats).items():
                finding = self._of_input(op, record, stats, name, text)
                if finding is not None:
                    yield finding

    def _of_outputs(
        self, op: OpRecord, inputs: Sequence[Known], outputs: Sequence[Known], bad: Sequence[Known]
    ) -> Iterator[Finding]:
        # A Parameter is recorded like an output at the end of a step, but nothing made it there.
        is_older = op.op_type == PARAMETER or (self._was_poisoned and not inputs) or takes_out(op.op_type)
        is_older |= op.repeats_operators and not self._found.isdisjoint(_NOT_FINITE)
        for record, stats in outputs:
            for name, text in self._words(record, stats).items():
                if not self._is_expected(op, record, stats, name, inputs):
                    yield self._of_output(op, record, name, text, has_read=is_older or bool(bad))

    def _follow(
        self, op: OpRecord, inputs: Sequence[Known], outputs: Sequence[Known], bad: Sequence[Known]
    ) -> list[Finding]:
        """Continue the histories; return a finding if the operator turned NaN or infinities into finite numbers."""
        gives = _not_finite(outputs)
        if gives and not bad and self._consequences.infinities_follow(op, inputs, gives[0][1]):
            gives = []  # a mask
        text = self._histories.observe(op, inputs, outputs, bad, gives)
        return [_finding(op, bad[0][0], "killed", f"{text} made finite")] if text else []

    def end_step(self) -> list[Finding]:
        """Findings of the whole step: parameters of zeros that it did not change, although it changed others."""
        found = [
            _finding(record.op, record, "all zero", text)
            for record, stats in self._parameters.that_stay_zero()
            if (text := self._words(record, stats).get("all zero"))
        ]
        self._histories.end_step()
        if not self._is_first_step:
            read = self._zero_parameters.items()
            found += [finding for source, finding in read if not self._parameters.is_trained(source)]
        return found

    def _of_input(
        self, op: OpRecord, record: TensorRecord, stats: TensorStats, name: CheckName, text: str
    ) -> Finding | None:
        source = record.source
        if self._is_expected_input(op, record, stats, name):
            return None
        is_own = source.startswith(PROGRAMS_OWN)
        if name == "all zero" and is_own and not is_root_input(source):
            if len(record.shape) >= 2:  # a bias or a running mean may be zero
                self._zero_parameters.setdefault(source, _finding(op, record, name, text))
            return None
        if source:
            # An output is reported at its maker; a parameter or data at its first reader.
            if not is_own or (source, name) in self._reported:
                return None
            self._reported.add((source, name))
        elif name in self._found:
            return None
        is_old = self._was_poisoned and source.startswith("Parameter.") and not is_root_input(source)
        return replace(_finding(op, record, name, text), inherited=is_old and name in _NOT_FINITE)

    def _is_expected_input(self, op: OpRecord, record: TensorRecord, stats: TensorStats, name: CheckName) -> bool:
        """Whether a kind of finding of an input is ordinary: a mask, or a momentum or a gradient of zeros."""
        if name == "inf":
            return self._consequences.is_mask(record, stats)
        if name == "all zero":
            return op.phase == "optimizer"
        is_parameter = record.source.startswith("Parameter.")
        return name == "extreme" and not is_parameter and is_lowest(record, stats, self._thresholds)

    def _is_expected(
        self,
        op: OpRecord,
        record: TensorRecord,
        stats: TensorStats,
        name: CheckName,
        inputs: Sequence[tuple[TensorRecord, TensorStats]],
    ) -> bool:
        """Whether a kind of finding of an output is intended, because the program requested it or because it follows from the inputs."""
        follows = self._consequences
        if op.op_type == PARAMETER:
            if name == "inf" and stats.only_negative_inf:
                return is_root_input(op.op_name)
            if name == "extreme":
                return is_root_input(op.op_name) and is_lowest(record, stats, self._thresholds)
            return name == "all zero" and not is_root_input(op.op_name)  # `end_step` finds these
        if name == "inf":
            return follows.infinities_follow(op, inputs, stats)
        if name == "nan":
            return False
        # An operator that only creates or moves data is reported neither as zero nor as extreme.
        if class_of(op.op_type) == "moves" or not has_only_finite_arguments(op.arguments):
            return True
        if name == "extreme":
            return follows.extremes_follow(op, record, inputs)
        if not inputs and op.phase == "optimizer":
            return True  # perhaps a momentum that begins with zeros: nothing else is known
        return follows.zeros_follow(op, record, inputs)

    def _of_output(self, op: OpRecord, record: TensorRecord, name: CheckName, text: str, *, has_read: bool) -> Finding:
        finding = _finding(op, record, name, text)
        if name not in _NOT_FINITE:
            return finding
        # An operator that moves data, or has an infinity among its arguments, intends it.
        makes_it_up = class_of(op.op_type) == "moves" or not has_only_finite_arguments(op.arguments)
        return replace(finding, origin=not (has_read or makes_it_up or self._has_origin), inherited=has_read)

    def _words(self, record: TensorRecord, stats: TensorStats) -> dict[CheckName, str]:
        words = {name: check(stats, record.dtype, self._thresholds) for name, check in self._checks.items()}
        return {name: text for name, text in words.items() if text}


def _not_finite(tensors: Sequence[Known]) -> list[Known]:
    return [each for each in tensors if each[1].nan or each[1].inf]


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
