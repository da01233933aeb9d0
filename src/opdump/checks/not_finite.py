"""NaN and infinities: how many a tensor has, by its statistics, and which operator made the first of a step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from opdump.checks.operator_classes import class_of, reads_variable, takes_out, writes_variable
from opdump.graph import shown_source
from opdump.op_types.unspecified import only_overwrites, unspecified_outputs
from opdump.records import IO, OpRecord, SkipReason, StatisticValue

# Counts the NaN and infinite elements of a tensor by its statistics.

MEASURES: Final = ("max", "min", "avg", "l2norm")
_WRITES_ALL: Final = ("aten::", "c10d::")
"""Kernels that write all of the memory that they overwrite."""
_NOT_FINITE: Final = ("nan count", "negative inf count", "positive inf count")


def not_finite(statistics: Mapping[str, StatisticValue]) -> int | None:
    """The number of NaN and infinite elements; None if the statistics cannot answer that.

    Without these counts, a NaN or an infinity in max, min, avg or l2norm means at least one.
    """
    counts = [int(statistics[name]) for name in _NOT_FINITE if name in statistics]
    if len(counts) == len(_NOT_FINITE):
        return sum(counts)
    values = [statistics[name] for name in MEASURES if name in statistics]
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return max(1, sum(counts))
    return sum(counts) or None


class WrittenTensor(Protocol):
    """The fields of an input or output that show whether its memory was written."""

    @property
    def io(self) -> IO: ...
    @property
    def slot(self) -> int: ...
    @property
    def argument(self) -> str: ...
    @property
    def skip(self) -> SkipReason: ...
    @property
    def statistics(self) -> Mapping[str, StatisticValue]: ...


_T = TypeVar("_T", bound=WrittenTensor)


def written(op: OpRecord, tensors: Iterable[_T]) -> list[_T]:
    """The tensors of an operator whose memory has been written. It excludes outputs of uninitialised memory, inputs that the
    operator only overwrites (`out=`, the buffer of a receive), and what the operator left unchanged of those.

    A PyTorch operator writes all of its `out`. An operator of a library may write a part of it: an output that was not written
    before is not checked.
    """
    nothing = unspecified_outputs(op.kernel or op.op_type)
    before: dict[str, int] = {}
    found: list[_T] = []
    for tensor in tensors:
        if tensor.io == "input" and only_overwrites(op.kernel, tensor.argument):
            if not tensor.skip:
                before[tensor.argument] = not_finite(tensor.statistics) or 0
        elif tensor.io == "input" or tensor.slot not in nothing:
            found.append(tensor)
    if op.kernel.startswith(_WRITES_ALL):
        return found
    return [each for each in found if each.io == "input" or not _was_left(op, each, before)]


def _was_left(op: OpRecord, output: WrittenTensor, before: Mapping[str, int]) -> bool:
    """Whether an output has as many NaN and infinities as its memory had before; True for any of them if that is unknown."""
    count = not_finite(output.statistics) or 0
    return count > 0 and only_overwrites(op.kernel, output.argument) and before.get(output.argument, count) == count


def has_nan(statistics: Mapping[str, StatisticValue]) -> bool:
    """Whether an element is NaN; without a count, whether max, min, avg or l2norm is."""
    if "nan count" in statistics:
        return bool(statistics["nan count"])
    return any(isinstance(value := statistics.get(name), float) and math.isnan(value) for name in ("max", "min"))


def is_neutral(statistics: Mapping[str, StatisticValue], elements: int) -> bool:
    """Whether all elements are the same infinity: the initial value of a maximum or a minimum, or the fill value of a mask."""
    counts = [statistics.get(name) for name in _NOT_FINITE]
    if None not in counts:
        return bool(elements) and elements in counts[1:]
    most, least = statistics.get("max"), statistics.get("min")
    return isinstance(most, float) and math.isinf(most) and most == least


def has_only_negative_infinities(statistics: Mapping[str, StatisticValue]) -> bool:
    """Whether there are infinities, all of them negative, and no NaN."""
    if has_nan(statistics):
        return False
    positive, negative = statistics.get("positive inf count"), statistics.get("negative inf count")
    most, least = statistics.get("max"), statistics.get("min")
    if positive is None and most is None:
        return False
    return (bool(negative) or least == -math.inf) and not positive and most != math.inf


def has_only_finite_arguments(arguments: Mapping[str, Any]) -> bool:
    """Whether no argument is or contains NaN or an infinity."""
    return all(_is_finite_argument(value) for value in arguments.values())


def _is_finite_argument(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, complex):
        return math.isfinite(value.real) and math.isfinite(value.imag)
    if isinstance(value, Mapping):  # {"float": "-inf"}, {"complex": [1.0, {"float": "nan"}]}
        return "float" not in value and all(_is_finite_argument(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_finite_argument(item) for item in value)
    return True


# Finds the operator that made the first NaN or infinity of a step, rather than one that read them later. Steps are processed in
# order: a parameter that one step corrupted is read by the next, and its first reader there is not the origin.

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
        self._first: dict[Literal["made", "other", "meant", "given", "read"], str] = {}
        """The first operator of each kind of origin. `other` made bad values and left no data that shows it; `given` assigned a
        value of the program to a variable; the others are as in `OriginKind`.
        """
        self._overflowed = ""
        """The update of a variable that overflowed: its inputs were finite."""
        self.unexplained: tuple[str, str] = ("", "")
        """The first operator that read NaN or infinities from an operator that is not known to have made them, and the source
        that it read.
        """
        self._updates: list[Update] = []
        self._poisons = False

    def observe(self, op: OpRecord, all_tensors: Iterable[ObservedTensor]) -> None:
        """Process the next operator of the step, in execution order."""
        tensors = self._judged(op, list(all_tensors))
        bad = [record for record in tensors if not_finite(record.statistics)]
        read = [record for record in bad if record.io == "input"]
        gives = len(read) < len(bad)
        self._note_variables(op, tensors, bad, gives=gives)
        if op.op_type == PARAMETER:
            return
        self._recorded.add(op.op_name)
        if read:
            if self._makes_nan(bad, read):
                self._first["made"] = op.op_name  # of intended infinities: a row that is masked completely
            self._note_source(op.op_name, read, writes=writes_variable(op.op_type))
        elif gives:
            self._note_maker(op, bad[0].shape, has_inputs=any(record.io == "input" for record in tensors))

    def _judged(self, op: OpRecord, everything: Sequence[ObservedTensor]) -> list[ObservedTensor]:
        """The tensors with data whose memory has been written; the other outputs are noted as unjudged."""
        judged = written(op, everything)
        if len(judged) < len(everything):
            known = {id(record) for record in judged}
            left = (record for record in everything if record.io == "output" and id(record) not in known)
            self._unjudged.update(f"{op.op_name}:{record.slot}" for record in left)
        return [record for record in judged if not record.skip]

    def _note_variables(
        self, op: OpRecord, tensors: Sequence[ObservedTensor], bad: Sequence[ObservedTensor], *, gives: bool
    ) -> None:
        """Note whether the next step can read what is not finite, and the updates of variables."""
        # The value assigned to a variable, and the value it still returns, is also there in the next step.
        keeps = op.op_type == PARAMETER or op.phase == "optimizer" or reads_variable(op.op_type)
        self._poisons |= bool(bad) if writes_variable(op.op_type) else gives and keeps
        if not bad and is_update(op.op_type):
            self._updates.append((op.op_name, frozenset(record.shape for record in tensors)))

    def _note_maker(self, op: OpRecord, shape: tuple[int, ...], *, has_inputs: bool) -> None:
        """An operator has bad outputs, and read nothing bad that the dump shows. `shape` is that of the first bad output."""
        if reads_variable(op.op_type):
            if not (self._is_settled or "meant" in self._first or self._poisoned):
                self._overflowed = self._update_of(op.op_name, shape)
            self._first.setdefault("read", self._overflowed or f"a variable (read by {op.op_name})")
        elif (self._poisoned and not has_inputs) or takes_out(op.op_type):
            # Its inputs are not in the dump, and parameters were bad before; or they are known, or existed before.
            self._first.setdefault("read", op.op_name)
        elif class_of(op.op_type) == "moves" or not has_only_finite_arguments(op.arguments):
            self._first.setdefault("meant", op.op_name)  # a mask of -Inf is intended
        elif "other" not in self._first:
            self._first.setdefault("made", op.op_name)

    def ran(self, op_names: Iterable[str]) -> None:
        """Process the next operators of the step, as `observe` does, if none is a `Parameter` and all their tensors are finite."""
        self._recorded.update(op_names)

    def observe_updates(self, updates: Iterable[Update]) -> None:
        """Process the next operators of the step if all their values are finite: those for which `is_update` is true."""
        self._updates += updates

    @property
    def _is_settled(self) -> bool:
        """Whether the origin of the step is known, unless it only had intended infinities so far."""
        return not self._first.keys().isdisjoint(("made", "other", "read"))

    def _makes_nan(self, bad: Sequence[ObservedTensor], read: Sequence[ObservedTensor]) -> bool:
        if self._is_settled or "meant" not in self._first:
            return False
        gives_nan = any(record.io == "output" and has_nan(record.statistics) for record in bad)
        return gives_nan and not any(has_nan(record.statistics) for record in read)

    def origin(self) -> tuple[OriginKind, str]:
        """The operator that made the first NaN or infinity of the step, and how; its name is empty if there is none."""
        first = self._first
        made = self._overflowed or first.get("made") or first.get("other")
        if made:
            return "made", made
        is_older = self._poisoned and bool(self._earlier)
        if "given" in first and not ("read" in first and is_older):
            return "meant", first["given"]  # the value of a variable that the program wrote is no origin
        if "read" in first:
            return "read", self._earlier if is_older else first["read"]
        return ("meant", first["meant"]) if "meant" in first else ("", "")

    def end_step(self, step: int) -> None:
        """End the step: later operators belong to the next one."""
        maker = self._first.get("made") or self._first.get("other") or self._first.get("meant")
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
                return f"one of {len(fitting)} updates{when} of the variable that {reader} reads"
        return ""

    def _follows_mask(self, record: ObservedTensor) -> bool:
        """Whether the infinities of an input are a mask of the step, or its effect on scores."""
        is_parameter = record.source.startswith("Parameter.")
        return "meant" in self._first and not is_parameter and not has_nan(record.statistics)

    def _note_source(self, op_name: str, read: Sequence[ObservedTensor], *, writes: bool) -> None:
        """An operator read bad values: their maker left no data, or they are older than the step."""
        if self._is_settled:
            return
        if writes and not any(record.source for record in read):
            self._first.setdefault("given", op_name)
            self._first.setdefault("meant", op_name)
            return
        for record in read:
            if is_given_mask(record):
                self._first.setdefault("meant", f"the program (read by {op_name})")
                continue
            if self._follows_mask(record):
                continue
            maker = record.source.rpartition(":")[0]
            if record.source.startswith(("Parameter.", "data-")) or not maker:
                origin = f"{shown_source(record.source)} (read by {op_name})" if record.source else op_name
                self._first.setdefault("read", origin)
                self._poisoned |= record.source.startswith("Parameter.")
            elif maker not in self._recorded or record.source in self._unjudged:
                self._first["other"] = maker
                return
            elif not self.unexplained[0]:
                self.unexplained = op_name, record.source
