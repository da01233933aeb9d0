"""Reads live tensors without running a single torch operator on the host.

The memory of a dense CPU tensor is read in place through its address: the native core takes the summary, and a copy of the
elements is one numpy copy. Nothing is dispatched, so nothing that torch does can change because somebody looked. What is
not dense (sparse, quantised, conjugated, on a device) is made dense first, below autograd and outside the capture mode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from opdump.kernels import DTYPE_CODES, Summary, SummaryTable, TensorTaker, summarise
from opdump.recorder import LiveTensor, Taken
from opdump.records import IO, OpRecord, SkipReason
from opdump.statistics import SummaryStatistics, canonical_category, device_extremes, digests_of

from .device import DeviceSummaries, PendingCopy

_NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        *("float16", "bfloat16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("complex32", "complex64", "complex128", "qint8", "quint8", "qint32"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
_CODES = {dtype: DTYPE_CODES[name] for dtype, name in _NAMES.items() if name in DTYPE_CODES}
_NUMPY: dict[torch.dtype, npt.DTypeLike] = {
    dtype: (np.uint16 if name == "bfloat16" else np.dtype(name))
    for dtype, name in _NAMES.items()
    if name in DTYPE_CODES or name in ("complex64", "complex128")
}
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_DESCRIBES_TENSORS = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
"""Older releases lack it: then every tensor is asked for its properties, which gives the same and takes longer."""


class TensorReader:
    """Takes the summary and, where asked, a copy of the elements of live tensors.

    `digests` names the digests to take of every tensor ("md5", "hash"). `sample` limits a tensor to its first elements
    (row-major), as `sample_num` does. `device_extremes` takes max and min by the rules of a device too, on the host. Summaries of one step are collected in tables until `clear`.
    """

    def __init__(
        self,
        *,
        statistics: bool,
        elements: bool,
        digests: Sequence[str] = (),
        sample: int | None = None,
        device_extremes: bool = False,
        low_precision_on_device: bool = False,
    ) -> None:
        self._statistics = statistics
        self._elements = elements
        self._digests = tuple(sorted({canonical_category(name) for name in digests} & {"md5", "hash"}))
        self._sample = sample
        self._device_extremes = device_extremes
        self._low_precision_on_device = low_precision_on_device
        self._table = SummaryTable(4096)
        self._undigested: list[tuple[Taken, PendingCopy]] = []
        self._device = DeviceSummaries(low_precision=low_precision_on_device)
        self._taker: TensorTaker | None = None
        """Where a summary is all that is asked for."""
        summaries_alone = not elements and not self._digests and sample is None and not device_extremes
        if statistics and summaries_alone and _DESCRIBES_TENSORS:
            self._taker = TensorTaker(self._table, Taken("", (), 0), _PLAIN_CLASSES)

    def take(self, tensor: torch.Tensor) -> Taken:
        """Reads one tensor as it is now."""
        if self._taker is not None:
            entries: list[Taken] = []
            self._taker.take_all(None, "input", ((0, "", tensor, "", ""),), entries, self._take_other)
            return entries[0]
        return self._take_other(tensor, "")

    def take_all(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], entries: list[Taken]) -> bool:
        """Reads the tensors of one side of an operator; False, and nothing read, where more than summaries is asked for."""
        if self._taker is None:
            return False
        self._taker.take_all(op, io, lives, entries, self._take_other)
        return True

    def _take_other(self, tensor: torch.Tensor, skip: SkipReason) -> Taken:
        if skip:
            return self.skip(tensor, skip)
        if tensor.__class__ in _PLAIN_CLASSES:
            return self._take_any(tensor)
        # The properties of a subclass may be overridden; what is in memory is asked of torch itself.
        with torch._C.DisableTorchFunctionSubclass():
            return self._take_any(tensor)

    def skip(self, tensor: torch.Tensor, reason: SkipReason) -> Taken:
        """The facts of a tensor whose elements are not to be read."""
        shape = () if tensor.is_nested or is_lazy(tensor) else tuple(tensor.shape)
        return Taken(_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")), shape, 0, reason)

    def without_elements(self) -> TensorReader:
        """A reader of the summaries that this one takes, and of nothing else."""
        low = self._low_precision_on_device
        return TensorReader(statistics=True, elements=False, sample=self._sample, low_precision_on_device=low)

    def memory_of(self, tensor: torch.Tensor) -> object:
        """The storage of a dense tensor, by its address; None for one that has none of its own."""
        if tensor.layout is not torch.strided or tensor.is_nested or is_lazy(tensor):
            return None
        try:
            return tensor.untyped_storage().data_ptr() or None
        except (RuntimeError, NotImplementedError):  # a wrapper around others
            return None

    def summaries(self, entries: Sequence[Taken]) -> list[Summary | None]:
        """The summaries of tensors taken in this step; None for complex tensors and where none were asked for."""
        table, device, make = self._table, self._device, Summary._make
        rows: list[list[float]] = table.rows().tolist()
        return [
            make(rows[taken.row])
            if taken.table is table
            else (None if taken.table is None else device.summary(taken.row))
            for taken in entries
        ]

    def finish_step(self) -> None:
        """Brings what is still on a device to the host: one copy, one synchronisation."""
        self._device.finish()
        for taken, copy in self._undigested:
            raw = _copy_elements(copy.host)
            taken.digests = digests_of(raw, self._digests)
        self._undigested.clear()

    @property
    def must_finish(self) -> bool:
        return self._device.must_finish

    def clear(self) -> None:
        """Forgets the summaries of the step."""
        self._table.clear()
        self._device.clear()

    def _take_any(self, tensor: torch.Tensor) -> Taken:
        dtype = _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        if is_lazy(tensor):
            return Taken(dtype, (), 0, "no storage")
        shape = tuple(tensor.shape) if not tensor.is_nested else ()
        if tensor.is_nested:
            return Taken(dtype, shape, 0, "unsupported layout")
        taken = Taken(dtype, shape, _size(tensor))
        if tensor.is_meta or _is_functorch(tensor) or _has_no_storage(tensor):
            taken.skip = "no storage"
            return taken
        if tensor.numel() == 0:
            taken.skip = "empty"
            return taken
        if tensor.dtype not in _NAMES:
            taken.skip = "opaque"
            return taken
        dense = _dense(tensor)
        if dense is None:
            taken.skip = "unsupported layout"
            return taken
        if self._sample is not None and dense.numel() > self._sample:
            dense = _first_elements(dense, self._sample)
            taken.shape = (self._sample,)
            taken.data_size = self._sample * tensor.element_size()
        if dense.is_cpu:
            self._take_host(dense, taken)
        else:
            self._take_device(dense, taken)
        return taken

    def _take_host(self, dense: torch.Tensor, taken: Taken) -> None:
        code = _CODES.get(dense.dtype)
        if self._device_extremes and code is not None:
            self._take_extremes(dense, taken)
        elif self._statistics and code is not None:
            taken.table = self._table
            if dense.is_contiguous():
                taken.row = self._table.add(dense.data_ptr(), code, dense.numel())
            else:
                taken.row = self._table.add_strided(dense.data_ptr(), code, tuple(dense.shape), dense.stride())
        if self._elements or (self._digests and code is not None):
            raw = _copy_elements(dense)
            if self._digests and code is not None:
                taken.digests = digests_of(raw, self._digests)
            if self._elements:
                taken.array = _widen(raw) if dense.dtype is torch.bfloat16 else raw

    def _take_extremes(self, dense: torch.Tensor, taken: Taken) -> None:
        """The summary now, while the elements that it may not be enough for are there."""
        elements = _elements_of(dense)
        name = _NAMES[dense.dtype]
        summary = summarise(elements, name)
        extremes = device_extremes(_widen(elements) if name == "bfloat16" else elements, summary)
        digests = digests_of(_copy_elements(dense), self._digests) if self._digests else None
        taken.statistics = SummaryStatistics(summary, digests, extremes)

    def _take_device(self, dense: torch.Tensor, taken: Taken) -> None:
        if self._statistics and dense.dtype in _CODES:
            taken.table = self._device
            taken.row = self._device.add(dense)
        digested = bool(self._digests) and dense.dtype in _CODES
        if self._elements or digested:
            copy = self._device.copy(dense)
            if self._elements:
                taken.array = copy
            if digested:
                self._undigested.append((taken, copy))


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_functorch(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _has_no_storage(tensor: torch.Tensor) -> bool:
    # A wrapper subclass (fake, functional, distributed tensors) has a shape but no memory of its own.
    if tensor.layout is not torch.strided:
        return False
    try:
        return tensor.data_ptr() == 0 and tensor.numel() > 0
    except RuntimeError:
        return True


def _dense(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same values as a strided tensor of a type that can be read; None where torch has no such conversion."""
    with torch.no_grad():
        try:
            if tensor.is_quantized:
                return tensor.dequantize()
            if tensor.layout is not torch.strided:
                tensor = tensor.detach().to_dense()
            if tensor.is_conj():
                tensor = tensor.resolve_conj()
            if tensor.is_neg():
                tensor = tensor.resolve_neg()
            name = _NAMES[tensor.dtype]
            if name.startswith("float8"):
                return tensor.to(torch.float32)
            if name == "complex32":
                return tensor.to(torch.complex64)
        except (RuntimeError, NotImplementedError):
            return None
    return tensor


def _first_elements(dense: torch.Tensor, count: int) -> torch.Tensor:
    with torch.no_grad():
        return dense.detach().reshape(-1)[:count]


def _copy_elements(dense: torch.Tensor) -> npt.NDArray[Any]:
    """A C-contiguous copy of the memory; bfloat16 stays in its 16 raw bits."""
    return np.array(_elements_of(dense), order="C", copy=True)


def _elements_of(dense: torch.Tensor) -> npt.NDArray[Any]:
    """The memory itself, which lives as long as the tensor."""
    dtype = np.dtype(_NUMPY[dense.dtype])
    shape, strides = tuple(dense.shape), dense.stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(dense.data_ptr())
    elements: npt.NDArray[Any] = np.ndarray(
        shape, dtype, memoryview(memory), strides=tuple(stride * dtype.itemsize for stride in strides)
    )
    return elements


def _widen(raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return (raw.astype(np.uint32) << 16).view(np.float32)
