"""What an adapter passes to a recorder: live tensors, and a reader that can read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from opdump.kernels import Summary
from opdump.records import IO, HostPayload, Memory, OpRecord, SkipReason, StatisticValue, TensorRecord, record_of
from opdump.statistics import ElementStatistics, Extremes, SummaryStatistics
from opdump.step_table import TensorFacts

_new = object.__new__
_NO_STATISTICS: Final[Mapping[str, StatisticValue]] = {}


class PendingArray(Protocol):
    """Elements that are being copied to the host; complete after the reader's `finish_step`."""

    def to_numpy(self) -> npt.NDArray[Any]: ...


class Elements:
    """Elements that were read from a tensor, until they are written; afterwards, only their location."""

    __slots__ = ("_array", "_is_lent", "file", "npy", "sample")

    def __init__(
        self, array: npt.NDArray[Any] | PendingArray, sample: int = 0, npy: str = "", *, is_lent: bool = False
    ) -> None:
        """`is_lent`: the array is memory of the program, which may change it once the operator continues. Call `own` before that."""
        self._array: npt.NDArray[Any] | PendingArray | None = array
        self._is_lent = is_lent
        self.sample = sample
        """Number of elements if these are the first ones of a larger tensor (`TensorRecord.sample`), else 0."""
        self.npy = npy
        """A file that contains all the elements already (`HostPayload.npy`)."""
        self.file: str | None = None

    @classmethod
    def filed_as(cls, file: str | None) -> Elements:
        """Return elements that are already in that file."""
        elements = cls(np.empty(0))
        elements.filed(file)
        return elements

    @property
    def are_held(self) -> bool:
        """Whether the elements are in memory or being copied there."""
        return self._array is not None

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes, or 0 if they are not held. The copy must be complete."""
        return self.lent().nbytes if self.are_held else 0

    @property
    def are_pending(self) -> bool:
        """Whether the elements are still being copied to the host."""
        return hasattr(self._array, "to_numpy")

    def own(self) -> None:
        """Copy the elements if they are still memory of the program."""
        if self._is_lent:
            self._array, self._is_lent = np.array(self.lent(), order="C", copy=True), False

    def on_host(self) -> npt.NDArray[Any]:
        """Return the elements as an array that will not change. The copy to the host must be complete."""
        self.own()
        return self.lent()

    def lent(self) -> npt.NDArray[Any]:
        """Return the elements for a caller that copies them at once: the array may be memory of the program."""
        array = self._array
        if array is None:
            raise ValueError("the elements were already written and are no longer in memory")
        return array.to_numpy() if hasattr(array, "to_numpy") else array

    def cut(self, count: int) -> None:
        """Keep only the first `count` elements of a larger tensor, unless the reader did so already."""
        if self._array is not None and not self.sample:
            array = self.lent()
            if array.size > count:
                self._array, self.sample, self.npy = array.reshape(-1)[:count].copy(), count, ""
                self._is_lent = False

    def filed(self, file: str | None) -> None:
        """Note that the elements are in this file (None: in no file), and release their memory."""
        self.file = file
        self._array = None
        self._is_lent = False


class TensorSnapshot:
    """What was read of one tensor. A single object, because a step has thousands; each part of it has one owner.

    A reader creates it. The reader owns the facts (`dtype`, `shape`, `data_size`, `skip`, `memory`), the place of the summary (`table`, `row`) with
    what the summary does not contain (`digest`, `others`, `extremes`), and the `elements` that it read. The recorder assigns the tensor to an
    operator (`belongs`), takes over the summary (`settle`), and writes the elements. The compiled `BatchSummarizer` does the reader's work and
    `belongs` in one call, by copying an empty snapshot.
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
        """The number of its digests, if the reader computes the digests of many tensors together. Once computed, they are in `others`."""
        self.others: dict[str, StatisticValue] | None = None
        """Statistics that a summary does not contain: digests, and statistics of other packages (`ElementStatistics`)."""
        self.extremes: Extremes | None = None
        """Max and min by the rules of a device, for layouts that need them (`device_extremes`)."""
        self.elements: Elements | None = None
        self.statistics: Mapping[str, StatisticValue] = _NO_STATISTICS
        """The statistics to be written, once they are settled."""
        self.memory: Memory | None = None
        """The memory of the tensor; owned by the reader, like the facts."""

    def belongs(self, op: OpRecord, io: IO, slot: int, argument: str, source: str) -> None:
        self.op = op
        self.io = io
        self.slot = slot
        self.argument = argument
        self.source = source

    def again(self, op: OpRecord, io: IO, slot: int, argument: str, source: str) -> TensorSnapshot:
        """Return a snapshot of the same tensor in another slot. Call it before anything is settled or written."""
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
        """Set the statistics: `statistics` if given (those of another snapshot with the same summary), else new ones from `summary`.

        The reader may forget the row afterwards.
        """
        self.statistics = (
            statistics if statistics is not None else SummaryStatistics(summary, self.others, self.extremes)
        )
        self.table = None
        self.row = -1

    def settle_others(self) -> None:
        """Set `others` as the statistics if there was no summary to settle."""
        if self.others and not self.statistics:
            self.statistics = dict(self.others)

    @property
    def sample(self) -> int:
        """Number of elements read, if they are the first ones of a larger tensor, else 0."""
        return 0 if self.elements is None else self.elements.sample

    @property
    def file(self) -> str | None:
        return None if self.elements is None else self.elements.file

    @property
    def held_bytes(self) -> int:
        """Bytes of its elements in memory, before they are converted to a wider type."""
        if not self.sample:
            return self.data_size
        return self.data_size * self.sample // max(math.prod(self.shape), 1)

    @property
    def kept_bytes(self) -> int:
        """Bytes of its elements while they are held, or on the device while they are being copied; else 0."""
        elements = self.elements
        if elements is None or not elements.are_held:
            return 0
        return self.held_bytes if elements.are_pending else elements.nbytes

    def record(self, *, lent: bool = False) -> TensorRecord:
        """Return the snapshot as a record, with the elements that are held. `lent`: the caller copies them at once (`Elements.lent`)."""
        elements = self.elements
        if elements is None or not elements.are_held:
            return record_of(self, None)
        return record_of(self, HostPayload(elements.lent() if lent else elements.on_host(), elements.npy))


