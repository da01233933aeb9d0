"""The specification of the compiled `BatchSummarizer` and `SeenTensors` in Python."""

from __future__ import annotations

import copy
import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.kernels.digests import DigestBatch
from opdump.kernels.reference import MOVED_AS, SummaryTable, strided_memory
from opdump.kernels.summary import DTYPE_CODES

# Remembers tensors that were read, so that a tensor is not read again unless it was written.
#
# Writes are detected by the version that a framework counts, and by a fingerprint of the memory. The fingerprint is a sample: the
# first and the last 8 bytes, and 8 at a scattered offset of each page of 4 KiB; at least 64 samples of small memory, and at most
# 1024 of large memory.

_PAGE: Final = 4096
_FEWEST, _MOST = 64, 1024
WORD: Final = 8
"""Bytes of a sample, and the minimum size for a fingerprint."""
View = tuple[int, str, tuple[int, ...], tuple[int, ...]]
"""Address, dtype, shape, strides."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The state of a view when it was read, and the place of its summary."""

    version: int
    fingerprint: bytes
    row: int


class SeenTensors:
    """Sightings of views by the identity of their storage; `len` counts storages. Views of fewer than `least_bytes` are ignored."""

    def __init__(self, least_bytes: int) -> None:
        self.least_bytes = least_bytes
        self._by_storage: dict[int, dict[View, Sighting]] = {}

    def find(self, storage: int, view: View, version: int, fingerprint: bytes) -> Sighting | None:
        """The sighting of this view at this version with this fingerprint."""
        before = self._by_storage.get(storage, {}).get(view)
        return before if before is not None and (before.version, before.fingerprint) == (version, fingerprint) else None

    def add(self, storage: int, view: View, sighting: Sighting) -> None:
        self._by_storage.setdefault(storage, {})[view] = sighting

    def forget(self, storage: int) -> None:
        """Forget a storage that was written."""
        self._by_storage.pop(storage, None)

    def clear(self) -> None:
        """Forget everything: something unknown was written, or the rows and digests no longer exist."""
        self._by_storage.clear()

    def __len__(self) -> int:
        return len(self._by_storage)


def fingerprint_of(address: int, byte_count: int) -> bytes:
    """The fingerprint of `byte_count` bytes, at least 8."""
    memory = np.ctypeslib.as_array((ctypes.c_uint8 * byte_count).from_address(address))
    return bytes(memory[_places(byte_count)])


