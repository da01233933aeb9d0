"""Tensors in the memory of this process, shared by the adapters of graph runtimes. No framework is imported here.

ElementType   element types of ONNX tensors: their names, their bits, and how numpy reads them
HostTensor    elements at an address, and the results of a reader
HostColumns   the addresses of many tensors in columns; a Choice selects some of them
NumpyReader   reads summaries and elements
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from opdump.dtypes import small_float
from opdump.kernels import DTYPE_CODES, DigestBatch, Summary, SummaryTable
from opdump.plan import DumpPlan
from opdump.recorder import Elements, TensorSnapshot
from opdump.records import Memory, SkipReason, StatisticValue
from opdump.statistics import ElementStatistics, Extremes, device_extremes, has_device_extremes, have_device_extremes
from opdump.step_table import NO_SUMMARY, TensorFacts

if TYPE_CHECKING:
    import onnxruntime

# Element types of ONNX tensors. Source: `TensorProto.DataType` of the ONNX specification. Names are those of `TensorRecord.dtype`.

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ElementType:
    """One element type.

    `number` is the number in ONNX, `runtime_name` the name in `tensor(...)`. `storage` is the numpy type of the raw bits: the type
    itself if numpy has it, otherwise an unsigned integer; for elements below 8 bits, the bytes into which they are packed. `code` is the
    number of the type in the summary kernels, None if they do not support it. Only text has 0 `bits`.
    """

    number: int
    dtype: str
    runtime_name: str
    bits: int
    storage: np.dtype[Any]
    code: int | None
    known_to_numpy: bool

    def size(self, count: int) -> int:
        return (count * self.bits + 7) // 8


_ROWS: Final = (
    (1, "float32", "float", 32),
    (2, "uint8", "uint8", 8),
    (3, "int8", "int8", 8),
    (4, "uint16", "uint16", 16),
    (5, "int16", "int16", 16),
    (6, "int32", "int32", 32),
    (7, "int64", "int64", 64),
    (8, "string", "string", 0),
    (9, "bool", "bool", 8),
    (10, "float16", "float16", 16),
    (11, "float64", "double", 64),
    (12, "uint32", "uint32", 32),
    (13, "uint64", "uint64", 64),
    (14, "complex64", "complex64", 64),
    (15, "complex128", "complex128", 128),
    (16, "bfloat16", "bfloat16", 16),
    (17, "float8_e4m3fn", "float8e4m3fn", 8),
    (18, "float8_e4m3fnuz", "float8e4m3fnuz", 8),
    (19, "float8_e5m2", "float8e5m2", 8),
    (20, "float8_e5m2fnuz", "float8e5m2fnuz", 8),
    (21, "uint4", "uint4", 4),
    (22, "int4", "int4", 4),
    (23, "float4_e2m1fn", "float4e2m1", 4),
    (24, "float8_e8m0fnu", "float8e8m0", 8),
    (25, "uint2", "uint2", 2),
    (26, "int2", "int2", 2),
)


def _element_type(number: int, dtype: str, runtime_name: str, bits: int) -> ElementType:
    known = bits >= 8 and not dtype.startswith(("bfloat", "float8"))
    storage = np.dtype(dtype) if known else np.dtype(np.uint16 if bits == 16 else np.uint8)
    return ElementType(number, dtype, runtime_name, bits, storage, DTYPE_CODES.get(dtype), known)


BY_NUMBER: Final[Mapping[int, ElementType]] = {row[0]: _element_type(*row) for row in _ROWS}
BY_RUNTIME_NAME: Final[Mapping[str, ElementType]] = {element.runtime_name: element for element in BY_NUMBER.values()}
BY_DTYPE: Final[Mapping[str, ElementType]] = {element.dtype: element for element in BY_NUMBER.values()}
_SMALL_FLOATS: Final = frozenset(
    {
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("float4_e2m1fn", "float8_e8m0fnu"),
    }
)


def element_of_type(type_text: str) -> ElementType | None:
    """The element type in a text such as `tensor(float)`; None for a sequence, map, optional or sparse tensor."""
    if not type_text.startswith("tensor("):
        return None
    return BY_RUNTIME_NAME.get(type_text[7:-1])


def widened_elements(raw: Array, element: ElementType, shape: tuple[int, ...]) -> Array:
    """The elements of `raw` in `shape`, in a type that numpy has.

    `raw` is flat and has the type's `storage`; packed elements begin in the lowest bits. bfloat16 and floats of 8 and 4 bits become
    float32, integers below 8 bits become int8 or uint8, without loss. Types that numpy has are returned without a copy. Raises
    UndecodableTensorError for a small float that the installed ml_dtypes lacks.
    """
    if element.known_to_numpy:
        return raw.reshape(shape)
    if element.dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32).reshape(shape)
    codes = raw if element.bits == 8 else _unpacked(raw, element.bits, int(np.prod(shape, dtype=np.int64)))
    if element.dtype in _SMALL_FLOATS:
        floats: Array = codes.view(small_float(element.dtype)).astype(np.float32)
        return floats.reshape(shape)
    if element.dtype.startswith("int"):
        # Shifting left and right again extends the sign.
        unused = 8 - element.bits
        codes = (codes << unused).view(np.int8) >> unused
    return codes.reshape(shape)


def _unpacked(raw: Array, bits: int, count: int) -> Array:
    per_byte = 8 // bits
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    codes: Array = (raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(-1)[:count]


# A tensor in the memory of this process. The memory may have any owner.

_ELEMENTS: Final = {element.storage: element for element in BY_DTYPE.values() if element.known_to_numpy}
"""By dtype, because numpy takes long to form the name of a type."""


class HostTensor:
    """Dense elements in C order at an address, and the results of a reader.

    `owner` keeps the memory alive. `stays`: the elements will not change, so an array over the same memory may be filed later. `npy`: a
    file that also contains the elements (`HostPayload.npy`). `fixed`: the tensor is the same in every run (an initialiser). `memory`: its
    location among the tensors of the step, if known.
    """

    __slots__ = ("array", "count", "digest", "element", "extremes", "fixed", "generation", "memory", "npy", "others", "owner", "pointer", "row", "shape", "size",
                 "stays")  # fmt: skip

    def __init__(
        self,
        element: ElementType,
        shape: tuple[int, ...],
        pointer: int,
        owner: object,
        *,
        stays: bool,
        fixed: bool = False,
        npy: str = "",
    ) -> None:
        self.npy = npy
        self.memory: Memory | None = None
        self.element = element
        self.shape = shape
        self.count = math.prod(shape)
        self.size = element.size(self.count)
        self.pointer = pointer
        self.owner = owner
        self.stays = stays
        self.fixed = fixed
        self.row = -1
        self.generation = -1
        self.digest = (-1, -1)
        """The generation of the reader when the digests were computed, and their number."""
        self.array: Array | None = None
        self.others: Mapping[str, StatisticValue] | None = None
        self.extremes: list[Extremes | None] = []
        """Max and min by the rules of a device; empty until they are computed, None if they equal the summary."""

    @classmethod
    def of_ort_value(cls, value: onnxruntime.OrtValue) -> HostTensor:
        """A dense tensor of ONNX Runtime on the host. Its elements do not change, because only the capture has it."""
        element = BY_NUMBER[value.element_type()]
        # No reader uses the pointer of text, whose memory contains objects, or of an empty tensor, which has no memory.
        return cls(element, tuple(value.shape()), value.data_ptr(), value, stays=True)

    @classmethod
    def of_array(
        cls, array: Array, element: ElementType | None = None, *, stays: bool = False, fixed: bool = False
    ) -> HostTensor:
        """A tensor over an array, or over a copy if the array is not contiguous or not in native byte order.

        `element` is the type of the raw bits if numpy has no name for it; the shape remains that of the array.
        """
        if element is None:
            element = _ELEMENTS.get(array.dtype) or BY_DTYPE.get(array.dtype.name) or BY_DTYPE["string"]
        contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        if not contiguous.dtype.isnative:
            contiguous = contiguous.astype(contiguous.dtype.newbyteorder("="))
        # A copy that was made here does not change.
        stays = stays or (contiguous.base is None and contiguous is not array)
        return cls(element, array.shape, contiguous.ctypes.data, contiguous, stays=stays, fixed=fixed)

    def raw(self) -> Array:
        """The memory as a flat array of the element type's storage, without a copy."""
        memory = (ctypes.c_char * self.size).from_address(self.pointer)
        # The array keeps `memory` alive, and `memory` keeps the owner of the elements alive.
        memory.owner = self.owner  # type: ignore[attr-defined]  # a ctypes object takes attributes
        flat: Array = np.frombuffer(memoryview(memory), self.element.storage)
        return flat


