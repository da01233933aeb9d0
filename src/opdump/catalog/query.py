"""The queries of a catalog and their results: executions of operators with their tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from opdump.amounts import html_table, repr_of
from opdump.call_stacks import Frame, Stack
from opdump.checks.not_finite import has_only_negative_infinities, not_finite, written
from opdump.op_types import is_called
from opdump.plan import KernelPattern
from opdump.records import OpRecord, TensorRecord, format_statistic, shown_shape
from opdump.step_table import StepTable

_SHOWN: Final = ("max", "min", "avg", "l2norm", "nan count", "negative inf count", "positive inf count")


Value = TypeVar("Value")


def _of_op(read: Callable[[OpRecord], Value]) -> Value:
    """Return a property of an execution that reads a field of its operator."""
    return cast(Value, property(lambda execution: read(execution.op)))


@dataclass(frozen=True, slots=True, repr=False)
class Execution:
    """One execution of an operator with its tensors, ordered by slot. It also has the fields of its `OpRecord`."""

    op: OpRecord
    tensors: tuple[TensorRecord, ...] = ()

    @property
    def inputs(self) -> dict[int, TensorRecord]:
        """Inputs by slot. Slots without a tensor (None, a number) are missing."""
        return {record.slot: record for record in self.tensors if record.io == "input"}

    @property
    def outputs(self) -> dict[int, TensorRecord]:
        """Outputs by slot."""
        return {record.slot: record for record in self.tensors if record.io == "output"}

    def by_slot(self) -> tuple[dict[int, TensorRecord], dict[int, TensorRecord]]:
        """Return inputs and outputs, each by slot."""
        inputs: dict[int, TensorRecord] = {}
        outputs: dict[int, TensorRecord] = {}
        for record in self.tensors:
            (inputs if record.io == "input" else outputs)[record.slot] = record
        return inputs, outputs

    op_type = _of_op(lambda op: op.op_type)
    op_name = _of_op(lambda op: op.op_name)
    timestamp = _of_op(lambda op: op.timestamp)
    step = _of_op(lambda op: op.step)
    net_name = _of_op(lambda op: op.net_name)
    graph_id = _of_op(lambda op: op.graph_id)
    rank_id = _of_op(lambda op: op.rank_id)
    device_id = _of_op(lambda op: op.device_id)
    task_id = _of_op(lambda op: op.task_id)
    stream_id = _of_op(lambda op: op.stream_id)
    order = _of_op(lambda op: op.order)
    occurrence = _of_op(lambda op: op.occurrence)
    phase = _of_op(lambda op: op.phase)
    kernel = _of_op(lambda op: op.kernel)
    forward_op = _of_op(lambda op: op.forward_op)
    stack = _of_op(lambda op: op.stack)
    arguments = _of_op(lambda op: op.arguments)
    skip = _of_op(lambda op: op.skip)
    line = _of_op(lambda op: op.line)

    def __repr__(self) -> str:
        tensors = f"{len(self.inputs)} in, {len(self.outputs)} out"
        return repr_of("Execution", self.op_name, self.op.place, tensors, self.line)

    def _repr_html_(self) -> str:
        rows = [
            [
                f"{record.io}.{record.slot}",
                record.argument,
                record.dtype,
                shown_shape(record.shape),
                *(format_statistic(record.statistics[name]) if name in record.statistics else "" for name in _SHOWN),
                record.source,
                record.skip,
            ]
            for record in self.tensors
        ]
        headings = ("tensor", "argument", "dtype", "shape", *_SHOWN, "made by", "left out")
        return self.op._repr_html_() + (html_table(headings, rows) if rows else "")


# A query for operators.


@dataclass(frozen=True, slots=True)
class Asked:
    """A query for executions. `is_meant` may use everything that is the same in each step that runs the same, so neither arguments nor numbers;
    None selects all.
    """

    include_skipped: bool
    is_meant: Callable[[Execution], bool] | None = None
    suffices: bool = False
    """Whether this meaning holds as soon as a step has such an execution. A path may be a full name in a later step."""

    def of(self, execution: Execution) -> Execution | None:
        """Return the part of an execution that the query selects, or None if it does not select the execution."""
        if not self.include_skipped:
            if execution.op.skip:
                return None
            if any(tensor.skip for tensor in execution.tensors):
                execution = Execution(execution.op, tuple(tensor for tensor in execution.tensors if not tensor.skip))
        return execution if self.is_meant is None or self.is_meant(execution) else None

    def places(self, executions: Iterable[Execution]) -> list[int]:
        """Return the indices of the selected executions."""
        return [place for place, execution in enumerate(executions) if self.of(execution) is not None]


def first_of(choices: Sequence[Asked], executions: Iterable[Execution]) -> int:
    """Return the index of the first choice that selects any of these executions, or the number of choices if none does."""
    best = len(choices)
    for execution in executions:
        for number, choice in enumerate(choices[:best]):
            if choice.of(execution) is not None:
                best = number
                break
        if best == 0:
            break
    return best


def executions_of(table: StepTable[TensorRecord]) -> Iterator[Execution]:
    """Yield the operators of a step with their tensors."""
    by_operator: dict[int, list[TensorRecord]] = {}
    for tensor in table.tensors:
        by_operator.setdefault(id(tensor.op), []).append(tensor)
    for op in table.ops:
        yield Execution(op, tuple(by_operator.get(id(op), ())))


# Parses the name of operators as a user types it: to any command, or to a catalog. Every name that `opdump show` prints is accepted, and each text
# has the first of these meanings that any operator has:
#
# 1. Default/network-Net/conv1-Conv2d/convolution-op7   the operator with this full name; if there is none, those whose name ends so after a slash,
#                                                       and a parameter
# 2. conv1, blocks.0.attn, 0-Block/attn                 all operators in this module, its path as PyTorch or the dump writes it
#    mul, MatMul, aten::mul, aten::mul.Tensor           all of this type, in any case, or of this kernel, with or without its overload
#    train.py:175, net/model.py                         all with this line, or a line of this file, on their stack
#    name-regex(Default/.+)                             all whose full name matches this expression
# 3. Attention, Conv2D, softmax                         all in modules of this class, all that another framework calls so, and all whose type
#                                                       differs only by underscores at its ends
# 4. foreach, layer_norm                                all with this part of their type, between underscores
# 5. fc.weight, bias                                    parameters with these components
# 6. Default/network-Net/conv1-Conv2d/convolution-op7:0 the producer of a tensor, as in the column "made by"
# 7. data-3, Parameter.exp_avg.fc.weight                a value that no operator produced: its readers
#
# So a text never means a part of a word: `mul` finds neither `matmul` nor, where `mul` ran, its form in place, `mul_`.

_TENSOR = re.compile(r"(.+?)(?::(?:input|output))?:[0-9]+")
_PLACE = re.compile(r".*[^/.]\.[A-Za-z]\w*(?::[0-9]+)?")
_LEVELS = re.compile(r"[/.]")
_NUMBERS = re.compile(r"[0-9]+")
_LISTED = 8
_PARAMETER = "Parameter"


class OperatorQuery:
    """A name of operators as typed, and its possible meanings. Raises ConfigError for a `name-regex(...)` that cannot be used."""

    def __init__(self, text: str) -> None:
        self.text = text
        pattern = KernelPattern.parse(text)
        self._expression = pattern if pattern.kind == "regex" else None
        self._type = text.lower()
        self._levels = tuple(_LEVELS.split(text.strip("/")))
        self._place = SourcePlace(text) if _PLACE.fullmatch(text) else None

    def readings(self) -> Iterator[Callable[[Execution], bool]]:
        """Yield the possible meanings of the name, most likely first. The first one that matches an operator counts."""
        yield lambda execution: execution.op.op_name == self.text
        yield self._is_named
        yield self._is_meant
        yield self._is_called
        yield self._has_in_type
        yield lambda execution: execution.op.op_type == _PARAMETER and self._is_within(execution.op)
        yield self._made_a_tensor
        yield self._reads_it

    def _is_named(self, execution: Execution) -> bool:
        name = execution.op.op_name
        is_parameter = execution.op.op_type == _PARAMETER and f"{_PARAMETER}.{name}" == self.text
        return name.endswith(f"/{self.text}") or is_parameter

    def _is_meant(self, execution: Execution) -> bool:
        op, text = execution.op, self.text
        if self._expression is not None:
            return self._expression.matches(op.op_name, op.op_type)
        return (
            (text != "" and text in (op.kernel, op.kernel.partition(".")[0]))
            or op.op_type.lower() == self._type
            or (op.op_type != _PARAMETER and self._is_within(op))
            or (self._place is not None and self._place.is_on(op.stack))
        )

    def _is_called(self, execution: Execution) -> bool:
        op = execution.op
        if op.op_type == _PARAMETER:
            return False
        bare = op.op_type.lower().strip("_")
        return (bare != "" and bare == self._type.strip("_")) or (
            is_called(op.op_type, self._type, whole=True) or self._is_within(op, classes=True)
        )

    def _has_in_type(self, execution: Execution) -> bool:
        wanted = self._type.strip("_")
        return wanted != "" and f"_{wanted}_" in f"_{execution.op.op_type.lower()}_"

    def _is_within(self, op: OpRecord, *, classes: bool = False) -> bool:
        """Whether successive components of the name are those of the text. One as `attn-Attention` may be given by the name of the module, `attn`."""
        levels = self._levels
        if not all(level in op.op_name for level in levels):
            return False
        parts = _LEVELS.split(op.op_name)
        return any(
            all(_is_spelled(level, part, classes) for level, part in zip(levels, parts[start:], strict=False))
            for start in range(len(parts) - len(levels) + 1)
        )

    def _made_a_tensor(self, execution: Execution) -> bool:
        found = _TENSOR.fullmatch(self.text)
        return found is not None and execution.op.op_name == found[1]

    def _reads_it(self, execution: Execution) -> bool:
        return any(
            self.text in (tensor.source, f"{_PARAMETER}.{tensor.source}")
            for tensor in execution.tensors
            if tensor.source
        )


def _is_spelled(level: str, part: str, classes: bool) -> bool:
    name, dash, kind = part.rpartition("-")
    return level in (part, name) or (classes and dash != "" and level in (kind, name.strip("_")))


def choices_of(text: str, include_skipped: bool) -> list[Asked]:
    """Return the possible meanings of a name, most likely first. Operators without data count only if the same meaning has no others."""
    return [
        Asked(skipped, meant, suffices=skipped == include_skipped and number < (2 if "/" in text else 3))
        for number, meant in enumerate(OperatorQuery(text).readings())
        for skipped in ((True,) if include_skipped else (False, True))
    ]


def selected_among(text: str, executions: Sequence[Execution]) -> list[int]:
    """Return the indices of the executions that a name means; empty if it means none."""
    choices = choices_of(text, include_skipped=True)
    first = first_of(choices, executions)
    return choices[first].places(executions) if first < len(choices) else []


def nearest_to(text: str, names: Sequence[str]) -> str:
    """Return the end of a sentence that says that no operator has this name: the nearest ones in the form of `text`, or how many there are.

    `names` are full names. A text without a number such as `-op7` is compared with as many levels of modules and types as it has.
    """
    if not names:
        return "; no operator was recorded there"
    from opdump.plan.unmatched_names import nearest  # imports difflib

    known: Iterable[str] = names
    if "-" not in text:
        length = len(_LEVELS.split(text))
        paths = ([part.rpartition("-")[0] or part for part in _LEVELS.split(name)] for name in names)
        known = (".".join(path[start : start + length]) for path in paths for start in range(len(path) - length + 1))
    near = nearest(text, known)
    return "; the nearest are " + ", ".join(near) if near else f"; it holds {len(names):,} others"


def several(text: str, executions: Iterable[Execution]) -> str:
    """Say that a name matches several operators, and name one of each kind: one with NaN or infinities if there is one."""
    kinds: dict[str, list[Execution]] = {}
    for execution in executions:
        kinds.setdefault(kind_of(execution.op), []).append(execution)
    listed = []
    for alike in kinds.values():
        chosen = next(filter(has_finding, alike), alike[0]).op.op_name
        listed.append(chosen if len(alike) == 1 else f"{chosen} ({len(alike) - 1} more alike)")
    shown = ", ".join([*listed[:_LISTED], *(["..."] if len(listed) > _LISTED else [])])
    return f"{text} matches {sum(map(len, kinds.values()))} operators; name one of them: {shown}"


def kind_of(op: OpRecord) -> str:
    """Return the name without numbers, which blocks of a network have in common."""
    return _NUMBERS.sub("#", op.op_name)


def has_finding(execution: Execution) -> bool:
    """Return whether what the operator read or wrote has a NaN, or an infinity other than those of a mask."""
    tensors = [tensor.statistics for tensor in written(execution.op, execution.tensors) if not tensor.skip]
    return any(not_finite(each) and not has_only_negative_infinities(each) for each in tensors)


# Parses a file or a line of the program as a user types it: `train.py:175`, `net/model.py`.


class SourcePlace:
    """`FILE:LINE` or `FILE`. The file may be given by its last components."""

    def __init__(self, text: str) -> None:
        file, colon, line = text.rpartition(":")
        has_line = bool(colon) and line.isascii() and line.isdigit()
        self._file = Path(file if has_line else text).parts
        self._line = int(line) if has_line else None
        # Very many operators share few stacks, and these share their callers. The stacks are referenced, so that their identities stay unique.
        self._known: dict[int, tuple[Stack, bool]] = {}

    def is_on(self, stack: Sequence[Frame]) -> bool:
        """Return whether any line of the stack matches."""
        if not isinstance(stack, Stack):
            return any(map(self._is_meant, stack))
        passed: list[Stack] = []
        here: Stack | None = stack
        is_on = False
        while here is not None and not is_on:
            known = self._known.get(id(here))
            if known is not None:
                is_on = known[1]
                break
            passed.append(here)
            is_on = self._is_meant(here.frame)
            here = here.callers
        for each in passed:
            self._known[id(each)] = each, is_on
        return is_on

    def _is_meant(self, frame: Frame) -> bool:
        file = self._file
        return bool(file) and Path(frame.file).parts[-len(file) :] == file and self._line in (None, frame.line)
