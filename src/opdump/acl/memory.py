"""Host memory behind integer addresses.

Every address in a call is looked up first, and an access beyond its block is rejected. Known blocks are memory that was allocated
by `acl` or registered. Any other address (`array.ctypes.data`, `tensor.data_ptr()`) is used unchanged if the operating system has
mapped its pages. So most wrong numbers return an error code where a device would crash.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.acl.handles import CallError, Code, DataBuffer, TensorInfo, size_of, storage

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

_ALIGNMENT: Final = 64
_BETWEEN_LOOKS: Final = 64
LARGEST: Final = 2**46
_MS_ASYNC: Final = 1
_libc: Final = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory from `address` on. `view` returns its bytes, or None when its owner is gone."""

    address: int
    size: int
    view: Callable[[], Bytes | None]
    is_ours: bool
    """Allocated here, so that `free` may be called for it."""


class Memory:
    """The blocks that a process has allocated or registered. They may overlap."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._held: dict[int, bytes] = {}
        """Registered bytes objects, which do not support weak references."""
        self._next_look = _BETWEEN_LOOKS

    def allocate(self, size: Any) -> int:
        """The address of `size` new bytes, aligned to 64. Raises CallError for an invalid size and if memory is exhausted."""
        if not isinstance(size, int) or not 0 < size < LARGEST:
            raise CallError(Code.INVALID_PARAM, f"size is {size!r}, expected a number of bytes, 1 or more")
        try:
            # The memory beside it belongs to no array: an address beyond the edge cannot hit another array.
            whole = np.zeros(size + 3 * _ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise CallError(Code.INTERNAL_ERROR, f"not enough memory for {size} bytes") from error
        skipped = _ALIGNMENT + -whole.ctypes.data % _ALIGNMENT
        block = whole[skipped : skipped + size]
        address = int(block.ctypes.data)
        with self._lock:
            self._add(_Block(address, size, lambda: block, is_ours=True))
        return address

    def free(self, address: int) -> None:
        """Forget a block. Arrays that were made over it keep their bytes."""
        with self._lock:
            block = self._blocks.get(address)
            if block is None or not block.is_ours:
                raise CallError(
                    Code.INVALID_PARAM,
                    f"{address!r} was not returned by malloc, or was freed before; free each address that malloc returned once",
                )
            self._remove(address)

    def register(self, array: npt.NDArray[Any]) -> int:
        """The address of an array's elements; known as long as their memory exists."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        address, size, writeable, holder = (
            int(array.ctypes.data),
            array.nbytes,
            array.flags.writeable,
            weakref.ref(root),
        )

        def view() -> Bytes | None:
            root = holder()
            return None if root is None else _at(address, size, root, writeable=writeable)

        with self._lock:
            self._forget_the_dead()
            self._add(_Block(address, size, view, is_ours=False))
        return address

    def register_bytes(self, data: bytes) -> int:
        """The address of a bytes object, known as long as the program keeps it."""
        with self._lock:
            self._forget_unused_bytes()
            address = int(np.frombuffer(data, np.uint8).ctypes.data)
            self._held[address] = data
            # Objects of a single byte are shared: Python has one of each.
            writeable = len(data) > 1
            self._add(
                _Block(address, len(data), lambda: _at(address, len(data), data, writeable=writeable), is_ours=False)
            )
        return address

    def at(self, address: Any, size: Any, *, write: bool = False) -> Bytes:
        """`size` bytes from an address on, without a copy.

        Raises CallError for an unknown address, for an access beyond its block, and for writing (`write`) into constant memory.
        """
        if not isinstance(address, int) or not isinstance(size, int) or size < 0:
            raise CallError(Code.INVALID_PARAM, f"{address!r} and {size!r} are not an address and a size")
        with self._lock:
            found, most = self._known(address, size)
            if found is None and most < 0 and self._may_be_an_array(address, size):
                found = _at(address, size, None, writeable=True)
        if found is None and most >= 0:
            raise CallError(Code.INVALID_PARAM, f"{size} bytes were requested, but there are only {most}")
        if found is None:
            raise CallError(
                Code.INVALID_PARAM,
                f"{address:#x} is not an address from acl.rt.malloc, acl.rt.malloc_host, acl.util.numpy_to_ptr, "
                "acl.util.bytes_to_ptr or an array (array.ctypes.data, tensor.data_ptr()), or its memory was freed: keep the "
                "array until the call has returned",
            )
        if write and not found.flags.writeable:
            raise CallError(Code.INVALID_PARAM, "this memory is constant; write into memory of acl.rt.malloc")
        return found

    def _known(self, address: int, size: int) -> tuple[Bytes | None, int]:
        """The bytes, if a live block contains all of them, and the maximum available, -1 if there is no live block."""
        most = -1
        for place in range(bisect_right(self._starts, address) - 1, -1, -1):
            block = self._blocks[self._starts[place]]
            start = address - block.address
            if start >= block.size:
                continue
            view = block.view()
            if view is None:
                continue
            if start + size <= block.size:
                return view[start : start + size], 0
            most = max(most, block.size - start)
        return None, most

    def _may_be_an_array(self, address: int, size: int) -> bool:
        """Whether unknown memory may be used: all of its pages are mapped, and it is not adjacent to a block allocated here."""
        if any(
            block.is_ours and block.address - _ALIGNMENT <= address < block.address + block.size + _ALIGNMENT
            for block in self._blocks.values()
        ):
            return False
        return 0 < address < 2**63 and size < LARGEST and is_mapped(address, max(size, 1))

    def _add(self, block: _Block) -> None:
        known = self._blocks.get(block.address)
        if known is None:
            insort(self._starts, block.address)
        elif known.size >= block.size and known.view() is not None and (known.is_ours or not block.is_ours):
            return
        self._blocks[block.address] = block

    def _remove(self, address: int) -> None:
        del self._blocks[address]
        self._starts.pop(bisect_right(self._starts, address) - 1)
        self._held.pop(address, None)

    def _forget_the_dead(self) -> None:
        """Runs occasionally, so that a program with many short-lived arrays does not accumulate entries."""
        if len(self._blocks) < self._next_look:
            return
        for address in [address for address, block in self._blocks.items() if block.view() is None]:
            self._remove(address)
        self._next_look = 2 * len(self._blocks) + _BETWEEN_LOOKS

    def _forget_unused_bytes(self) -> None:
        for address in list(self._held):
            # Referenced here, by the view, and by this call: there is no other owner.
            if sys.getrefcount(self._held[address]) <= 3:
                self._remove(address)


