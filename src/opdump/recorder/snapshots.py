"""What an adapter gives to a recorder: live tensors, and a reader that knows how to look at them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt

from opdump.kernels import Summary
from opdump.records import IO, OpRecord, SkipReason, StatisticValue
from opdump.statistics import Extremes

_NO_STATISTICS: Final[Mapping[str, StatisticValue]] = MappingProxyType({})


class PendingArray(Protocol):
    """Elements on their way to the host; complete after the reader's `finish_step`."""

    def to_numpy(self) -> npt.NDArray[Any]: ...


class TensorSnapshot:
    """What was read of one tensor: facts now, the summary at the end of the step, the elements where asked for.

    The reader fills in what it read, the recorder where it belongs; one object, since there are thousands in a step.
    """

    __slots__ = ("argument", "array", "data_size", "digests", "dtype", "extremes", "file", "io", "op", "row", "sample", "shape", "skip",
                 "slot", "source", "statistics", "table")  # fmt: skip

    format = "DefaultFormat"
    op: OpRecord
    io: IO
    slot: int
    argument: str
    source: str

    def __init__(self, dtype: str, shape: tuple[int, ...], data_size: int, skip: SkipReason = "") -> None:
        self.dtype = dtype
        self.shape = shape
        self.data_size = data_size
        self.skip: SkipReason = skip
        self.sample = 0
        """Elements in `array` where these are the first of a larger tensor (`TensorRecord.sample`)."""
        self.row = -1
        self.table: Any = None
        self.array: npt.NDArray[Any] | PendingArray | None = None
        self.digests: dict[str, str] | None = None
        self.extremes: Extremes | None = None
        """Max and min by the rules of a device, for the layout that needs them (`device_extremes`)."""
        self.file: str | None = None
        self.statistics: Mapping[str, StatisticValue] = _NO_STATISTICS
        """Set at the end of the step, unless the reader set it."""

    def belongs(self, op: OpRecord, io: IO, slot: int, argument: str, source: str) -> None:
        """Sets whose tensor it is."""
        self.op = op
        self.io = io
        self.slot = slot
        self.argument = argument
        self.source = source


class Reader(Protocol):
    """Looks at an adapter's live tensors."""

    def take(self, tensor: Any) -> TensorSnapshot:
        """Reads one tensor as it is now."""

    def skip(self, tensor: Any, reason: SkipReason) -> TensorSnapshot:
        """The facts of a tensor whose elements are not to be read."""

    def summaries(self, entries: Sequence[TensorSnapshot]) -> Iterable[Summary | None]:
        """The summaries of tensors taken in this step, after `finish_step`; None where there is none."""

    def finish_step(self) -> None:
        """Brings what is still on a device to the host."""

    def clear(self) -> None:
        """Forgets the summaries of the step."""

    @property
    def must_finish(self) -> bool:
        """Whether so much waits on devices that it should be brought over before the step ends."""


@runtime_checkable
class SupportsSides(Protocol):
    """A reader that can take all inputs or all outputs of an operator in one call."""

    def take_all(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], entries: list[TensorSnapshot]) -> bool:
        """Appends what it reads to `entries`, without elements; False, and nothing read, where it has to read elements."""


class Live(NamedTuple):
    """A live tensor in one slot of an operator."""

    slot: int
    argument: str
    tensor: Any
    source: str = ""
    skip: SkipReason = ""
    """Why its elements are not to be read: nobody wrote them yet, or somebody still does."""


# What `Live` is to a reader of it: adapters may give plain tuples, which are made ten times as fast.
LiveTensor = tuple[int, str, Any, str, SkipReason]
