"""Takes summaries and copies of tensors on an accelerator, with the few operations that the capture needs of each kind of device."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from opdump.adapters.torch.isolation import no_active_modes
from opdump.adapters.torch.memory import CODES, NAMES, elements_of, widened
from opdump.adapters.torch.private_names import negated_view
from opdump.kernels import Summary, summarise

# The device operations that the capture needs, for each kind of device that PyTorch supports.
#
# A device executes work from queues (streams), to which the host only adds. So an asynchronous copy is complete only after the host has
# waited for the stream that it was queued on.


class Accelerator:
    """One kind of device (`cuda`, `xpu`, `mps`, `npu`). This base class is for devices without streams: one queue, blocking copies."""

    copies_in_background = False
    """Whether copies into `host_memory` are asynchronous."""
    graphs: tuple[type[Any], ...] = ()
    """Classes whose `replay` runs a recorded graph."""

    def current_stream(self, device: torch.device) -> Hashable:
        """The stream that the program uses now in this thread."""
        return device

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue work on `stream` within the block."""
        return nullcontext()

    def wait(self, stream: Any) -> None:
        """Block until all work queued on `stream` is done."""

    def is_capturing(self) -> bool:
        """Whether the work of this thread is now recorded into a graph instead of executed."""
        return False

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device can write into, pinned if possible."""
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


class StreamAccelerator(Accelerator):
    """A device with streams, by its module in torch (`torch.cuda`, `torch.xpu`, `torch.npu`)."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._asks_graphs = getattr(module, "is_current_stream_capturing", None)
        self._is_in_use = getattr(module, "is_initialized", None)
        self.copies_in_background = True
        found = (getattr(module, name, None) for name in ("CUDAGraph", "XPUGraph", "NPUGraph"))
        self.graphs = tuple(graph for graph in found if graph is not None)

    def current_stream(self, device: torch.device) -> Hashable:
        stream: Hashable = self._module.current_stream(device)
        return stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def wait(self, stream: Any) -> None:
        stream.synchronize()

    def is_capturing(self) -> bool:
        if self._asks_graphs is None or not (self._is_in_use is None or self._is_in_use()):
            # Do not query a device that the program does not use: the query would initialise it. In a child forked from a process
            # that uses the device, the query is an error.
            return False
        return bool(self._asks_graphs())

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.copies_in_background:
            try:
                return torch.empty_strided(size, stride, dtype=dtype, device="cpu", pin_memory=True)
            except (RuntimeError, NotImplementedError):  # no pinned memory on this device: copies block
                self.copies_in_background = False
        return super().host_memory(size, stride, dtype)


class Accelerators:
    """The devices of this process, by kind."""

    reads_host = True
    """Whether `cpu` tensors lie in host memory that can be read in place."""

    def __init__(self) -> None:
        self._known: dict[str, Accelerator] = {}

    def of(self, tensor: torch.Tensor) -> Accelerator | None:
        """The accelerator that holds a tensor; None for the host."""
        kind = tensor.device.type
        return None if kind == "cpu" else self._of_kind(kind)

    def capturing(self) -> Accelerator | None:
        """The accelerator whose graphs the program may record; None if this build of PyTorch supports no such device.

        It does not check whether the machine has the device: querying CUDA can make it unusable in processes forked later.
        """
        kind = _built_for()
        accelerator = None if kind is None else self._of_kind(kind)
        return accelerator if isinstance(accelerator, StreamAccelerator) else None

    def _of_kind(self, kind: str) -> Accelerator:
        found = self._known.get(kind)
        if found is None:
            # Some kinds have no module (`privateuseone` until it is renamed).
            module = getattr(torch, kind, None)
            has_streams = all(hasattr(module, name) for name in ("current_stream", "stream"))
            found = self._known[kind] = StreamAccelerator(module) if has_streams else Accelerator()
        return found


def _built_for() -> str | None:
    if torch.version.cuda or torch.version.hip:
        return "cuda"  # before PyTorch 2.7, the call below raises if a CUDA build finds no device
    device: torch.device | None = torch.accelerator.current_accelerator()
    return None if device is None else device.type


# Computes the summary of a tensor on its device: one row of numbers per block of elements; the host combines the rows.
#
#     total squares max min positive negative nan positive_inf negative_inf
#
# Blocks limit the temporaries: a block has one float64 copy, which is squared in place last. The counts of a block are far below 2**53,
# so float64 holds them exactly. Max and min of 64-bit integers are stored as bits. No operator here uses a vendor library: if a program
# requires deterministic algorithms, PyTorch refuses those of CUDA (`dot`).