@lru_cache(maxsize=256)
def _places(byte_count: int) -> npt.NDArray[np.int64]:
    last = byte_count - WORD
    samples = min(max(byte_count // _PAGE, _FEWEST), _MOST)
    stride = max(last // samples, 1)
    scatter = np.random.default_rng(byte_count).integers(0, stride, samples)
    begins = np.minimum(np.arange(samples) * stride + scatter, last)
    begins = np.concatenate(([0, last], begins))
    places: npt.NDArray[np.int64] = begins[:, None] + np.arange(WORD)
    return places


# Summarises all tensors of an operator in one call.
#
# Tensors are read through DLPack's exchange API, a table of C functions that their class offers as `__dlpack_c_exchange_api__`
# (dlpack.h, version 1.3): one call returns address, type, shape and strides, and creates no object.

_CPU = 1
_KINDS = {(0, "int"): (8, 16, 32, 64), (1, "uint"): (8, 16, 32, 64), (2, "float"): (16, 32, 64)}
_NAMES = {(code, bits): f"{name}{bits}" for (code, name), widths in _KINDS.items() for bits in widths}
_NAMES |= {(4, 16): "bfloat16", (6, 8): "bool"}
"""Types by DLPack's code and number of bits."""


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("managed_tensors", ctypes.c_void_p * 3),
        ("describe", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


_Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))


class BatchSummarizer:
    """Reads tensors in place: their summaries become rows of `table`, their types and shapes go into copies of `prototype`.

    `prototype` is an object with `__slots__`: dtype, shape, data_size, row, table, op, io, slot, argument, source. `classes` are
    the classes of tensors with memory of their own, as described by the exchange API of the first class; TypeError if it has
    none. With `digests`, digests of the elements in C order are computed, too, by the row of the summary. With `seen`, a large
    tensor that was read before and has not been written since is not read again: `place(tensor)` returns the identity of its
    storage and its version, or None if it must be read in any case.
    """

    def __init__(
        self,
        table: SummaryTable,
        prototype: Any,
        classes: tuple[type, ...],
        digests: DigestBatch | None = None,
        seen: SeenTensors | None = None,
        place: Callable[[Any], tuple[int, int] | None] | None = None,
    ) -> None:
        self._table = table
        self._digests = digests
        self._prototype = prototype
        self._classes = classes
        self._seen = seen
        self._place = place
        self._describe = _describe_of(classes[0])

    def take_all(
        self,
        op: Any,
        io: str,
        lives: Iterable[Sequence[Any]],
        entries: list[Any],
        other: Callable[[Any, Any], Any],
    ) -> None:
        """Append to `entries` one entry for each of `lives` (slot, argument, tensor, source, skip), the tensors of `op`.

        `other(tensor, skip)` makes an object like the prototype if there is a reason to skip, or if the tensor needs other
        treatment: another class or dtype, on a device, lazily negated, without elements, a shape or memory of its own.
        """
        for live in lives:
            if not isinstance(live, tuple) or len(live) != 5:
                raise TypeError("expected live tensors as tuples of slot, argument, tensor, source and skip")
            slot, argument, tensor, source, skip = live
            taken = None if skip or type(tensor) not in self._classes else self._take_plain(tensor)
            if taken is None:
                taken = other(tensor, skip)
                if type(taken) is not type(self._prototype):
                    raise TypeError("`other` returned an object of a different kind than the prototype")
            taken.op = op
            taken.io = io
            taken.slot = slot
            taken.argument = argument
            taken.source = source
            entries.append(taken)

    def _take_plain(self, tensor: Any) -> Any:
        facts = _Tensor()
        try:
            self._describe(tensor, facts)
        except (RuntimeError, BufferError):
            return None
        name = _NAMES.get((facts.code, facts.bits)) if facts.lanes == 1 else None
        if facts.device_type != _CPU or not facts.data or name is None or tensor.is_neg() is not False:
            return None
        shape = tuple(facts.shape[: facts.ndim])
        count = math.prod(shape)
        if count == 0:
            return None
        strides = tuple(facts.strides[: facts.ndim])
        taken = copy.copy(self._prototype)
        taken.dtype = name
        taken.shape = shape
        item = facts.bits // 8
        taken.data_size = count * item
        taken.table = self._table
        view = (facts.data + facts.byte_offset, name, shape, strides)
        is_known = self._seen is not None and taken.data_size >= self._seen.least_bytes
        taken.row = self._read_once(tensor, view, item) if is_known else self._read(view, item)
        return taken

    def _read(self, view: View, item: int) -> int:
        """Returns the row of the summary."""
        address, name, shape, strides = view
        row = self._table.add_strided(address, DTYPE_CODES[name], shape, strides)
        if self._digests is not None:
            steps = [item * stride for stride in strides]
            elements = np.ascontiguousarray(strided_memory(address, MOVED_AS[item], shape, steps))
            self._digests.add(elements.ctypes.data, elements.nbytes, item, row)
        return row

    def _read_once(self, tensor: Any, view: View, item: int) -> int:
        """The earlier result for the same view, if its storage has not been written since."""
        assert self._seen is not None
        assert self._place is not None
        address, _, shape, strides = view
        place = self._place(tensor)
        if place is None or min(strides, default=0) < 0:
            return self._read(view, item)
        storage, version = place
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if extent * item < WORD:  # one element for all indices
            return self._read(view, item)
        fingerprint = fingerprint_of(address, extent * item)
        before = self._seen.find(storage, view, version, fingerprint)
        if before is not None:
            return before.row
        row = self._read(view, item)
        self._seen.add(storage, view, Sighting(version, fingerprint, row))
        return row


def _describe_of(kind: Any) -> Callable[[Any, _Tensor], int]:
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    address = pointer_of(kind.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    while address:
        api = _ExchangeApi.from_address(address)
        if api.major == 1 and api.describe:
            return _Describe(api.describe)
        address = api.previous
    raise TypeError("the tensors have no DLPack exchange API of major version 1 that describes one in place")