def host_tensor(array: Any) -> HostTensor | str:
    """An array as a HostTensor; the name of its type if that is not an element type of at least 8 bits."""
    array = np.asarray(array)
    name = str(array.dtype.name)
    element = BY_DTYPE.get(name)
    # numpy uses one byte for an element below 8 bits, but a HostTensor has packed ones.
    if element is None or element.bits < 8:
        return name
    return HostTensor.of_array(array, element)


# The tensors of a run in columns. Their common properties are prepared once, as a `Choice`; each run has its own `HostColumns`, and only
# adds the addresses. `choice.of(columns, begins)` is what `Recorder.take_block` takes.

NOT_READ: Final = np.iinfo(np.intp).min
"""The row of a tensor that has not been summarised yet. Other negative rows count from the end of `block_summaries`."""


def facts_of(tensor: HostTensor | str) -> TensorFacts:
    """The facts of a tensor that need no elements. A text is the type of a value that is not an array."""
    if isinstance(tensor, str):
        return TensorFacts(tensor, (), 0, "opaque")
    element = tensor.element
    skip: SkipReason = "opaque" if element.bits == 0 else "empty" if tensor.count == 0 else ""
    return TensorFacts(element.dtype, tensor.shape, tensor.size, skip)


class KeptSummaries(NamedTuple):
    """The summaries of tensors whose memory may be gone."""

    places: npt.NDArray[np.intp]
    """The positions of these tensors in the columns."""
    summaries: npt.NDArray[np.float64]
    extremes: Mapping[int, Extremes]
    """Max and min by the rules of a device, if they differ from the summary, by position in `summaries`."""