BLOCK = 1 << 20
"""Elements per block: 9 MiB of temporaries."""
WIDTH = 9
NARROW = 6
"""Columns of the rows of integer types, which have no NaN or infinities."""

_WIDE = torch.float64
_INT64_MIN = -(2**63)
_LOW_32 = 0xFFFFFFFF
_SMALL_FLOATS = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)


def blocks_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements as one-dimensional views, in any order. If no such view exists, copies, one block at a time."""
    count = tensor.numel()
    if is_dense(tensor):
        flat = torch.as_strided(tensor, (count,), (1,), tensor.storage_offset())
        yield from (flat,) if count <= BLOCK else flat.split(BLOCK)
    elif count <= BLOCK:
        yield tensor.reshape(-1)
    elif tensor.shape[0] == 1:
        yield from blocks_of(tensor[0])
    else:
        rows = max(1, BLOCK * tensor.shape[0] // count)
        for part in tensor.split(rows):
            yield from blocks_of(part)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one contiguous range of memory, each once, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def queue_row(block: torch.Tensor, row: torch.Tensor, *, low_precision: bool) -> None:
    """Queue the computation of a one-dimensional block's numbers into `row`: WIDTH float64 cells for floats, NARROW for others.

    With `low_precision`, floats are summed in their own type.
    """
    if block.dtype in _SMALL_FLOATS:
        block = block.to(torch.float32)
    if block.dtype.is_floating_point:
        torch.stack(_of_floats(block, low_precision=low_precision), out=row)
    else:
        torch.stack(_of_whole_numbers(block), out=row)


def _of_floats(block: torch.Tensor, *, low_precision: bool) -> list[torch.Tensor]:
    values = block if low_precision else block.to(_WIDE, copy=True)
    least, greatest = torch.aminmax(values)
    total, positive, negative = values.sum(), _count(values.gt(0)), _count(values.lt(0))
    # In place only if the memory is the capture's own copy.
    squares = (values.square() if low_precision else values.square_()).sum()
    del values
    return [
        *(total, squares, greatest, least, positive, negative),
        _count(block.ne(block)),
        _count(block.eq(math.inf)),
        _count(block.eq(-math.inf)),
    ]


def _count(which: torch.Tensor) -> torch.Tensor:
    return which.sum(dtype=_WIDE)


def _of_whole_numbers(block: torch.Tensor) -> list[torch.Tensor]:
    has_64_bits = block.dtype in (torch.int64, torch.uint64)
    # Few kernels support unsigned types wider than 8 bits.
    if block.dtype is torch.uint16:
        block = block.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    elif block.dtype is torch.uint32:
        block = block.view(torch.int32).to(torch.int64).bitwise_and_(_LOW_32)
    extremes: tuple[torch.Tensor, torch.Tensor] | None = None
    if block.dtype is torch.uint64:
        bits = block.view(torch.int64)
        # Flipping the sign bit maps the unsigned order to the signed one; `summary_of` reverses it.
        extremes = torch.aminmax(bits.bitwise_xor(_INT64_MIN))
        values = bits.bitwise_right_shift(32).bitwise_and_(_LOW_32).to(_WIDE).mul_(2.0**32)
        values += bits.bitwise_and(_LOW_32)
    else:
        if has_64_bits:
            extremes = torch.aminmax(block)
        values = block.to(_WIDE, copy=True)
    if extremes is None:
        least, greatest = torch.aminmax(values)
    else:
        least, greatest = (extreme.view(_WIDE) for extreme in extremes)
    total, positive, negative = values.sum(), _count(values.gt(0)), _count(values.lt(0))
    return [total, values.square_().sum(), greatest, least, positive, negative]


def summary_of(rows: npt.NDArray[np.float64], count: int, dtype: torch.dtype) -> tuple[Summary, tuple[int, int] | None]:
    """The summary of a tensor of `count` elements from the rows of its blocks and, for 64-bit integers, the exact max and min."""
    positive = negative = nan = positive_inf = negative_inf = 0
    is_float = dtype.is_floating_point
    for row in rows.tolist():
        positive += int(row[4])
        negative += int(row[5])
        if is_float:
            nan += int(row[6])
            positive_inf += int(row[7])
            negative_inf += int(row[8])
    exact: tuple[int, int] | None = None
    if dtype in (torch.int64, torch.uint64):
        bits = np.ascontiguousarray(rows[:, 2:4]).view(np.int64)
        exact = int(bits[:, 0].max()), int(bits[:, 1].min())
        if dtype is torch.uint64:
            exact = exact[0] - _INT64_MIN, exact[1] - _INT64_MIN
        greatest, least = map(float, exact)
    else:
        # numpy's max and min return NaN if there is one. Adding 0.0 removes the sign of a zero.
        greatest, least = float(rows[:, 2].max()) + 0.0, float(rows[:, 3].min()) + 0.0
    return (
        Summary(
            count=float(count),
            nan=float(nan),
            positive_inf=float(positive_inf),
            negative_inf=float(negative_inf),
            zero=float(count - positive - negative - nan),
            negative=float(negative),
            positive=float(positive),
            max=greatest,
            min=least,
            sum=_added(rows[:, 0]),
            sum_squares=_added(rows[:, 1]),
        ),
        exact,
    )


def _added(column: npt.NDArray[np.float64]) -> float:
    values: Sequence[float] = column.tolist()
    # fsum raises for infinities of both signs, and for sums that overflow.
    return math.fsum(values) if all(map(math.isfinite, values)) and abs(sum(values)) < math.inf else sum(values)


# All device work is queued on the stream that the program uses at that moment, so it runs after the operator and before anything that
# overwrites the tensor; nothing is synchronised at each operator. Each stream has its own rows, and nothing here is used on two streams.
# `finish` copies the rows of each stream to the host on that stream and waits for it once; then the copies of elements are complete, too.
#
# If a device cannot summarise a type (some have no float64), the host does it with the native summary, and `refusals` lists this.

_CHUNK = 1024
"""Rows per device tensor."""
_PENDING_LIMIT = 2**30
"""Bytes of pending copies beyond which they should be completed before the step ends."""
_PROBES = ([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.5, -2.0, 3.0], [0.0, -2.0, 1.5, 0.5])
"""Test values for a type: the device is used for it only if its summary of these equals the host's."""
_REFUSALS = (RuntimeError, NotImplementedError, TypeError)
"""What PyTorch raises if a device cannot do something. Out of memory is a RuntimeError too, on some devices a subclass of it."""


