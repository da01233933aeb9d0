"""What a catalog is asked for, and what it returns: executions of operators with their tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from opdump.amounts import html_table, repr_of
from opdump.call_stacks import Frame, Stack
from opdump.plan import KernelPattern
from opdump.records import OpRecord, TensorRecord, format_statistic, shown_shape

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


def grouped(ops: Iterable[OpRecord], tensors: Iterable[TensorRecord]) -> Iterator[Execution]:
    """Yield the operators of a step with their tensors."""
    by_operator: dict[int, list[TensorRecord]] = {}
    for tensor in tensors:
        by_operator.setdefault(id(tensor.op), []).append(tensor)
    for op in ops:
        yield Execution(op, tuple(by_operator.get(id(op), ())))


# Parses the name of operators as a user types it. Every name that `opdump show` prints is accepted.
#
# Default/network-Net/conv1-Conv2d/convolution-op7     its full name, or the end of it after a slash
# Default/network-Net/conv1-Conv2d                     all in this scope
# convolution, Conv2D                                  all of this type, in the spelling of any framework
# aten::convolution                                    all of this kernel
# name-regex(Default/.+)                               all whose full name matches this expression
# Parameter.conv1.weight, conv1.weight                 a parameter
# Default/network-Net/conv1-Conv2d/convolution-op7:0   the producer of a tensor, as in the column "made by"
# data-3, Parameter.exp_avg.fc.weight                  a value that no operator produced: its readers

_TENSOR = re.compile(r"(.+?)(?::(?:input|output))?:[0-9]+")
_PARAMETER = "Parameter"


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """A name as typed, and its possible meanings."""

    text: str
    pattern: KernelPattern

    @classmethod
    def parse(cls, text: str) -> OperatorChoice:
        """Parse a name. Raises ConfigError for a `name-regex(...)` that cannot be used."""
        return cls(text, KernelPattern.parse(text))

    def readings(self) -> Iterable[Callable[[Execution], bool]]:
        """Return the possible meanings of the name, most likely first. The first one that matches an operator counts."""
        yield self._is_named
        yield self._is_in_scope
        yield self._made_a_tensor
        yield self._reads_it

    def _is_named(self, execution: Execution) -> bool:
        op, text = execution.op, self.text
        return (
            op.op_name == text
            or op.op_name.endswith(f"/{text}")
            or (text != "" and text in (op.kernel, op.op_type))
            or (op.op_type == _PARAMETER and f"{_PARAMETER}.{op.op_name}" == text)
            or self.pattern.matches(op.op_name, op.op_type)
        )

    def _is_in_scope(self, execution: Execution) -> bool:
        name, scope = execution.op.op_name, self.text.rstrip("/")
        return bool(scope) and (name.startswith(f"{scope}/") or f"/{scope}/" in f"/{name}")

    def _made_a_tensor(self, execution: Execution) -> bool:
        found = _TENSOR.fullmatch(self.text)
        return found is not None and execution.op.op_name == found[1]

    def _reads_it(self, execution: Execution) -> bool:
        return any(
            self.text in (tensor.source, f"{_PARAMETER}.{tensor.source}")
            for tensor in execution.tensors
            if tensor.source
        )


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
