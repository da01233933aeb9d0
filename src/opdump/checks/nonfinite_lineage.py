"""Histories of NaN and infinities: where they were born, how far they spread, and what made them finite again, across the steps of
a rank.

born        step 0, mm at t5.py:93: an operator had some in its outputs and none in its inputs
passed on   by 1 operator, in forward
killed      step 0, clamp at t5.py:507: it read some and its outputs are finite, so that later outputs show nothing
kept        in fc.weight since step 0: a parameter passes them to later steps
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opdump.checks.not_finite import PARAMETER, PROGRAMS_OWN, Known
from opdump.checks.operator_classes import takes_out
from opdump.checks.tensor_checks import Finding, TensorStats
from opdump.checks.watchpoints import WatchHit, Watchpoint
from opdump.graph import EARLIER_PREFIX
from opdump.op_types import bare_name
from opdump.records import OpRecord, TensorRecord

_PREFIX: Final = f"{PARAMETER}."
_MOST_OPEN: Final = 10_000
"""Maximum number of histories per rank; later births are counted with the last history."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MADE_WITHOUT: Final = _words(
    """
    zeros_like ones_like full_like empty_like rand_like randn_like randint_like zeros ones full empty new_zeros new_ones new_full
    new_empty new_empty_strided fill zero zeroslike oneslike fillv2 resize set set_data uniform normal random bernoulli exponential
    cauchy geometric log_normal shape size shapeof shapen rank dynamicshape numel expandedshape
    """
)
"""Their outputs do not depend on the values that they read."""
_TAKES_A_PART: Final = _words(
    """
    embedding _embedding_bag embedding_bag index _unsafe_index index_select gather gatherv2 gathernd gatherelements take
    take_along_dim masked_select slice stridedslice select narrow split splitv unstack unbind chunk resourcegather embeddinglookup
    view_copy select_copy slice_copy diagonal_copy
    """
)
"""They may not have read the elements that are not finite."""
_TESTS: Final = _words(
    """
    isnan isinf isfinite isposinf isneginf isreal checknumerics checknumericsv2 debugnumericsummaryv2 debugnumericsummary
    _amp_foreach_non_finite_check_and_unscale allfinite npuallocfloatstatus npugetfloatstatus npuclearfloatstatus _local_scalar_dense
    """
)
"""They test for NaN or infinities."""
_USES_THE_SHAPE_OF_SLOT_1: Final = _words(
    """
    nll_loss_backward nll_loss2d_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
    _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward fractional_max_pool2d_backward fractional_max_pool3d_backward reflection_pad1d_backward
    reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
    replication_pad3d_backward
    """
)
"""Gradients that need only the shape of the forward input."""
_COMPARES: Final = _words("eq ne equal notequal not_equal")
_OVERWRITES_FIRST: Final = _words("copy copyfrom assign assignvariableop assignadd")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenOperator:
    """An operator in a history, and what was found there."""

    op_name: str
    op_type: str
    step: int
    order: int
    phase: str
    source: str
    """The line of the program, `train.py:175`; empty if unknown."""
    text: str
    """For a birth `33 inf of 128 elements`, for a kill `33 inf`."""


@dataclass(slots=True, kw_only=True)
class History:
    """The history of one birth. `born` is None if the NaN or infinities existed before the dump, or if their maker left no data."""

    kind: str
    """`nan`, `inf`."""
    rank: int
    born: SeenOperator | None = None
    given: str = ""
    """The source from which they were first read, if `born` is None: `Parameter.fc.weight`."""
    first_step: int = 0
    last_step: int = 0
    passed_on: int = 0
    """Operators that have some in their inputs and outputs."""
    phases: list[str] = field(default_factory=list)
    """The phases that they reached, in order."""
    killed: list[SeenOperator] = field(default_factory=list)
    parameters: dict[str, int] = field(default_factory=dict)
    """Parameters that contain them, with the first step that left them so."""


Key = tuple[str, tuple[int, ...], int | None, int | None]
"""Element type, shape, number of NaN, number of infinities."""


