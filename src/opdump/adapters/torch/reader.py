"""Reads live tensors without running a torch operator on the host.

A dense CPU tensor is read in place through its address: native code computes the summary, and numpy copies the values.
Nothing is dispatched, so reading cannot change what torch does. Other tensors (sparse, quantised, conjugated, on a device)
are made dense first, below autograd and outside the capture mode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from opdump.adapters.host import HostTensor
from opdump.adapters.torch.device import Accelerators, DeviceSummaries, PendingCopy
from opdump.adapters.torch.isolation import never_seen
from opdump.adapters.torch.memory import (
    CODES,
    NAMES,
    PLAIN_CLASSES,
    Storages,
    dtype_name,
    elements_of,
    is_opaque,
    shape_of,
    widened,
)
from opdump.adapters.torch.private_names import is_functorch, no_subclass_functions, without_modes
from opdump.kernels import BatchSummarizer, DigestBatch, SeenTensors, Summary, SummaryTable, summarise
from opdump.recorder import Elements, LiveTensor, TensorSnapshot
from opdump.records import IO, OpRecord, SkipReason, StatisticValue
from opdump.statistics import ElementStatistics, Extremes, device_extremes
from opdump.step_table import NO_SUMMARY

_NOWHERE = frozenset({"no storage", "unsupported layout"})
"""The skip reasons of tensors without memory, or without strided memory."""
WORTH_KNOWING = 128 * 1024
"""Below this many bytes, reading a tensor again is cheaper than checking whether it was read before."""
WORTH_KNOWING_DIGEST = 16 * 1024
"""The same limit if tensors are also hashed."""
_DESCRIBES_TENSORS = hasattr(torch.Tensor, "__dlpack_c_exchange_api__") and BatchSummarizer is not None
"""Whether native code can read the properties of a tensor. In older releases Python reads them, which takes longer."""


Given = torch.Tensor | HostTensor | str
"""A tensor, one of another framework, or only the type of a value."""


class TensorReader:
    """Takes summaries and, if requested, copies of the values of live tensors.

    `names` are the requested statistics; those that a summary lacks are computed separately. `sample` limits the values of
    a larger tensor to the first ones (row-major), like `sample_num`; statistics always cover the whole tensor.
    `device_extremes` also computes max and min by the rules of a device, on the host. The summaries of a step are
    collected in tables until `clear`. Without `rereads`, a large tensor that was summarised in this step and not written
    since is not read again.
    """

    @never_seen
    def __init__(
        self,
        *,
        statistics: bool,
        elements: bool,
        names: Sequence[str] = (),
        sample: int | None = None,
        device_extremes: bool = False,
        low_precision_on_device: bool = False,
        accelerators: Accelerators | None = None,
        storages: Storages | None = None,
        rereads: bool = True,
    ) -> None:
        self._statistics = statistics
        self._elements = elements
        self._element_statistics = ElementStatistics(names)
        self._sample = sample
        self._device_extremes = device_extremes
        self._low_precision_on_device = low_precision_on_device
        self.table = SummaryTable(4096)
        """The summaries of the step, one per row."""
        self._without_others: list[tuple[TensorSnapshot, PendingCopy]] = []
        self._device = DeviceSummaries(low_precision=low_precision_on_device, accelerators=accelerators)
        self._accelerators = self._device.accelerators
        self.storages = Storages() if storages is None else storages
        """The memory locations of the tensors of the running step."""
        self.seen_and_place: tuple[Any, Any] = (None, None)
        """What is known about tensors that were read before: the last two arguments of a `BatchSummarizer`."""
        self._taker: Any = None
        """Set if only summaries and digests are requested."""
        alone = self._element_statistics.digests_alone
        self.digests = DigestBatch(alone) if alone and statistics else None
        """Digests of the tensors that `_taker` reads."""
        self._by_row: Mapping[int, Mapping[str, StatisticValue]] = {}
        """The last result of `digests.by_row()`."""
        summaries_alone = (
            not elements and not device_extremes and (self.digests is not None or not self._element_statistics)
        )
        if statistics and summaries_alone and self._accelerators.reads_host and _DESCRIBES_TENSORS:
            prototype = TensorSnapshot("", (), 0)
            if not rereads:
                least = WORTH_KNOWING if self.digests is None else WORTH_KNOWING_DIGEST
                self.storages.seen = SeenTensors(least)
                self.seen_and_place = self.storages.seen, self.storages.read_once
            self._taker = BatchSummarizer(self.table, prototype, PLAIN_CLASSES, self.digests, *self.seen_and_place)

    @property
    def takes_summaries_alone(self) -> bool:
        """Whether only a summary and digests are taken of each tensor."""
        return self._taker is not None

    @property
    def takes_elements_too(self) -> bool:
        """Whether only a summary and a copy of all values are taken of each tensor on the host."""
        is_plain = self._sample is None and not (self._device_extremes or self._element_statistics)
        return self._elements and self._statistics and is_plain and self._accelerators.reads_host and _DESCRIBES_TENSORS

    def block_summaries(self) -> npt.NDArray[np.float64]:
        rows = self.table.rows()
        return np.concatenate([rows, [NO_SUMMARY]]) if len(rows) else np.array([NO_SUMMARY])

    def block_extremes(self) -> Mapping[int, Extremes]:
        return {}

    def block_others(self) -> Mapping[int, Mapping[str, StatisticValue]]:
        digests = self.digests
        if digests is not None and len(self._by_row) != len(digests):  # each row has at most one digest
            self._by_row = digests.by_row()
        return self._by_row

    def take(self, tensor: torch.Tensor) -> TensorSnapshot:
        if self._taker is not None:
            entries: list[TensorSnapshot] = []
            self._taker.take_all(None, "input", ((0, "", tensor, "", ""),), entries, self._take_other)
            return self._placed(entries[0], tensor)
        return self._placed(self._take_other(tensor, ""), tensor)

    def take_all(self, op: OpRecord, io: IO, lives: Iterable[LiveTensor], entries: list[TensorSnapshot]) -> bool:
        """Read the inputs or outputs of an operator. False, without reading, if more than summaries is requested."""
        if self._taker is None:
            return False
        if not isinstance(lives, (list, tuple)):
            lives = list(lives)
        place = len(entries)
        self._taker.take_all(op, io, lives, entries, self._take_other)
        of_plain = self.storages.memory_of_plain
        for live in lives:
            taken, tensor = entries[place], live[2]
            place += 1
            if tensor.__class__ in PLAIN_CLASSES and not taken.skip:
                taken.memory = of_plain(tensor)
            else:
                self._placed(taken, tensor)
        return True

    def _placed(self, taken: TensorSnapshot, tensor: torch.Tensor) -> TensorSnapshot:
        if taken.skip not in _NOWHERE and isinstance(tensor, torch.Tensor):
            taken.memory = self.storages.memory_of(tensor)
        return taken

    def _take_other(self, tensor: Given, skip: SkipReason) -> TensorSnapshot:
        if not isinstance(tensor, torch.Tensor):
            return self._take_foreign(tensor, skip)
        if skip:
            return self._facts(tensor, skip)
        if tensor.__class__ in PLAIN_CLASSES:
            return self._take_any(tensor)
        # A subclass may override the properties; torch's own describe the memory.
        with no_subclass_functions():
            return self._take_any(tensor)

    def skip(self, tensor: Given, reason: SkipReason) -> TensorSnapshot:
        """The properties of a tensor whose values are not to be read."""
        if not isinstance(tensor, torch.Tensor):
            return self._take_foreign(tensor, reason)
        return self._placed(self._facts(tensor, reason), tensor)

    def _take_foreign(self, tensor: HostTensor | str, skip: SkipReason) -> TensorSnapshot:
        """A tensor of another framework, or only the name of a type."""
        if isinstance(tensor, str):
            return TensorSnapshot(tensor, (), 0, skip or "opaque")
        element = tensor.element
        dtype = getattr(torch, element.dtype, None)
        if skip or element.bits < 8 or not isinstance(dtype, torch.dtype):
            return TensorSnapshot(element.dtype, tensor.shape, 0, skip or "opaque")
        if tensor.count == 0:
            return TensorSnapshot(element.dtype, tensor.shape, 0, "empty")
        with without_modes():
            return self._take_any(torch.from_numpy(tensor.raw()).view(dtype).reshape(tensor.shape))

    def _facts(self, tensor: torch.Tensor, reason: SkipReason) -> TensorSnapshot:
        return TensorSnapshot(dtype_name(tensor), shape_of(tensor), 0, reason)

    def without_elements(self) -> TensorReader:
        """A reader that takes the same summaries as this one, and nothing else."""
        low = self._low_precision_on_device
        return TensorReader(
            statistics=True,
            elements=False,
            low_precision_on_device=low,
            accelerators=self._accelerators,
            storages=self.storages,
        )

    def leave_elements(self) -> None:
        """Stop copying values."""
        self._elements = False

    def of_elements(self) -> TensorReader:
        """A reader that copies all values of the same tensors, and takes no statistics."""
        return TensorReader(statistics=False, elements=True, accelerators=self._accelerators)

    def memory_of(self, tensor: Given) -> object:
        """The address of the storage of a dense tensor; None if it has no storage of its own."""
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout is not torch.strided
            or tensor.is_nested
            or is_lazy(tensor)
        ):
            return None
        try:
            storage = tensor.untyped_storage()
            return None if _is_nowhere(storage) else storage.data_ptr() or None
        except (RuntimeError, NotImplementedError):  # a wrapper around other tensors
            return None

    def summaries(self, entries: Sequence[TensorSnapshot]) -> list[Summary | None]:
        """The summaries of tensors read in this step; None for complex tensors, and if none were requested."""
        if not entries:
            return []
        table, device, make = self.table, self._device, Summary._make
        if self._device_extremes:
            for taken in entries:
                if taken.table is device:
                    taken.extremes = device.whole_extremes(taken.row)
        others = self.block_others()
        if others:
            for taken in entries:
                if taken.table is table and taken.row in others:
                    taken.others = dict(others[taken.row])
        rows = [make(row) for row in table.rows().tolist()]
        return [
            rows[taken.row] if taken.table is table else (None if taken.table is None else device.summary(taken.row))
            for taken in entries
        ]

    def finish_step(self) -> None:
        """Bring all results that are still on a device to the host, which waits once per stream."""
        self._device.finish()
        for taken, copy in self._without_others:
            taken.others = self._element_statistics.of(copy.raw(), copy.to_numpy)
        self._without_others.clear()

    @property
    def must_finish(self) -> bool:
        return self._device.must_finish

    def clear(self) -> None:
        self.table.clear()
        self.storages.seen.clear()
        if self.digests is not None:
            self.digests.clear()
            self._by_row = {}
        self._device.clear()
        self._without_others.clear()

    @property
    def warnings(self) -> list[str]:
        """What the user should know about how the tensors were read."""
        return self._device.refusals()

    @property
    def waits(self) -> int:
        return self._device.waits

    def _take_any(self, tensor: torch.Tensor) -> TensorSnapshot:
        dtype = dtype_name(tensor)
        if is_lazy(tensor):
            return TensorSnapshot(dtype, (), 0, "no storage")
        if tensor.is_nested:
            return TensorSnapshot(dtype, (), 0, "unsupported layout")
        taken = TensorSnapshot(dtype, tuple(tensor.shape), tensor.numel() * tensor.element_size())
        if tensor.is_meta or is_functorch(tensor) or _has_no_storage(tensor):
            taken.skip = "no storage"
            return taken
        if tensor.numel() == 0:
            taken.skip = "empty"
            return taken
        if is_opaque(tensor):
            taken.skip = "opaque"
            return taken
        accelerator = self._accelerators.of(tensor)
        if accelerator is not None:
            if accelerator.is_capturing():
                taken.skip = "device graph"
                return taken
            with self._device.ordering(tensor):
                dense = _dense(tensor, on_device=True)
            if dense is None:  # the device lacks the kernel, or memory for the result
                host = self._device.on_host(tensor)
                accelerator, dense = None, None if host is None else _dense(host)
        else:
            dense = _dense(tensor)
        if dense is None:
            taken.skip = "unsupported layout"
            return taken
        if accelerator is None:
            self._take_host(dense, taken)
        else:
            self._take_device(dense, taken)
        return taken

    def _take_host(self, dense: torch.Tensor, taken: TensorSnapshot) -> None:
        code = CODES.get(dense.dtype)
        if self._element_statistics and code is not None:
            raw = elements_of(dense)
            taken.others = self._element_statistics.of(
                raw, lambda: widened(raw) if dense.dtype is torch.bfloat16 else raw
            )
        if self._device_extremes and code is not None:
            self._take_extremes(dense, taken)
        elif self._statistics and code is not None:
            taken.table = self.table
            if dense.is_contiguous():
                taken.row = self.table.add(dense.data_ptr(), code, dense.numel())
            else:
                taken.row = self.table.add_strided(dense.data_ptr(), code, tuple(dense.shape), dense.stride())
        if self._elements:
            sample = self._sample_of(dense)
            raw = elements_of(dense)
            if sample:
                raw = raw.flat[:sample]
            is_wide = dense.dtype is torch.bfloat16
            taken.elements = Elements(widened(raw) if is_wide else raw, sample, is_lent=not (sample or is_wide))

    def _sample_of(self, dense: torch.Tensor) -> int:
        """The number of values to copy of a tensor that is larger than the sample; 0 for all values."""
        return self._sample if self._sample is not None and dense.numel() > self._sample else 0

    def _take_extremes(self, dense: torch.Tensor, taken: TensorSnapshot) -> None:
        """Take the summary at once, because the extremes may need the values as well."""
        elements = elements_of(dense)
        name = NAMES[dense.dtype]
        summary = summarise(elements, name)
        taken.extremes = device_extremes(widened(elements) if name == "bfloat16" else elements, summary)
        taken.others = {**(taken.others or {}), **self._element_statistics.from_summary(summary)}
        taken.settle(summary)

    def _take_device(self, dense: torch.Tensor, taken: TensorSnapshot) -> None:
        # 8-bit floats are widened block by block, or on the host.
        is_summed = dense.dtype in CODES or NAMES[dense.dtype].startswith("float8")
        if self._statistics and is_summed:
            taken.table = self._device
            taken.row = self._device.add(dense)
        looked_at = bool(self._element_statistics) and is_summed
        sample = self._sample_of(dense) if self._elements else 0
        if looked_at or (self._elements and not sample):
            copy = self._device.copy(dense)
            if looked_at:
                self._without_others.append((taken, copy))
            if self._elements:
                taken.elements = Elements(copy)
        if sample:
            taken.elements = Elements(self._device.copy(dense, sample), sample)
        if not self._elements and self._device.must_finish:
            # Copies for further statistics, or for summaries that the device cannot compute, must be on the host when the
            # recorder continues.
            self.finish_step()


def _has_no_storage(tensor: torch.Tensor) -> bool:
    # A wrapper subclass (fake, functional, distributed tensors) has a shape but no memory of its own. Its storage begins at
    # address 0, so that its address equals its offset in bytes.
    if tensor.layout is not torch.strided:
        return False
    try:
        if tensor.numel() == 0:
            return False
        if _is_nowhere(tensor.untyped_storage()):
            return True
        return tensor.data_ptr() == tensor.storage_offset() * tensor.element_size()
    except (RuntimeError, NotImplementedError):  # a tensor without a storage has no address to read
        return True


def _is_nowhere(storage: torch.UntypedStorage) -> bool:
    """Whether it has only a size, like the storage of a fake tensor, which warns when its address is read."""
    return storage.device.type == "meta"


def _dense(tensor: torch.Tensor, *, on_device: bool = False) -> torch.Tensor | None:
    """The same values as a strided tensor of a dtype that can be read; None if torch cannot convert it.

    On a device, dtypes that numpy lacks are kept.
    """
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
            name = "" if on_device else NAMES[tensor.dtype]
            if name.startswith("float8"):
                return tensor.to(torch.float32)
            if name == "complex32":
                return tensor.to(torch.complex64)
        except (RuntimeError, NotImplementedError, IndexError):  # IndexError: a sparse tensor with inconsistent parts
            return None
    return tensor
