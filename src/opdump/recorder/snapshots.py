"""What an adapter gives to a recorder: live tensors, and a reader that knows how to look at them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from opdump.kernels import Summary
from opdump.records import IO, HostPayload, Memory, OpRecord, SkipReason, StatisticValue, TensorRecord, record_of
from opdump.statistics import ElementStatistics, Extremes, SummaryStatistics
from opdump.step_columns import TensorFacts

_new = object.__new__
_NO_STATISTICS: Final[Mapping[str, StatisticValue]] = MappingProxyType({})


class PendingArray(Protocol):
    """Elements on their way to the host; complete after the reader's `finish_step`."""

    def to_numpy(self) -> npt.NDArray[Any]: ...


class Elements:
    """Elements that were taken of a tensor, until they are filed, and where they are from then on."""

    __slots__ = ("_array", "_is_lent", "file", "npy", "sample")

    def __init__(
        self, array: npt.NDArray[Any] | PendingArray, sample: int = 0, npy: str = "", *, is_lent: bool = False
    ) -> None:
        """`is_lent`: the array is memory of the program, which may change it once the operator goes on: `own` before that."""
        self._array: npt.NDArray[Any] | PendingArray | None = array
        self._is_lent = is_lent
        self.sample = sample
        """How many they are, where they are the first of a larger tensor (`TensorRecord.sample`)."""
        self.npy = npy
        """A file that holds all of them already (`HostPayload.npy`)."""
        self.file: str | None = None

    @classmethod
    def filed_as(cls, file: str | None) -> Elements:
        """Those that are in that file already."""
        elements = cls(np.empty(0))
        elements.filed(file)
        return elements

    @property
    def are_held(self) -> bool:
        """Whether they are in memory, or on their way there."""
        return self._array is not None

    @property
    def nbytes(self) -> int:
        """The size of what is held, in bytes; it must have arrived."""
        return self.lent().nbytes if self.are_held else 0

    @property
    def are_pending(self) -> bool:
        """Whether they are on their way to the host."""
        return hasattr(self._array, "to_numpy")

    def own(self) -> None:
        """Copies them, where they are memory of the program still."""
        if self._is_lent:
            self._array, self._is_lent = np.array(self.lent(), order="C", copy=True), False

    def on_host(self) -> npt.NDArray[Any]:
        """The elements, which nobody changes; those on their way must have arrived."""
        self.own()
        return self.lent()

    def lent(self) -> npt.NDArray[Any]:
        """The same for whoever copies them at once: they may be memory of the program."""
        array = self._array
        if array is None:
            raise ValueError("the elements were filed already")
        return array.to_numpy() if hasattr(array, "to_numpy") else array

    def cut(self, count: int) -> None:
        """Keeps the first elements of a larger tensor alone, where the reader did not."""
        if self._array is not None and not self.sample:
            array = self.lent()
            if array.size > count:
                self._array, self.sample, self.npy = array.reshape(-1)[:count].copy(), count, ""
                self._is_lent = False

    def filed(self, file: str | None) -> None:
        """They are in that file now, if in any, and no longer in memory."""
        self.file = file
        self._array = None
        self._is_lent = False


class TensorSnapshot:
    """What was read of one tensor. One object, since there are thousands in a step; each part of it has one owner.

    A reader makes it. To the reader belong the facts (`dtype`, `shape`, `data_size`, `skip`, `memory`), the place of the summary (`table`,
    `row`) with what it does not hold (`digest`, `others`, `extremes`), and the `elements` that it took. The recorder says whose tensor it is
    (`belongs`), takes the summary over (`settle`), and files the elements. The compiled `BatchSummarizer` does what a reader does, and
    `belongs`, in one call: it copies an empty snapshot.
    """

    __slots__ = ("argument", "data_size", "digest", "dtype", "elements", "extremes", "io", "memory", "op", "others", "row",
                 "shape", "skip", "slot", "source", "statistics", "table")  # fmt: skip

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
        self.row = -1
        self.table: Any = None
        self.digest = -1
        """The number of its digests where the reader takes those of many tensors together and knows them by this; `others` has them once they are settled."""
        self.others: dict[str, StatisticValue] | None = None
        """Statistics that a summary does not give: digests, and those of packages (`ElementStatistics`)."""
        self.extremes: Extremes | None = None
        """Max and min by the rules of a device, for the layout that needs them (`device_extremes`)."""
        self.elements: Elements | None = None
        self.statistics: Mapping[str, StatisticValue] = _NO_STATISTICS
        """What is filed of its numbers, once they are settled."""
        self.memory: Memory | None = None
        """Where its elements lie; a fact too."""

    def belongs(self, op: OpRecord, io: IO, slot: int, argument: str, source: str) -> None:
        self.op = op
        self.io = io
        self.slot = slot
        self.argument = argument
        self.source = source

    def again(self, op: OpRecord, io: IO, slot: int, argument: str, source: str) -> TensorSnapshot:
        """The same tensor in another slot, before anything is settled or filed of it."""
        other = _new(TensorSnapshot)
        other.dtype = self.dtype
        other.shape = self.shape
        other.data_size = self.data_size
        other.skip = self.skip
        other.row = self.row
        other.table = self.table
        other.digest = self.digest
        other.others = self.others
        other.extremes = self.extremes
        other.elements = None
        other.statistics = _NO_STATISTICS
        other.memory = self.memory
        other.op = op
        other.io = io
        other.slot = slot
        other.argument = argument
        other.source = source
        return other

    def settle(self, summary: Summary, statistics: SummaryStatistics | None = None) -> None:
        """Sets the statistics: those that another snapshot of the tensor has of the summary, where they are given.

        The reader may forget its row.
        """
        self.statistics = (
            statistics if statistics is not None else SummaryStatistics(summary, self.others, self.extremes)
        )
        self.table = None
        self.row = -1

    def settle_others(self) -> None:
        """These are all that is known of its numbers, where there was no summary to settle."""
        if self.others and not self.statistics:
            self.statistics = dict(self.others)

    @property
    def sample(self) -> int:
        """Elements that were taken, where these are the first of a larger tensor."""
        return 0 if self.elements is None else self.elements.sample

    @property
    def file(self) -> str | None:
        return None if self.elements is None else self.elements.file

    @property
    def held_bytes(self) -> int:
        """Bytes that its elements take in memory, before any widening."""
        if not self.sample:
            return self.data_size
        return self.data_size * self.sample // max(math.prod(self.shape), 1)

    @property
    def kept_bytes(self) -> int:
        """Bytes that its elements take while they are held; of those on their way from a device what they take there."""
        elements = self.elements
        if elements is None or not elements.are_held:
            return 0
        return self.held_bytes if elements.are_pending else elements.nbytes

    def record(self, *, lent: bool = False) -> TensorRecord:
        """The same as a record, with the elements that are held; `lent`: for whoever copies them at once (`Elements.lent`)."""
        elements = self.elements
        if elements is None or not elements.are_held:
            return record_of(self, None)
        return record_of(self, HostPayload(elements.lent() if lent else elements.on_host(), elements.npy))