def settle(reader: Reader, entries: Sequence[TensorSnapshot], statistics: ElementStatistics | None = None) -> None:
    """Set the statistics of tensors that `reader` read, after its `finish_step`, including those that other packages derive from summaries."""
    added = statistics if statistics is not None and statistics.of_summary else None
    made: dict[int, SummaryStatistics] = {}
    """A reader returns one summary object for a tensor that several operators read."""
    summaries = list(reader.summaries(entries))  # keeps all of them alive, so that their identities stay unique
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
    """Reads the live tensors of an adapter."""

    def take(self, tensor: Any) -> TensorSnapshot:
        """Read a tensor as it is now."""

    def skip(self, tensor: Any, reason: SkipReason) -> TensorSnapshot:
        """Return the facts of a tensor without reading its elements."""

    def summaries(self, entries: Sequence[TensorSnapshot]) -> Iterable[Summary | None]:
        """Return the summaries of tensors read in this step, after `finish_step`; None for a tensor without one."""

    def finish_step(self) -> None:
        """Copy to the host what is still on a device."""

    def clear(self) -> None:
        """Forget the summaries of the step."""

    @property
    def must_finish(self) -> bool:
        """Whether so much waits on devices that it should be copied before the step ends."""


@runtime_checkable
class SupportsElements(Protocol):
    """A reader that can create a reader of elements, independent of what the plan records."""

    def of_elements(self) -> Reader:
        """Return a reader of the same tensors that reads all elements and no statistics."""


@runtime_checkable
class SupportsStatisticsAlone(Protocol):
    """A reader that can stop reading elements; those of another reader are dropped."""

    def leave_elements(self) -> None:
        """Read no elements from now on."""


@runtime_checkable
class SupportsSides(Protocol):
    """A reader that can read all inputs or all outputs of an operator in one call."""

    def take_all(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], entries: list[TensorSnapshot]) -> bool:
        """Append the snapshots to `entries`, without elements. Return False, having read nothing, if elements must be read."""


BlockNumbers = tuple[npt.NDArray[np.float64], Mapping[int, Extremes], Mapping[int, Mapping[str, StatisticValue]]]
"""What a reader knows about the tensors of blocks: the summaries, and by their row numbers the extremes and other statistics (`SupportsRows`)."""


@runtime_checkable
class SupportsRows(Protocol):
    """A reader that can return its summaries as an array."""

    def block_summaries(self) -> npt.NDArray[np.float64]:
        """Return the summaries of the step so far, shape (n, 11); the last row is NO_SUMMARY."""

    def block_extremes(self) -> Mapping[int, Extremes]:
        """Return max and min by the rules of a device, by row number, if a layout needs them and they differ from those of the summary."""

    def block_others(self) -> Mapping[int, Mapping[str, StatisticValue]]:
        """Return statistics that summaries do not contain, by row number: digests."""


def block_numbers(reader: SupportsRows | None) -> BlockNumbers | None:
    """Return what the reader knows about the tensors of blocks, or None if there is no such reader."""
    if reader is None:
        return None
    return reader.block_summaries(), reader.block_extremes(), reader.block_others()


@runtime_checkable
class SupportsBlocks(SupportsRows, Protocol):
    """A reader that can read the tensors of many operators in one call."""

    @property
    def takes_blocks(self) -> bool:
        """Whether it reads only summaries."""

    def take_block(self, tensors: Any) -> tuple[Sequence[TensorFacts], npt.NDArray[np.intp]]:
        """Return the facts of each tensor, and its row in `block_summaries`, -1 if it has none.

        A tensor is read once, even if it is in several slots or blocks.
        """

    def take_ahead(self, tensors: Any) -> None:
        """Read tensors that are passed to `take_block` later, when their memory may be gone."""


class Live(NamedTuple):
    """A live tensor in one slot of an operator."""

    slot: int
    argument: str
    tensor: Any
    source: str = ""
    skip: SkipReason = ""
    """Why its elements must not be read: they are not written yet, or still being written."""


# The type that readers see. Adapters may pass plain tuples, which are created ten times as fast as `Live`.
LiveTensor = tuple[int, str, Any, str, SkipReason]