class HostColumns:
    """The addresses of the tensors of one run, and the rows of their summaries."""

    def __init__(self) -> None:
        self.pointers: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        """NOT_READ until a reader has summarised the tensor."""
        self.generation = -1
        """The reader's step in which the rows are valid."""
        self.kept: KeptSummaries | None = None
        """The summaries of tensors whose memory may be gone."""

    def extend(self, pointers: npt.NDArray[np.int64]) -> int:
        """Add tensors; returns the position of the first."""
        first = len(self.pointers)
        self.pointers = np.concatenate([self.pointers, pointers])
        self.rows = np.concatenate([self.rows, np.full(len(pointers), NOT_READ, np.intp)])
        return first

    def cut(self, first: int) -> None:
        """Remove the tensors from position `first` on."""
        self.pointers = self.pointers[:first]
        self.rows = self.rows[:first]

    def lend_row(self, place: int, tensor: HostTensor) -> None:
        """If the tensor at a position has been summarised, give the row to another object of the same tensor."""
        row = int(self.rows[place])
        if row >= 0:
            tensor.row, tensor.generation = row, self.generation


Place = tuple[int, int]
"""A section of columns, and the position of a tensor in it."""


class Choice:
    """Selected tensors, by their places in columns. Their types and shapes are the same in each run."""

    def __init__(self, tensors: Sequence[HostTensor | str], places: Sequence[Place | None]) -> None:
        """`tensors` are from any one run. The place is None for a tensor that is not in columns."""
        self.facts = tuple(map(facts_of, tensors))
        self.objects: list[int] = []
        """The numbers of tensors that must be passed as objects: those not in columns, and those that are widened before a summary."""
        read: list[tuple[int, int, int, int, int]] = []
        for number, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
            element = None if isinstance(tensor, str) else tensor.element
            if place is None or (element is not None and element.code is None and not element.known_to_numpy):
                self.objects.append(number)
            elif isinstance(tensor, HostTensor) and tensor.element.code is not None and not self.facts[number].skip:
                read.append((number, *place, tensor.element.code, tensor.count))
        columns: npt.NDArray[np.int64] = np.array(read, np.int64).reshape(-1, 5).T.copy()
        self.read, self._sections, self._numbers, self.codes, self.counts = columns
        """`read` has the numbers of the tensors that are summarised at their addresses; the others their places, type codes and element counts."""
        self.are_floats = np.array(["float" in self.facts[number].dtype for number in self.read.tolist()], np.bool_)
        """Whether the elements of each tensor in `read` are floats."""

    def tensor_at(self, place: int, pointer: int) -> HostTensor:
        """The tensor at position `place` of `read`, at this address."""
        dtype, shape, *_ = self.facts[self.read[place]]
        return HostTensor(BY_DTYPE[dtype], shape, pointer, None, stays=False)

    def of(
        self, columns: HostColumns, begins: Sequence[int] = (0,), objects: Sequence[HostTensor | str] = ()
    ) -> ChosenTensors:
        """The selected tensors of a run. `begins` are the beginnings of the sections, `objects` the tensors for `self.objects`."""
        return ChosenTensors(self, columns, np.array(begins)[self._sections] + self._numbers, objects)