def settle(reader: Reader, entries: Sequence[TensorSnapshot], statistics: ElementStatistics | None = None) -> None:
    """Sets the statistics of tensors that `reader` took, after its `finish_step`, with what packages add to summaries."""
    added = statistics if statistics is not None and statistics.of_summary else None
    made: dict[int, SummaryStatistics] = {}
    """Of tensors that several operators read, a reader gives one summary."""
    summaries = list(reader.summaries(entries))  # all alive, so that each has an identity
    for entry, summary in zip(entries, summaries, strict=True):
        if summary is None:
            continue
        if added is not None:
            entry.others = {**(entry.others or {}), **added.from_summary(summary)}
        if entry.others or entry.extremes:
            entry.settle(summary)
            continue
        known = made.get(id(summary))
        if known is None:
            known = made[id(summary)] = SummaryStatistics(summary)
        entry.settle(summary, known)


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
class SupportsElements(Protocol):
    """A reader of which there is one for elements alone, whatever the plan files."""

    def of_elements(self) -> Reader:
        """A reader of the same tensors that takes all of their elements, and no statistics."""


@runtime_checkable
class SupportsStatisticsAlone(Protocol):
    """A reader that can stop taking elements; what another one takes is dropped."""

    def leave_elements(self) -> None:
        """From now on no elements are taken."""


@runtime_checkable
class SupportsSides(Protocol):
    """A reader that can take all inputs or all outputs of an operator in one call."""

    def take_all(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], entries: list[TensorSnapshot]) -> bool:
        """Appends what it reads to `entries`, without elements; False, and nothing read, where it has to read elements."""


BlockNumbers = tuple[npt.NDArray[np.float64], Mapping[int, Extremes], Mapping[int, Mapping[str, StatisticValue]]]
"""What a reader knows of the tensors of blocks: summaries, by their rows extremes and what else there is (`SupportsRows`)."""


@runtime_checkable
class SupportsRows(Protocol):
    """A reader whose summaries can be had as an array."""

    def block_summaries(self) -> npt.NDArray[np.float64]:
        """The summaries of the step so far, (n, 11); the last row is NO_SUMMARY."""

    def block_extremes(self) -> Mapping[int, Extremes]:
        """Max and min by the rules of a device, by such a row, where a layout needs them and they are not those of the summary."""

    def block_others(self) -> Mapping[int, Mapping[str, StatisticValue]]:
        """What summaries do not give, by such a row: digests."""


def block_numbers(reader: SupportsRows | None) -> BlockNumbers | None:
    """What it knows of the tensors of blocks; None where it takes none."""
    if reader is None:
        return None
    return reader.block_summaries(), reader.block_extremes(), reader.block_others()


@runtime_checkable
class SupportsBlocks(SupportsRows, Protocol):
    """A reader that can take what many operators read and wrote in one call."""

    @property
    def takes_blocks(self) -> bool:
        """Whether it takes nothing but summaries."""

    def take_block(self, tensors: Any) -> tuple[Sequence[TensorFacts], npt.NDArray[np.intp]]:
        """What is known of each tensor, and the row of its summary in `block_summaries`, -1 where it has none.

        Tensors are read once, also where several slots or blocks have them.
        """

    def take_ahead(self, tensors: Any) -> None:
        """Reads tensors that `take_block` is given later, when their memory is gone."""


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
