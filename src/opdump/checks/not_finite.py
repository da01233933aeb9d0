"""Counts the NaN and infinite elements of a tensor by its statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from opdump.op_types.unspecified import only_overwrites, unspecified_outputs
from opdump.records import IO, OpRecord, SkipReason, StatisticValue

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