class ChosenTensors(NamedTuple):
    """The tensors of a choice in one run."""

    choice: Choice
    columns: HostColumns
    places: npt.NDArray[np.int64]
    """The positions in columns of the tensors that are summarised at their addresses."""
    objects: Sequence[HostTensor | str]
    """The tensors that are passed as objects."""


# Reads host tensors at their addresses. The native core computes summaries; elements are not copied if possible.
#
# A tensor of a run never changes after it is computed, so its summary as an output also serves the operators that read it: each tensor is
# summarised once per run, and each initialiser once.

LiveValue: TypeAlias = "HostTensor | onnxruntime.OrtValue | npt.NDArray[Any] | str"
"""A text is the type of a value that is not an array: `string`, `seq(tensor(float))`."""


class NumpyReader:
    """Reads the summary and, if requested, the elements of `HostTensor`s, OrtValues on the host and numpy arrays.

    Elements are copied only if the tensor may change. bfloat16 and the small floats become float32, integers below 8 bits int8 or uint8.
    `names` are the requested statistics; those that a summary lacks are computed separately. `sample` is the maximum number of elements
    to take of a tensor, the first in row-major order; statistics are always of the whole tensor. `device_extremes` also computes max and
    min by the rules of a device. Complex tensors have no summary. Text and values that are not tensors are `opaque`.
    """

    must_finish = False

    def __init__(
        self,
        *,
        statistics: bool,
        elements: bool,
        names: Sequence[str] = (),
        sample: int | None = None,
        device_extremes: bool = False,
    ) -> None:
        self._statistics = statistics
        self._elements = elements
        self._element_statistics = ElementStatistics(names)
        alone = self._element_statistics.digests_alone
        self._digests = DigestBatch(alone) if statistics and alone else None
        self._sample = sample
        self._table = SummaryTable(4096)
        self._fixed = SummaryTable(256)
        """Summaries of tensors that are the same in every run; never cleared."""
        self._fixed_summaries: list[Summary] = []
        self._kept: list[npt.NDArray[np.float64]] = []
        """Summaries that were taken ahead (`take_ahead`), latest first."""
        self._generation = 0
        self._device_extremes = device_extremes and statistics
        self.takes_blocks = statistics and not (elements or self._element_statistics)
        self._hosts: dict[int, HostTensor] = {}
        """The tensors of this step, by the identity of their `TensorSnapshot`, if extremes are requested."""
        self._extremes: dict[int, Extremes] = {}
        """Max and min by the rules of a device, if they differ from the summary, for blocks of this step, by row."""

    @classmethod
    def of_plan(cls, plan: DumpPlan) -> NumpyReader:
        return cls(
            statistics=plan.takes_statistics,
            elements=plan.saves_tensors,
            names=plan.statistic_category if plan.saves_statistics else (),
            sample=plan.sample_taken,
            device_extremes=plan.takes_device_extremes,
        )

    def leave_elements(self) -> None:
        """Stop reading elements."""
        self._elements = False

    def of_elements(self) -> NumpyReader:
        """A reader of the same tensors that reads all their elements, and no statistics."""
        return NumpyReader(statistics=False, elements=True)

    def take(self, tensor: LiveValue) -> TensorSnapshot:
        if isinstance(tensor, str):
            return TensorSnapshot(tensor, (), 0, "opaque")
        host = _host_tensor(tensor)
        element = host.element
        taken = TensorSnapshot(element.dtype, host.shape, host.size)
        taken.memory = host.memory
        if element.bits == 0:
            taken.skip = "opaque"
            return taken
        if host.count == 0:
            taken.skip = "empty"
            return taken
        if self._statistics:
            self._summarise(host, taken)
            if self._device_extremes:
                self._hosts[id(taken)] = host
        if self._elements:
            taken.elements = self._take_elements(host)
        if element.known_to_numpy and element.code is None:
            return taken  # complex tensors have only elements
        if self._digests is not None and not host.fixed:
            taken.digest = self._digest_of(host, self._digests)
        elif self._element_statistics:
            if host.others is None:
                host.others = self._element_statistics.of(host.raw(), lambda: self._elements_of(host, host.count))
            taken.others = dict(host.others)
        return taken

    def _take_elements(self, host: HostTensor) -> Elements:
        sample = self._sample if self._sample is not None and host.count > self._sample else 0
        if host.array is None or host.array.size != (sample or host.count):
            host.array = self._elements_of(host, sample or host.count)
        return Elements(host.array, sample, "" if sample else host.npy)

    def take_block(self, tensors: Sequence[LiveValue]) -> tuple[Sequence[TensorFacts], npt.NDArray[np.intp]]:
        """The facts of each tensor, and the row of its summary in `block_summaries`; -1 if it has none."""
        if isinstance(tensors, ChosenTensors):
            return tensors.choice.facts, self._rows_of(tensors)
        hosts = [each if isinstance(each, str) else _host_tensor(each) for each in tensors]
        facts = tuple(map(facts_of, hosts))
        rows = [
            -1 if each.skip or isinstance(host, str) else self._row_of(host)
            for host, each in zip(hosts, facts, strict=True)
        ]
        if self._device_extremes:
            self._take_extremes(
                [
                    (row, host)
                    for row, host in zip(rows, hosts, strict=True)
                    if row >= 0 and isinstance(host, HostTensor)
                ]
            )
        return facts, np.array(rows, np.intp)

    def take_ahead(self, tensors: ChosenTensors) -> None:
        """Summarise tensors whose memory may be gone when they are recorded."""
        self._rows_of(tensors)
        columns, places = tensors.columns, tensors.places
        rows = columns.rows[places]
        extremes = {place: self._extremes[row] for place, row in enumerate(rows.tolist()) if row in self._extremes}
        columns.kept = KeptSummaries(places, self._table.rows()[rows], extremes)

    def block_summaries(self) -> npt.NDArray[np.float64]:
        """The summaries of the step so far, then those taken ahead, then NO_SUMMARY. The latter two are addressed from the end, so they
        keep their rows when the table grows.
        """
        kept = np.concatenate([*self._kept, np.array([NO_SUMMARY])])
        return np.concatenate([self._table.rows(), kept])

    def block_extremes(self) -> Mapping[int, Extremes]:
        """Max and min by the rules of a device, if they differ from the summary, by row of `block_summaries`. Empty if not requested."""
        return dict(self._extremes)

    def block_others(self) -> Mapping[int, Mapping[str, StatisticValue]]:
        """Always empty, because blocks are only accepted if the reader reads only summaries."""
        return {}

    def _rows_of(self, tensors: ChosenTensors) -> npt.NDArray[np.intp]:
        choice, columns, chosen = tensors.choice, tensors.columns, tensors.places
        if columns.generation != self._generation:
            columns.generation = self._generation
            columns.rows.fill(NOT_READ)
            if columns.kept is not None:
                places, summaries, extremes = columns.kept
                self._kept.insert(0, summaries)
                first = -1 - sum(map(len, self._kept))
                columns.rows[places] = np.arange(first, first + len(places))
                self._extremes.update((first + place, each) for place, each in extremes.items())
        known = columns.rows[chosen]
        fresh = np.flatnonzero(known == NOT_READ)
        if len(fresh):
            pointers = columns.pointers[chosen[fresh]]
            first = self._table.add_all(pointers, choice.codes[fresh], choice.counts[fresh])
            known[fresh] = np.arange(first, first + len(fresh))
            columns.rows[chosen] = known
            if self._device_extremes:
                added = Summary._make(self._table.rows()[first:].T)
                others = ~have_device_extremes(added, are_floats=choice.are_floats[fresh])
                self._take_extremes(
                    [
                        (first + place, choice.tensor_at(int(fresh[place]), int(pointers[place])))
                        for place in np.flatnonzero(others).tolist()
                    ]
                )
        rows = np.full(len(choice.facts), -1, np.intp)
        rows[choice.read] = known
        for number, host in zip(choice.objects, tensors.objects, strict=True):
            if not isinstance(host, str) and not choice.facts[number].skip:
                row = rows[number] = self._row_of(host)
                if self._device_extremes and row >= 0:
                    self._take_extremes([(row, host)])
        return rows

    def _take_extremes(self, found: Sequence[tuple[int, HostTensor]]) -> None:
        """Compute max and min by the rules of a device at once, because the memory of a block's tensor may be gone later."""
        if not found:
            return
        summaries = map(Summary._make, self._table.rows()[[row for row, _ in found]].tolist())
        for (row, host), summary in zip(found, summaries, strict=True):
            extremes = self._extremes_of(host, summary)
            if extremes is not None:
                self._extremes[row] = extremes

    def skip(self, tensor: LiveValue, reason: SkipReason) -> TensorSnapshot:
        """The facts of a tensor without reading its elements."""
        if isinstance(tensor, str):
            return TensorSnapshot(tensor, (), 0, reason)
        host = _host_tensor(tensor)
        return TensorSnapshot(host.element.dtype, host.shape, 0, reason)

    def summaries(self, entries: Sequence[TensorSnapshot]) -> list[Summary | None]:
        """The summaries of tensors taken in this step; None for complex tensors, or if none were requested."""
        table, make, known = self._table, Summary._make, self._fixed_summaries
        known.extend(map(make, self._fixed.rows()[len(known) :].tolist()))
        asked = sorted({taken.row for taken in entries if taken.table is table})  # other rows belong to blocks
        rows = dict(zip(asked, map(make, table.rows()[asked].tolist()), strict=True)) if asked else {}
        found = [
            rows[taken.row] if taken.table is table else (None if taken.table is None else known[taken.row])
            for taken in entries
        ]
        if self._digests is not None:
            for taken in entries:
                if taken.digest >= 0:
                    taken.others = dict(self._digests.digests(taken.digest))
        if self._device_extremes:
            for taken, summary in zip(entries, found, strict=True):
                host = self._hosts.get(id(taken))
                if host is not None and summary is not None:
                    taken.extremes = self._extremes_of(host, summary)
        return found

    def finish_step(self) -> None:
        """Nothing to do, because everything is read at once."""

    def clear(self) -> None:
        self._table.clear()
        if self._digests is not None:
            self._digests.clear()
        self._kept.clear()
        self._hosts.clear()
        self._extremes.clear()
        self._generation += 1

    def _extremes_of(self, host: HostTensor, summary: Summary) -> Extremes | None:
        if has_device_extremes(summary, is_float="float" in host.element.dtype):
            return None
        if not host.extremes:
            elements = widened_elements(host.raw(), host.element, host.shape)
            host.extremes.append(device_extremes(elements, summary))
        return host.extremes[0]

    def _summarise(self, host: HostTensor, taken: TensorSnapshot) -> None:
        if host.fixed and host.row < 0:
            host.row = self._added(host, self._fixed)
        row = host.row if host.fixed else self._row_of(host)
        if row >= 0:
            taken.table = self._fixed if host.fixed else self._table
            taken.row = row

    def _digest_of(self, host: HostTensor, digests: DigestBatch) -> int:
        """The number of a tensor's digests in this step; the tensor is added to the batch if necessary."""
        generation, number = host.digest
        if generation != self._generation:
            number = digests.add(host.pointer, host.size, host.element.storage.itemsize)
            host.digest = self._generation, number
        return number

    def _row_of(self, host: HostTensor) -> int:
        """The row of a tensor's summary in the table of the step; -1 if it has none."""
        if host.fixed:
            return self._added(host, self._table)  # `host.row` belongs to another table
        if host.row < 0 or host.generation != self._generation:
            host.row = self._added(host, self._table)
            host.generation = self._generation
        return host.row

    def _added(self, host: HostTensor, table: SummaryTable) -> int:
        element = host.element
        if element.code is not None:
            return table.add(host.pointer, element.code, host.count)
        if element.known_to_numpy:
            return -1  # a complex type, which has no order
        wide = np.ascontiguousarray(self._elements_of(host, host.count))
        return table.add(wide.ctypes.data, DTYPE_CODES[wide.dtype.name], host.count)

    def _elements_of(self, host: HostTensor, count: int) -> npt.NDArray[Any]:
        element = host.element
        if count != host.count:
            # Copied, because the sample is kept longer than the tensor.
            first = count if element.bits >= 8 else element.size(count)
            sample: npt.NDArray[Any] = widened_elements(host.raw()[:first], element, (count,)).copy()
            return sample
        elements = widened_elements(host.raw(), element, host.shape)
        return elements if host.stays or not element.known_to_numpy else elements.copy()


@dataclass(frozen=True, slots=True)
class HostRuntime:
    """A `Runtime` whose tensors are in the memory of this process."""

    framework: str
    framework_version: str
    device_target: str

    def reader(self, plan: DumpPlan) -> NumpyReader:
        return NumpyReader.of_plan(plan)


def _host_tensor(tensor: HostTensor | onnxruntime.OrtValue | npt.NDArray[Any]) -> HostTensor:
    if isinstance(tensor, HostTensor):
        return tensor
    if isinstance(tensor, np.ndarray):
        return HostTensor.of_array(tensor)
    return HostTensor.of_ort_value(tensor)
