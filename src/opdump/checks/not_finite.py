"""NaN and infinities: how many a tensor has, by its statistics, and which operator made the first of a step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from opdump.checks.operator_classes import class_of, reads_variable, takes_out, words, writes_variable
from opdump.checks.tensor_checks import INTEGERS, LARGEST, TensorStats, Thresholds
from opdump.graph import shown_source
from opdump.op_types import bare_name
from opdump.op_types.unspecified import only_overwrites, unspecified_outputs
from opdump.records import IO, OpRecord, SkipReason, StatisticValue, TensorRecord

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
PARAMETER: Final = "Parameter"
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


def _is_at_handle(op: OpRecord, record: ObservedTensor) -> bool:
    """Whether an input is the value of a variable that the operator reads. It is what the operator returns, and its maker is the update of
    the variable.
    """
    return reads_variable(op.op_type) and record.source.startswith(f"{PARAMETER}.")


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
        self._wrote_nan = ""
        """The first operator with which the program wrote NaN. It is the origin once an operator computes NaN from that."""
        self._updates: list[Update] = []
        self._poisons = False

    def observe(self, op: OpRecord, all_tensors: Iterable[ObservedTensor]) -> None:
        """Process the next operator of the step, in execution order."""
        tensors = self._judged(op, list(all_tensors))
        bad = [record for record in tensors if not_finite(record.statistics)]
        inputs = [record for record in bad if record.io == "input"]
        read = [record for record in inputs if not _is_at_handle(op, record)]
        gives = len(inputs) < len(bad)
        self._note_variables(op, tensors, bad, gives=gives)
        if op.op_type == PARAMETER:
            return
        self._recorded.add(op.op_name)
        if read:
            if self._makes_nan(bad, read):
                self._first["made"] = op.op_name  # of intended infinities: a row that is masked completely
            elif self._computes_nan(op, bad):
                self._first["made"] = self._wrote_nan
            self._note_source(op.op_name, read, writes=writes_variable(op.op_type))
        elif gives:
            self._note_maker(op, bad, has_inputs=any(record.io == "input" for record in tensors))

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

    def _note_maker(self, op: OpRecord, bad: Sequence[ObservedTensor], *, has_inputs: bool) -> None:
        """An operator has bad outputs, and read nothing bad that the dump shows."""
        if reads_variable(op.op_type):
            if not (self._is_settled or "meant" in self._first or self._poisoned):
                self._overflowed = self._update_of(op.op_name, bad[0].shape)
            self._first.setdefault("read", self._overflowed or f"a variable (read by {op.op_name})")
        elif (self._poisoned and not has_inputs) or takes_out(op.op_type):
            # Its inputs are not in the dump, and parameters were bad before; or they are known, or existed before.
            self._first.setdefault("read", op.op_name)
        elif class_of(op.op_type) == "moves" or not has_only_finite_arguments(op.arguments):
            self._first.setdefault("meant", op.op_name)  # a mask of -Inf is intended
            if any(has_nan(record.statistics) for record in bad):
                self._wrote_nan = self._wrote_nan or op.op_name
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

    def _computes_nan(self, op: OpRecord, bad: Sequence[ObservedTensor]) -> bool:
        """Whether an operator computes NaN from NaN that the program wrote in this step."""
        if self._is_settled or not self._wrote_nan or class_of(op.op_type) != "computes":
            return False
        return {"input", "output"} <= {record.io for record in bad if has_nan(record.statistics)}

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


# Decides which properties of a tensor follow from the inputs or arguments of its operator, and so are not findings.
#
#     zeros         0 * x is 0; a momentum begins with zeros; the gradient behind a dead layer is zero
#     infinities    a mask of -Inf is intended, and so is the effect of the mask on scores
#     extremes      the lowest number of the type is a mask, too; a reader of an extreme passes it on
#
# This needs the inputs of operators and their sources. In a dump without them, fewer consequences are recognised.

Known = tuple[TensorRecord, TensorStats]

PROGRAMS_OWN: Final = ("Parameter.", "data-")


_ROOT_INPUT: Final = re.compile(r"(Parameter\.)?inputs\d+")
_ITEM: Final = re.compile(r"\[(\d+)\]$")
_ADDED: Final = frozenset(
    {"bias", "running_mean", "running_var", "input_mean", "input_var", "mean", "beta", "c", "moving_mean"}
)
"""Arguments that are added, by the names of PyTorch and ONNX: zeros in them do not make the result zero."""
_ADDED_FIRST: Final = ("addmm", "addmv", "addbmm", "baddbmm", "addr", "addcmul", "addcdiv")
"""These add their first argument to a product."""
_FILLS: Final = words(
    """
    full full_like new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor fill zero eye arange range linspace
    constant constantofshape eyelike zeroslike oneslike tril_indices triu_indices
    """
)
"""Operators that create values given by the program."""
_FACTORS_NAMED_B: Final = frozenset({"gemm", "matmul", "mul", "add", "sub", "div", "pow"})


def is_root_input(name: str) -> bool:
    """Whether a source is an input that the program passed to its network: `inputs0`, or `Parameter.inputs0` as a source."""
    return _ROOT_INPUT.fullmatch(name) is not None


class Consequences:
    """The consequences within one step: for each operator in execution order, query it, then `observe` it."""

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._meant: set[str] = set()
        """Outputs with intended infinities."""
        self._plain: set[str] = set()
        """Outputs computed only from masks, positions and numbers in the program, without parameters or data."""

    def is_mask(self, record: TensorRecord, stats: TensorStats) -> bool:
        """Whether the infinities of an input belong to a mask."""
        if record.source in self._meant:
            return True
        is_neutral = not stats.nan and stats.max is not None and abs(stats.max) == math.inf and stats.max == stats.min
        if not record.source:  # without sources, all that is known is whether an operator of the step made a mask
            return is_neutral or (stats.only_negative_inf and bool(self._meant))
        is_given = record.source.startswith("data-") or is_root_input(record.source)
        return is_given and (is_neutral or stats.only_negative_inf)

    def infinities_follow(self, op: OpRecord, inputs: Sequence[Known], stats: TensorStats) -> bool:
        """Whether the infinities of an output are a mask, or follow from a mask in the inputs."""
        if not stats.only_negative_inf:
            return False
        bad = [each for each in inputs if each[1].nan or each[1].inf]
        if bad:
            return all(self.is_mask(*each) for each in bad)
        return (
            class_of(op.op_type) == "moves"
            or not has_only_finite_arguments(op.arguments)
            or self._is_plain(op, _records(inputs))
        )

    def zeros_follow(self, op: OpRecord, record: TensorRecord, inputs: Sequence[Known]) -> bool:
        """Whether an output is zero because a factor is zero."""
        if self._is_plain(op, _records(inputs)):
            return True
        read = _that_make(op, record, inputs)
        return any(
            _is_float(each)
            and stats.count >= self._thresholds.zeros
            and stats.zero == stats.count
            and not _is_added(op, each)
            for each, stats in read
        )

    def extremes_follow(self, op: OpRecord, record: TensorRecord, inputs: Sequence[Known]) -> bool:
        """Whether an output is extreme because an input is, or because the program wrote such a number."""
        if self._is_plain(op, _records(inputs)) or _has_extreme_argument(op.arguments, record.dtype, self._thresholds):
            return True
        return any(is_extreme(each, stats, self._thresholds) for each, stats in _that_make(op, record, inputs))

    def observe(self, op: OpRecord, inputs: Sequence[Known], outputs: Sequence[Known]) -> None:
        """Process the next operator of the step, in execution order."""
        for record, stats in outputs:
            name = f"{op.op_name}:{record.slot}"
            (self._meant.add if self.infinities_follow(op, inputs, stats) else self._meant.discard)(name)
        self.observe_origin(op, _records(inputs), _records(outputs))

    def observe_origin(self, op: OpRecord, inputs: Sequence[TensorRecord], outputs: Sequence[TensorRecord]) -> bool:
        """The part of `observe` that does not depend on values. Returns whether it changed what is known."""
        is_plain = self._is_plain(op, inputs)
        names = {f"{op.op_name}:{record.slot}" for record in outputs}
        changed = bool(names - self._plain if is_plain else names & self._plain)
        (self._plain.update if is_plain else self._plain.difference_update)(names)
        return changed

    def _is_plain(self, op: OpRecord, inputs: Sequence[TensorRecord]) -> bool:
        if op.op_type == PARAMETER:
            return False
        if bare_name(op.op_type).lower() in _FILLS:
            return True
        return bool(inputs) and all(not _is_float(record) or record.source in self._plain for record in inputs)


def _records(tensors: Sequence[Known]) -> list[TensorRecord]:
    return [record for record, _ in tensors]


def is_extreme(record: TensorRecord, stats: TensorStats, thresholds: Thresholds) -> bool:
    """Whether a tensor contains a number near the largest of its type, or an infinity instead."""
    largest = LARGEST.get(record.dtype)
    if largest is None:
        return False
    bound = thresholds.extreme * largest
    return any(value is not None and abs(value) >= bound for value in (stats.max, stats.min))


def is_lowest(record: TensorRecord, stats: TensorStats, thresholds: Thresholds) -> bool:
    """Whether the only extreme of a tensor is the lowest number of its type: a mask without infinities."""
    largest = LARGEST.get(record.dtype)
    if largest is None or stats.min is None or stats.max is None:
        return False
    return stats.min <= -largest * (1 - 1e-6) and stats.max < thresholds.extreme * largest


def _is_float(record: TensorRecord) -> bool:
    return record.dtype not in INTEGERS and record.dtype != "bool"


def _that_make(op: OpRecord, output: TensorRecord, inputs: Sequence[Known]) -> Sequence[Known]:
    """The inputs of one output. For an operator over lists these are the items with the same index."""
    if not op.op_type.startswith("_foreach"):
        return inputs
    items = [(_ITEM.search(record.argument), record, stats) for record, stats in inputs]
    return [(record, stats) for item, record, stats in items if item is None or int(item[1]) == output.slot]


def _is_added(op: OpRecord, record: TensorRecord) -> bool:
    argument, name = record.argument.lower(), bare_name(op.op_type).lower()
    if argument in _ADDED or (argument == "b" and name not in _FACTORS_NAMED_B):
        return not (argument == "c" and name != "gemm")
    if name.startswith(_ADDED_FIRST) or "addmm" in name:
        return argument in ("self", "input") or (not argument and record.slot == 0)
    # Without names, as in a dump of a device: the third operand of a product is its bias.
    return not argument and record.slot >= 2 and class_of(op.op_type) == "cube"


def _has_extreme_argument(value: Any, dtype: str, thresholds: Thresholds) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, (int, float)):
        return abs(value) >= thresholds.extreme * LARGEST.get(dtype, float("inf"))
    if isinstance(value, Mapping):
        return any(_has_extreme_argument(item, dtype, thresholds) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_extreme_argument(item, dtype, thresholds) for item in value)
    return False


# Finds parameters of zeros that a step does not change while it changes others. A bias, the scale of a last normalisation and the
# second matrix of an adapter begin with zeros, and the optimizer changes them. A parameter that stays zero while all others change
# has no gradient: its layer is dead, or it is not trained.

PREFIX: Final = f"{PARAMETER}."


class Parameters:
    """The parameters of one step, when they were first read and at its end."""

    def __init__(self) -> None:
        self._before: dict[str, TensorStats] = {}
        self._after: dict[str, Known] = {}

    def observe(self, op: OpRecord, inputs: Sequence[Known], outputs: Sequence[Known]) -> None:
        """Process the next operator of the step, in execution order."""
        for record, stats in inputs:
            if record.source.startswith(PREFIX):
                self._before.setdefault(record.source.removeprefix(PREFIX), stats)
        if op.op_type == PARAMETER:
            for each in outputs:
                self._after[op.op_name] = each

    def is_trained(self, source: str) -> bool:
        """Whether the step changed parameters, and the dump has this one (`Parameter.fc.weight`) at its end."""
        return self._changed() and source.removeprefix(PREFIX) in self._after

    def that_stay_zero(self) -> list[Known]:
        """Parameters with two axes or more that are zero at the end of a step that changed another one."""
        if not self._changed():
            return []
        return [
            (record, stats)
            for name, (record, stats) in self._after.items()
            if len(record.shape) >= 2 and stats.count and stats.zero == stats.count and not is_root_input(name)
        ]

    def _changed(self) -> bool:
        return any(self._before.get(name, stats) != stats for name, (_, stats) in self._after.items())