def _at(address: int, size: int, holder: object, *, writeable: bool) -> Bytes:
    """The bytes of memory that `holder` keeps, without a copy."""
    if not size:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = holder  # type: ignore[attr-defined]  # a ctypes object takes attributes
    elements: Bytes = np.frombuffer(memoryview(memory), np.uint8)
    elements.flags.writeable = writeable
    return elements


def is_mapped(address: int, size: int) -> bool:
    """Whether every page of these bytes is mapped. Rights are not checked: reading a page may still be forbidden."""
    start = address - address % mmap.PAGESIZE
    # Of all calls that fail for an unmapped page, this one has no effect: it asks to write pages of files back, which happens anyway.
    asked = _libc.msync(ctypes.c_void_p(start), ctypes.c_size_t(address + size - start), _MS_ASYNC)
    return bool(asked == 0)


# Makes arrays over memory at addresses, for the inputs and outputs of a run.


def array_over(memory: Memory, buffer: DataBuffer, info: TensorInfo, dims: Sequence[int]) -> Array:
    """The elements in a buffer, without a copy, in the type of their bits."""
    kind = storage(info.dtype)
    if kind is None:
        raise CallError(Code.UNSUPPORTED_DATA_TYPE, f"elements of type {info.dtype} cannot be passed here")
    size = math.prod(dims) * kind.itemsize
    if buffer.size < size:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{info.name!r} is {info.dtype} {tuple(dims)}, {size} bytes, and its buffer has {buffer.size}",
        )
    if size == 0:
        return np.empty(dims, kind)
    elements: Array = memory.at(buffer.address, size).view(kind).reshape(tuple(dims))
    return elements


def dims_of(info: TensorInfo, size: int) -> tuple[int, ...]:
    """The shape of a tensor of `size` bytes: one unknown dimension follows from the size."""
    unknown = [place for place, dim in enumerate(info.dims) if dim < 0]
    if not unknown:
        return info.dims
    dims = [1 if dim < 0 else dim for dim in info.dims]
    known = size_of(info.dtype, dims)
    if len(unknown) == 1 and known and size % known == 0:
        dims[unknown[0]] = size // known
        return tuple(dims)
    if size == known:
        return tuple(dims)
    raise CallError(
        Code.MODEL_INPUT_NOT_MATCH,
        f"{info.name!r} has the shape {info.dims}, and {size} bytes do not determine -1; "
        "set it with acl.mdl.set_dataset_tensor_desc(dataset, acl.create_tensor_desc(...), index)",
    )


def check_outputs(buffers: Sequence[DataBuffer], arrays: Sequence[Array], code: Code) -> None:
    """Raises CallError if a result does not fit into its buffer; nothing was written then."""
    for number, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
        if buffer.address and buffer.size < array.nbytes:
            raise CallError(
                code,
                f"output {number} is {array.dtype} {array.shape}, {array.nbytes} bytes, and its buffer has {buffer.size}",
            )


def write_outputs(memory: Memory, buffers: Sequence[DataBuffer], arrays: Sequence[Array]) -> None:
    """Copy results into their buffers. A buffer without memory gets some, which the program frees."""
    for buffer, array in zip(buffers, arrays, strict=True):
        if not buffer.address:
            buffer.size = max(array.nbytes, 1)
            buffer.address = memory.allocate(buffer.size)
        if array.nbytes:
            target = memory.at(buffer.address, array.nbytes, write=True)
            target[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
