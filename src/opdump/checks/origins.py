"""Finds the operator that made the first NaN or infinity of a step, rather than one that read them later.

Steps are processed in order: a parameter that one step corrupted is read by the next, and its first reader there is not the
origin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from opdump.checks.not_finite import (
    WrittenTensor,
    has_nan,
    has_only_finite_arguments,
    has_only_negative_infinities,
    is_neutral,
    not_finite,
    written,
)
from opdump.checks.operator_classes import class_of, reads_variable, takes_out, writes_variable
from opdump.graph import shown_source
from opdump.records import OpRecord

Update = tuple[str, frozenset[tuple[int, ...]]]
"""An operator that computed the current value of a variable, with the shapes of its inputs."""
PARAMETER = "Parameter"
"""op_type of the value of a parameter at the end of a step: recorded like an operator's output, but not an operator."""


OriginKind = Literal["", "made", "meant", "read"]
"""`made`: an operator produced it without having read any; `meant`: the program wrote it, as into a mask; `read`: it existed
before the step.
"""


class ObservedTensor(WrittenTensor, Protocol):
    """An input or output, as a record or as a live tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def source(self) -> str: ...


def is_update(op_type: str) -> bool:
    """Whether operators of this type compute the value of a variable and write it."""
    return writes_variable(op_type) and class_of(op_type) == "computes"


def is_given_mask(record: ObservedTensor) -> bool:
    """Whether an input is a mask that the program passed, or the neutral element of a maximum or minimum: both are intended."""
    statistics = record.statistics
    is_data = record.source.startswith("data-")
    if not is_data and record.source:
        return False
    return is_neutral(statistics, math.prod(record.shape)) or (is_data and has_only_negative_infinities(statistics))


class Origins:
    """Finds the origin of each step of one rank: `observe` its operators in order, read `origin`, call `end_step`."""

    def __init__(self) -> None:
        self._earlier = ""
        """The operator that made the NaN or infinities in a parameter in an earlier step, with that step."""
        self._poisoned = False
        self._updated: list[Update] = []
        """The operators that changed variables in the latest step that did so with finite inputs."""
        self._updated_in = 0
        self._begin()

    def _begin(self) -> None:
        self._recorded: set[str] = set()
        self._unjudged: set[str] = set()
        """Outputs that may not have been written: an operator that reads one settles it."""
        self._made = ""
        self._meant = ""
        self._given = ""
        self._other = ""
        self._read = ""
        self._overflowed = ""
        self.unexplained: tuple[str, str] = ("", "")
        """The first operator that read NaN or infinities from an operator that is not known to have made them, and the source
        that it read.
        """
        self._updates: list[Update] = []
        self._poisons = False

    def observe(self, op: OpRecord, all_tensors: Iterable[ObservedTensor]) -> None:
        """Process the next operator of the step, in execution order."""
        everything = list(all_tensors)
        judged = written(op, everything)
        tensors = [record for record in judged if not record.skip]
        if len(judged) < len(everything):
            left = (
                record for record in everything if record.io == "output" and not any(record is one for one in judged)
            )
            self._unjudged.update(f"{op.op_name}:{record.slot}" for record in left)
        bad = [record for record in tensors if not_finite(record.statistics)]
        gives = any(record.io == "output" for record in bad)
        if op.op_type == PARAMETER:
            self._poisons |= gives
            return
        # The value assigned to a variable, and the value it still returns, is also there in the next step.
        self._poisons |= gives and (op.phase == "optimizer" or reads_variable(op.op_type))
        if writes_variable(op.op_type):
            self._poisons |= bool(bad)
            if not bad and is_update(op.op_type):
                self._updates.append((op.op_name, frozenset(record.shape for record in tensors)))
        read = [record for record in bad if record.io == "input"]
        self._recorded.add(op.op_name)
        if read:
            if self._makes_nan(bad, read):
                self._made = op.op_name  # of intended infinities: a row that is masked completely
            self._note_source(op.op_name, read, writes=writes_variable(op.op_type))
        elif gives and reads_variable(op.op_type):
            if not (self._made or self._other or self._meant or self._read or self._poisoned):
                self._overflowed = self._update_of(op.op_name, bad[0].shape)
            self._read = self._read or self._overflowed or f"a variable (read by {op.op_name})"
        elif gives and self._poisoned and not any(record.io == "input" for record in tensors):
            self._read = self._read or op.op_name  # its input is not in the dump, and parameters were bad before
        elif gives and takes_out(op.op_type):
            self._read = self._read or op.op_name  # the inputs are known, or existed before
        elif gives and (class_of(op.op_type) == "moves" or not has_only_finite_arguments(op.arguments)):
            self._meant = self._meant or op.op_name  # a mask of -Inf is intended
        elif gives and not self._other:
            self._made = self._made or op.op_name

    def ran(self, op_names: Iterable[str]) -> None:
        """Process the next operators of the step, as `observe` does, if none is a `Parameter` and all their tensors are finite."""
        self._recorded.update(op_names)

    def observe_updates(self, updates: Iterable[Update]) -> None:
        """Process the next operators of the step if all their values are finite: those for which `is_update` is true."""
        self._updates += updates

    def _makes_nan(self, bad: Sequence[ObservedTensor], read: Sequence[ObservedTensor]) -> bool:
        if not self._meant or self._made or self._other or self._read:
            return False
        gives_nan = any(record.io == "output" and has_nan(record.statistics) for record in bad)
        return gives_nan and not any(has_nan(record.statistics) for record in read)

    def origin(self) -> tuple[OriginKind, str]:
        """The operator that made the first NaN or infinity of the step, and how; its name is empty if there is none."""
        made = self._overflowed or self._made or self._other
        if made:
            return "made", made
        if self._given and not (self._read and self._poisoned and self._earlier):
            return "meant", self._given  # the value of a variable that the program wrote is no origin
        if self._read:
            return "read", self._earlier if self._poisoned and self._earlier else self._read
        return ("meant", self._meant) if self._meant else ("", "")

    def end_step(self, step: int) -> None:
        """End the step: later operators belong to the next one."""
        maker = self._made or self._other or self._meant
        if self._poisons and not self._poisoned and (maker or self._overflowed):
            has_step = bool(self._overflowed) and "(in step" in self._overflowed
            self._earlier = self._overflowed if has_step else f"{self._overflowed or maker} (in step {step})"
        self._poisoned = self._poisons
        if not self._poisoned:
            self._earlier = ""
        if self._updates:
            self._updated, self._updated_in = self._updates, step
        self._begin()

    def _update_of(self, reader: str, shape: tuple[int, ...]) -> str:
        """The update that made a variable bad although its inputs were finite; empty if there was none."""
        for updates, when in ((self._updates, ""), (self._updated, f" (in step {self._updated_in})")):
            fitting = [name for name, shapes in updates if shape in shapes or not shapes]
            if len(fitting) == 1:
                return f"{fitting[0]}{when}"
            if fitting:
                return f"one of {len(fitting)} updates{when}, of what {reader} reads"
        return ""

    def _note_source(self, op_name: str, read: Sequence[ObservedTensor], *, writes: bool) -> None:
        """An operator read bad values: their maker left no data, or they are older than the step."""
        if self._made or self._other or self._read:
            return
        if writes and not any(record.source for record in read):
            self._given = self._given or op_name
            self._meant = self._meant or op_name
            return
        for record in read:
            if is_given_mask(record):
                self._meant = self._meant or f"the program (read by {op_name})"
                continue
            if self._meant and not has_nan(record.statistics) and not record.source.startswith("Parameter."):
                continue  # a mask, or its effect on scores
            maker = record.source.rpartition(":")[0]
            if record.source.startswith(("Parameter.", "data-")) or not maker:
                origin = f"{shown_source(record.source)} (read by {op_name})" if record.source else op_name
                self._read = self._read or origin
                self._poisoned |= record.source.startswith("Parameter.")
            elif maker not in self._recorded or record.source in self._unjudged:
                self._other = maker
                return
            elif not self.unexplained[0]:
                self.unexplained = op_name, record.source