@dataclass(slots=True, eq=False)
class PendingCopy:
    """A queued copy of elements to the host; complete after `DeviceSummaries.finish`."""

    host: torch.Tensor

    def raw(self) -> npt.NDArray[Any]:
        """The elements as summaries and digests of host tensors take them: bfloat16 as its 16 bits, smaller floats widened."""
        name = NAMES[self.host.dtype]
        if name.startswith("float8") or name == "complex32":
            with no_active_modes():
                self.host = self.host.to(torch.float32 if name.startswith("float8") else torch.complex64)
        return elements_of(self.host)

    def to_numpy(self) -> npt.NDArray[Any]:
        """The elements in their shape; bfloat16 and smaller floats widened to float32."""
        raw = self.raw()
        return widened(raw) if self.host.dtype is torch.bfloat16 else raw


@dataclass(slots=True, eq=False)
class _Lane:
    """The rows that were queued on one stream of one device."""

    accelerator: Accelerator
    device: torch.device
    stream: Hashable
    used: int = 0
    arrived: list[npt.NDArray[np.float64]] = field(default_factory=list)
    _chunks: list[torch.Tensor] = field(default_factory=list)
    _rows: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = field(default_factory=list)
    _ordered: list[torch.Tensor] = field(default_factory=list)
    _fetched: int = 0

    def next_row(self, *, wide: bool) -> torch.Tensor:
        """The next free row. It holds zeros or values that are no longer needed."""
        place, row = divmod(self.used, _CHUNK)
        if place == len(self._chunks):
            chunk = torch.zeros(_CHUNK, WIDTH, dtype=torch.float64, device=self.device)
            self._chunks.append(chunk)
            self._rows.append((chunk.unbind(0), chunk[:, :NARROW].unbind(0)))
        self.used += 1
        return self._rows[place][0 if wide else 1][row]

    def order_rows(self) -> None:
        """Queue a copy of the rows that have not been fetched."""
        while self._fetched < self.used:
            place, first = divmod(self._fetched, _CHUNK)
            last = min(_CHUNK, first + self.used - self._fetched)
            accelerator = self.accelerator
            host = accelerator.host_memory((last - first, WIDTH), (WIDTH, 1), torch.float64)
            host.copy_(self._chunks[place][first:last], non_blocking=accelerator.copies_in_background)
            self._ordered.append(host)
            self._fetched += last - first

    def wait(self) -> None:
        self.accelerator.wait(self.stream)
        self.arrived += [elements_of(host).copy() for host in self._ordered]
        self._ordered.clear()

    def clear(self) -> None:
        self.used = self._fetched = 0
        self.arrived.clear()
        self._ordered.clear()

    def rows(self, first: int, last: int) -> npt.NDArray[np.float64]:
        if len(self.arrived) > 1:
            self.arrived = [np.concatenate(self.arrived)]
        return self.arrived[0][first:last]