class Histories:
    """Follows one rank: `observe` each operator in execution order, `end_step` after the last of a step."""

    def __init__(self) -> None:
        self.found: list[History] = []
        self._of_source: dict[str, History] = {}
        """The histories of the NaN and infinities in a tensor of this step, or in a parameter."""
        self._left: dict[int, tuple[Key, History]] = {}
        """By storage: NaN and infinities written into memory that existed before, such as running statistics."""
        self._before: dict[Key, History] = {}
        """The same for the step before, by type, shape and counts of the tensor, because storages differ between steps."""
        self._put_in: History | None = None
        """The histories that an operator of this step last read, if its only output is a container."""
        self._latest: History | None = None
        self._updating: History | None = None
        """The history that last reached the optimizer or a parameter."""

    @property
    def follow_memory(self) -> bool:
        """Whether NaN or infinities were written into memory. From then on the next writer of that memory matters, whatever its
        values.
        """
        return bool(self._left)

    def observe(
        self,
        op: OpRecord,
        inputs: Sequence[Known],
        outputs: Sequence[Known],
        bad_inputs: Sequence[Known],
        bad_outputs: Sequence[Known],
    ) -> str:
        """Process an operator, with those of its tensors that contain NaN, or infinities outside of masks. Returns the text of a
        kill, or an empty text.
        """
        for record, _ in outputs if self._left else ():
            if record.memory is not None:
                self._left.pop(record.memory.storage, None)
        if not bad_inputs and not bad_outputs:
            return ""
        if op.op_type == PARAMETER:
            self._keep(op, bad_outputs)
            return ""
        histories = self._read(op, bad_inputs)
        if not histories and self._latest is not None and op.repeats_operators:
            histories = [self._latest]
        if bad_outputs:
            self._pass_on(op, histories, inputs, bad_outputs)
            return ""
        if not outputs:
            self._put_in = histories[0]
        if not _kills(op, inputs, outputs, bad_inputs):
            return ""
        text = amount_of(bad_inputs[0][1])
        for history in histories:
            history.killed.append(_place(op, text))
        return text

    def _pass_on(
        self, op: OpRecord, histories: Sequence[History], inputs: Sequence[Known], bad_outputs: Sequence[Known]
    ) -> None:
        """Add the outputs to the first history that the inputs belong to. If there is none, begin a new history."""
        if histories:
            history = histories[0]
            history.passed_on += 1
        else:
            history = (self._taken_out if takes_out(op.op_type) else self._born)(op, *bad_outputs[0])
        here = {record.memory.storage for record, _ in inputs if record.memory is not None}
        for record, stats in bad_outputs:
            self._of_source[f"{op.op_name}:{record.slot}"] = history
            if record.memory is not None and record.memory.storage in here:
                self._left[record.memory.storage] = _key(record, stats), history
        self._reach(op, history)

    def end_step(self) -> None:
        """Outputs of operators are new in the next step, which may still read the outputs of this one."""
        self._of_source = {
            name if name.startswith(PROGRAMS_OWN) else EARLIER_PREFIX + name: each
            for name, each in self._of_source.items()
        }
        self._before = dict(self._left.values())
        self._left = {}
        self._latest = self._put_in = None

    def _read(self, op: OpRecord, bad: Sequence[Known]) -> list[History]:
        """The histories of the inputs of an operator."""
        found: dict[int, History] = {}
        for record, stats in bad:
            history = self._of_source.get(record.source) if record.source else self._latest or self._updating
            if history is None and record.source.startswith(_PREFIX):
                history = self._updating  # the dump does not have the parameters at the end of the step
            if history is None and record.source.startswith(PROGRAMS_OWN):
                history = self._before.get(_key(record, stats))  # a buffer, which has no name
            if history is None:
                history = self._begin(
                    History(kind=_kind(stats), rank=op.rank_id, given=record.source, first_step=op.step)
                )
            if record.source:
                self._of_source[record.source] = history
            history.last_step = op.step
            found[id(history)] = history
        return list(found.values())

    def _born(self, op: OpRecord, record: TensorRecord, stats: TensorStats) -> History:
        place = _place(op, f"{amount_of(stats)} of {stats.elements}")
        return self._begin(
            History(kind=_kind(stats), rank=op.rank_id, born=place, first_step=op.step, last_step=op.step)
        )

    def _taken_out(self, op: OpRecord, _: TensorRecord, stats: TensorStats) -> History:
        """The history of an element that an operator takes out of a container."""
        history = self._put_in
        if history is not None:
            history.last_step = op.step
            history.passed_on += 1
            return history
        name = f"an element that {op.op_name} takes out"
        return self._begin(
            History(kind=_kind(stats), rank=op.rank_id, given=name, first_step=op.step, last_step=op.step)
        )

    def _begin(self, history: History) -> History:
        if len(self.found) >= _MOST_OPEN:
            return self.found[-1]
        self.found.append(history)
        return history

    def _reach(self, op: OpRecord, history: History) -> None:
        self._latest = history
        if op.phase not in history.phases:
            history.phases.append(op.phase)
        if op.phase == "optimizer":
            self._updating = history

    def _keep(self, op: OpRecord, bad: Sequence[Known]) -> None:
        for _, stats in bad:
            source = f"{_PREFIX}{op.op_name}"
            history = self._updating or self._of_source.get(source) or self._latest
            if history is None:
                history = self._begin(History(kind=_kind(stats), rank=op.rank_id, given=source, first_step=op.step))
            history.parameters.setdefault(op.op_name, op.step)
            history.last_step = op.step
            self._of_source[source] = history
            self._updating = history


