"""Decides which properties of a tensor follow from the inputs or arguments of its operator, and so are not findings.

    zeros         0 * x is 0; a momentum begins with zeros; the gradient behind a dead layer is zero
    infinities    a mask of -Inf is intended, and so is the effect of the mask on scores
    extremes      the lowest number of the type is a mask, too; a reader of an extreme passes it on

This needs the inputs of operators and their sources. In a dump without them, fewer consequences are recognised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opdump.checks.not_finite import has_only_finite_arguments
from opdump.checks.operator_classes import class_of, words
from opdump.checks.tensor_checks import INTEGERS, LARGEST, TensorStats, Thresholds
from opdump.op_types import bare_name
from opdump.records import OpRecord, TensorRecord

Known = tuple[TensorRecord, TensorStats]

PARAMETER: Final = "Parameter"
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