class _Queued(NamedTuple):
    """A tensor whose summary was queued: rows of a lane, or a copy that the host summarises."""

    elements: int
    dtype: torch.dtype
    lane: _Lane | None
    first: int
    last: int
    copy: PendingCopy | None


class DeviceSummaries:
    """The summaries of one step, on all devices.

    Sums use float64 or, with `low_precision`, the tensor's own type (`device_stat_precision_mode`).
    """

    def __init__(self, *, low_precision: bool, accelerators: Accelerators | None = None) -> None:
        self.accelerators = Accelerators() if accelerators is None else accelerators
        self.waits = 0
        self._low_precision = low_precision
        self._lanes: dict[tuple[torch.device, Hashable], _Lane] = {}
        self._busy: dict[int, _Lane] = {}
        self._queued: list[_Queued] = []
        self._summaries: dict[int, tuple[Summary, tuple[int, int] | None]] = {}
        self._of_host: list[int] = []
        """Handles whose summaries the host still has to compute."""
        self._refused: dict[tuple[str, torch.dtype], str] = {}
        """The reason why a device cannot summarise a type; empty if it can."""
        self._pending = 0

    @contextmanager
    def ordering(self, tensor: torch.Tensor) -> Iterator[_Lane]:
        """Queue the work of the block on the program's current stream, with all of the program's modes off."""
        with no_active_modes():
            device = tensor.device
            accelerator = self.accelerators.of(tensor)
            assert accelerator is not None, "host tensors are read in place"
            stream = accelerator.current_stream(device)
            lane = self._lanes.get((device, stream))
            if lane is None:
                lane = self._lanes[device, stream] = _Lane(accelerator, device, stream)
            with accelerator.on(stream):
                yield lane
            self._busy[id(lane)] = lane

    def add(self, tensor: torch.Tensor) -> int:
        """Queue the summary of a tensor. Pass the returned handle to `summary` after `finish`."""
        with self.ordering(tensor) as lane:
            count, dtype = tensor.numel(), tensor.dtype
            if not self._is_refused(lane, dtype):
                first = lane.used
                try:
                    self._order_rows(lane, tensor)
                    self._queued.append(_Queued(count, dtype, lane, first, lane.used, None))
                    return len(self._queued) - 1
                except _REFUSALS as error:
                    # The device has passed the probe of this type: it is out of memory, or the tensor is too large for it.
                    self._refused[lane.device.type, dtype] = _first_line(error)
            self._queued.append(_Queued(count, dtype, None, 0, 0, self._copied(tensor, lane)))
            self._of_host.append(len(self._queued) - 1)
            return len(self._queued) - 1

    def copy(self, tensor: torch.Tensor, first: int = 0) -> PendingCopy:
        """Queue a copy of the elements, or of only the `first` ones in row-major order, as one axis."""
        with self.ordering(tensor) as lane:
            return self._copied(first_elements(tensor, first) if first else tensor, lane)

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A blocking copy to the host of a tensor of any layout; None if the device cannot even copy it."""
        with self.ordering(tensor) as lane:
            tensor = tensor.detach()
            conjugated, negated = tensor.is_conj(), tensor.is_neg()
            try:
                if tensor.layout is torch.strided and (conjugated or negated):
                    # Copy the memory as stored; the host conjugates and negates.
                    tensor = tensor.conj() if conjugated else tensor
                    host = self._copied(negated_view(tensor) if negated else tensor, lane).host
                else:
                    conjugated = negated = False
                    host = tensor.to("cpu", copy=True)
            except _REFUSALS:
                return None
            lane.accelerator.wait(lane.stream)
            self.waits += 1
            host = host.conj() if conjugated else host
            return negated_view(host) if negated else host

    @property
    def must_finish(self) -> bool:
        """Whether pending copies hold so much host memory that they should be completed before the step ends."""
        return self._pending > _PENDING_LIMIT

    def finish(self) -> None:
        """Wait once for each stream that was used. Then everything is on the host."""
        if self._busy:
            with no_active_modes():
                for lane in self._busy.values():
                    with lane.accelerator.on(lane.stream):
                        lane.order_rows()
                for lane in self._busy.values():
                    lane.wait()
                    self.waits += 1
            self._busy.clear()
        for handle in self._of_host:
            copy = self._queued[handle].copy
            assert copy is not None, "the host summarises only copies"
            self._summaries[handle] = _summary_on_host(copy), None
            self._queued[handle] = self._queued[handle]._replace(copy=None)
        self._of_host.clear()
        self._pending = 0

    def summary(self, handle: int) -> Summary:
        return self._made(handle)[0]

    def whole_extremes(self, handle: int) -> tuple[int, int] | None:
        """The exact max and min of a tensor of 64-bit integers; None for other types."""
        return self._made(handle)[1]

    def refusals(self) -> list[str]:
        return [
            f"{kind}: statistics of {NAMES[dtype]} were computed on the host, from a copy of each tensor: {reason}"
            for (kind, dtype), reason in self._refused.items()
            if reason
        ]

    def clear(self) -> None:
        for lane in self._lanes.values():
            lane.clear()
        self._queued.clear()
        self._summaries.clear()
        self._of_host.clear()
        self._pending = 0

    def _made(self, handle: int) -> tuple[Summary, tuple[int, int] | None]:
        made = self._summaries.get(handle)
        if made is None:
            count, dtype, lane, first, last, _ = self._queued[handle]
            assert lane is not None, "the host computes its summaries in `finish`"
            made = self._summaries[handle] = summary_of(lane.rows(first, last), count, dtype)
        return made

    def _order_rows(self, lane: _Lane, tensor: torch.Tensor) -> None:
        low = self._low_precision
        for block in blocks_of(tensor):
            queue_row(block, lane.next_row(wide=tensor.dtype.is_floating_point), low_precision=low)

    def _copied(self, tensor: torch.Tensor, lane: _Lane) -> PendingCopy:
        if is_dense(tensor):
            return PendingCopy(self._transferred(tensor, lane))
        try:
            return PendingCopy(self._transferred(tensor.contiguous(), lane))
        except torch.OutOfMemoryError:
            # Copy the whole extent of the tensor, with its gaps: this needs no device memory.
            host = self._transferred(torch.as_strided(tensor, (_extent(tensor),), (1,), tensor.storage_offset()), lane)
            return PendingCopy(host.as_strided(tensor.shape, tensor.stride()))

    def _transferred(self, source: torch.Tensor, lane: _Lane) -> torch.Tensor:
        accelerator = lane.accelerator
        host = accelerator.host_memory(tuple(source.shape), source.stride(), source.dtype)
        host.copy_(source, non_blocking=accelerator.copies_in_background)
        self._pending += host.numel() * host.element_size()
        return host

    def _is_refused(self, lane: _Lane, dtype: torch.dtype) -> bool:
        """Whether the device cannot summarise the type, or differs from the host; probed once."""
        key = lane.device.type, dtype
        if key not in self._refused:
            self._refused[key] = self._probe(lane, dtype)
        return bool(self._refused[key])

    def _probe(self, lane: _Lane, dtype: torch.dtype) -> str:
        for numbers in _PROBES if dtype.is_floating_point else _PROBES[1:]:
            first = lane.used
            try:
                accelerator = lane.accelerator
                host = accelerator.host_memory((len(numbers),), (1,), dtype)
                host.copy_(_probe_tensor(numbers, dtype))
                # From pinned memory: the program may forbid synchronising copies (`torch.cuda.set_sync_debug_mode`).
                on_device = torch.empty(len(numbers), dtype=dtype, device=lane.device)
                on_device.copy_(host, non_blocking=accelerator.copies_in_background)
                self._order_rows(lane, on_device)
                lane.order_rows()
                lane.wait()
            except _REFUSALS as error:
                return _first_line(error)
            found, _ = summary_of(lane.rows(first, lane.used), len(numbers), dtype)
            if str(found) != str(_summary_on_host(PendingCopy(host))):  # as text, because NaN != NaN
                return f"its summary is {found} for {numbers}"
        return ""


def first_elements(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` elements in row-major order, as one axis. Copies at most these and the rest of one row."""
    while tensor.dim() > 1:
        rest = tensor[0].numel()
        rows = -(-count // rest)
        if rows > 1:
            tensor = tensor[:rows]
            break
        tensor = tensor[0]
    return tensor.reshape(-1)[:count]


def _extent(tensor: torch.Tensor) -> int:
    """The number of elements in memory from the tensor's first to its last one, including gaps."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _probe_tensor(numbers: list[float], dtype: torch.dtype) -> torch.Tensor:
    values = torch.tensor(numbers, dtype=torch.float64, device="cpu")
    if dtype is torch.bool or not (dtype.is_floating_point or dtype.is_signed):
        values = values.abs()
    return values.to(torch.float32).to(dtype) if dtype.is_floating_point and dtype.itemsize == 1 else values.to(dtype)


def _summary_on_host(copy: PendingCopy) -> Summary:
    raw = copy.raw()
    return summarise(raw, NAMES[copy.host.dtype] if copy.host.dtype in CODES else None)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]