def _key(record: TensorRecord, stats: TensorStats) -> Key:
    return record.dtype, record.shape, stats.nan, stats.inf


def amount_of(stats: TensorStats) -> str:
    """`2 NaN, 1 inf`."""
    parts = [(stats.nan, "NaN"), (stats.inf, "inf")]
    return ", ".join(f"{'some' if number < 0 else f'{number:,}'} {name}" for number, name in parts if number)


def _kind(stats: TensorStats) -> str:
    return "nan" if stats.nan else "inf"


def _kills(op: OpRecord, inputs: Sequence[Known], outputs: Sequence[Known], bad: Sequence[Known]) -> bool:
    """Whether an operator turned NaN or infinities into finite numbers, and did not only drop them or test for them."""
    if not outputs or any(
        stats.nan is None and stats.inf is None and not _is_exact(record) for record, stats in outputs
    ):
        return False
    name = bare_name(op.op_type).lower()
    if name in _MADE_WITHOUT or name in _TAKES_A_PART or name in _TESTS:
        return False
    if name in _COMPARES and _is_test(op.arguments, inputs):
        return False
    unread = 1 if name in _USES_THE_SHAPE_OF_SLOT_1 else 0 if name in _OVERWRITES_FIRST else None
    return any(record.slot != unread for record, _ in bad)


def _is_test(arguments: Mapping[str, Any], inputs: Sequence[Known]) -> bool:
    """Whether a comparison tests for NaN (`x != x`) or for infinities (`abs(x) == inf`)."""
    sources = [record.source for record, _ in inputs]
    if len(sources) == 2 and sources[0] and sources[0] == sources[1]:
        return True
    return any(_is_infinite(value) for value in arguments.values())


def _is_infinite(value: Any) -> bool:
    if isinstance(value, Mapping):  # {"float": "inf"}, because JSON has no infinity
        return any(str(each).lstrip("-") == "inf" for each in value.values())
    return isinstance(value, float) and math.isinf(value)


def _is_exact(record: TensorRecord) -> bool:
    return record.dtype == "bool" or record.dtype.startswith(("int", "uint"))


def _place(op: OpRecord, text: str) -> SeenOperator:
    return SeenOperator(
        op_name=op.op_name,
        op_type=op.op_type,
        step=op.step,
        order=op.order,
        phase=op.phase,
        source=f"{op.stack[0].file}:{op.stack[0].line}" if op.stack else "",
        text=text,
    )


# Everything found in a dump, or in a program that ran.


@dataclass(slots=True)
class Checked:
    """The findings, ordered by rank, step and execution. `unknown` counts the tensors without statistics and elements, `sampled`
    those of which only the first elements are recorded.
    """

    findings: list[Finding] = field(default_factory=list)
    tensors: int = 0
    unknown: int = 0
    sampled: int = 0
    problems: list[str] = field(default_factory=list)
    watchpoints: tuple[Watchpoint, ...] = ()
    hits: list[WatchHit] = field(default_factory=list)
    """The hits of the watchpoints, in the order of time."""
    looked: Counter[str] = field(default_factory=Counter)
    """The number of tensors that each watchpoint, by its text, checked."""
    histories: list[History] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found. A tensor that a watchpoint could not check is not a finding."""
        return not self.findings and all(hit.error_code for hit in self.hits)
