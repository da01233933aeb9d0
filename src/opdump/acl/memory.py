"""Host memory behind integer addresses.

Every address in a call is looked up first, and an access beyond its block is rejected. Known blocks are memory that was allocated
by `acl` or registered, and arrays and tensors of the callers. For any other address, it is only known whether the operating
system has mapped it. So a wrong number returns an error code where a device would crash.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.acl.failures import LOG, CallError, Code

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT: Final = 64
_BETWEEN_LOOKS: Final = 64
_MOST_GONE: Final = 1024
LARGEST: Final = 2**46


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory from `address` on. `view` returns its bytes, or None when its owner is gone."""

    address: int
    size: int
    view: Callable[[], Bytes | None]
    is_ours: bool
    """Allocated here, so that `free` may be called for it."""
    is_found: bool = False
    """Not registered: an array of a caller."""


class Memory:
    """The blocks that a process has allocated or registered. They may overlap."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._held: dict[int, bytes] = {}
        """Registered bytes objects, which do not support weak references."""
        self._gone: dict[int, int] = {}
        """Sizes, by address, of the most recently freed blocks and collected arrays."""
        self._next_look = _BETWEEN_LOOKS

    def allocate(self, size: Any) -> int:
        """The address of `size` new bytes, aligned to 64. Raises CallError for an invalid size and if memory is exhausted."""
        if not isinstance(size, int) or not 0 < size < LARGEST:
            raise CallError(Code.INVALID_PARAM, f"malloc: size is {size!r}, expected a number of bytes from 1 on")
        try:
            # The memory beside it belongs to no array: an address beyond the edge cannot hit another array.
            whole = np.zeros(size + 3 * _ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise CallError(Code.INTERNAL_ERROR, f"malloc: there are no {size} bytes of memory left") from error
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
                    f"free: {address!r} is no address that malloc gave, or it was freed before; free what malloc returned, once",
                )
            self._remove(address)

    def register(self, array: npt.NDArray[Any]) -> int:
        """The address of an array's elements; known as long as their memory exists."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        address = int(array.ctypes.data)
        with self._lock:
            self._forget_the_dead()
            self._add(_block_of(Owner(root, address, array.nbytes, bool(array.flags.writeable), False)))
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

    def at(self, address: Any, size: Any, *, where: str, write: bool = False) -> Bytes:
        """`size` bytes from an address on, without a copy.

        Raises CallError for an unknown address, for an access beyond its block, and for writing (`write`) into constant memory.
        """
        if not isinstance(address, int) or not isinstance(size, int) or size < 0:
            raise CallError(Code.INVALID_PARAM, f"{where}: {address!r} and {size!r} are no address and size")
        with self._lock:
            found, most, is_registered = self._known(address, size)
            if found is None and not is_registered and 0 < address < 2**63:
                owner = owner_of(address, size)
                if owner is not None:
                    if owner.starts_in_another_order:
                        LOG.warning(
                            "%s: the elements of the array at this address do not lie in C order; use numpy.ascontiguousarray "
                            "(tensor.contiguous()) and keep what it gives",
                            where,
                        )
                    self._forget_the_dead()
                    self._add(_block_of(owner, is_found=True))
                    found, most, _ = self._known(address, size)
            if found is None and most < 0 and self._is_free_for_others(address, size, write=write):
                found = _at(address, size, None, writeable=write)
        if found is None and most >= 0:
            raise CallError(Code.INVALID_PARAM, f"{where}: {size} bytes were asked for and {most} are there")
        if found is None:
            raise CallError(
                Code.INVALID_PARAM,
                f"{where}: {address:#x} is no address of acl.rt.malloc, acl.rt.malloc_host, acl.util.numpy_to_ptr, "
                "acl.util.bytes_to_ptr or of an array (array.ctypes.data, tensor.data_ptr()), or its memory was freed: keep the "
                "array until the call is done",
            )
        if write and not found.flags.writeable:
            raise CallError(Code.INVALID_PARAM, f"{where}: this memory is constant; write into memory of acl.rt.malloc")
        return found

    def _known(self, address: int, size: int) -> tuple[Bytes | None, int, bool]:
        """The bytes, if a live block contains all of them; the maximum available, -1 if there is no live block; whether the block
        was registered.
        """
        most, is_registered = -1, False
        for place in range(bisect_right(self._starts, address) - 1, -1, -1):
            block = self._blocks[self._starts[place]]
            start = address - block.address
            if start >= block.size:
                continue
            view = block.view()
            if view is None:
                continue
            if start + size <= block.size:
                return view[start : start + size], 0, True
            most = max(most, block.size - start)
            is_registered = is_registered or not block.is_found
        return None, most, is_registered

    def _is_free_for_others(self, address: int, size: int, *, write: bool) -> bool:
        """Whether unknown memory may be used: it is mapped, and is neither one of our former blocks nor adjacent to a current
        one.
        """
        near = [
            *((block.address, block.size) for block in self._blocks.values() if block.is_ours or block.view() is None),
            *self._gone.items(),
        ]
        if any(start - _ALIGNMENT <= address < start + length + _ALIGNMENT for start, length in near):
            return False
        return 0 < address < 2**63 and size < LARGEST and is_mapped(address, max(size, 1), write=write)

    def _add(self, block: _Block) -> None:
        known = self._blocks.get(block.address)
        if known is None:
            insort(self._starts, block.address)
        elif known.size >= block.size and known.view() is not None and (known.is_ours or not block.is_ours):
            return
        self._blocks[block.address] = block
        self._gone.pop(block.address, None)

    def _remove(self, address: int) -> None:
        self._gone[address] = self._blocks.pop(address).size
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
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


def _block_of(owner: Owner, *, is_found: bool = False) -> _Block:
    reference = weakref.ref(owner.holder)
    address, size, writeable = owner.address, owner.size, owner.is_writeable

    def view() -> Bytes | None:
        holder = reference()
        return None if holder is None else _at(address, size, holder, writeable=writeable)

    return _Block(address, size, view, is_ours=False, is_found=is_found)


def _at(address: int, size: int, holder: object, *, writeable: bool) -> Bytes:
    """The bytes of memory that `holder` keeps, without a copy."""
    if not size:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = holder  # type: ignore[attr-defined]  # a ctypes object takes attributes
    elements: Bytes = np.frombuffer(memoryview(memory), np.uint8)
    elements.flags.writeable = writeable
    return elements


# The array that owns the memory at an address that the program obtained itself. It is searched among the local variables of the
# calling functions, and the objects in them; if it is found, its bounds apply.

_MAPS: Final = Path("/proc/self/maps")
_PACKAGE: Final = "opdump.acl"
_FRAMES: Final = 8
_DEEP: Final = 3
_MOST: Final = 5000


@dataclass(frozen=True, slots=True)
class Owner:
    """An array or a tensor of the host whose memory spans `size` bytes from `address`."""

    holder: Any
    """An object that exists as long as the memory, and supports weak references."""
    address: int
    size: int
    is_writeable: bool
    starts_in_another_order: bool
    """The address is that of its first element, and the elements are not contiguous in C order."""


def owner_of(address: int, size: int) -> Owner | None:
    """The array or tensor, among the variables of callers outside this package, that has `size` bytes from an address on.

    If none is large enough, the largest one that contains the address.
    """
    found: Owner | None = None
    for value in _objects_of_callers():
        try:
            owner = _as_owner(value, address)
        except Exception:  # noqa: BLE001, S112  an object of the program that stands for another and answers no questions
            continue
        if owner is None:
            continue
        if address + size <= owner.address + owner.size and not owner.starts_in_another_order:
            return owner
        if found is None or _rank(owner) > _rank(found):
            found = owner
    return found


def _rank(owner: Owner) -> tuple[int, bool]:
    return owner.size, not owner.starts_in_another_order


def is_mapped(address: int, size: int, *, write: bool) -> bool:
    """Whether this process may read, or write, every one of these bytes. False if unknown."""
    try:
        text = _MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    reached, end = address, address + size
    for line in text.splitlines():
        place, rights = line.split(maxsplit=2)[:2]
        first, _, last = place.partition("-")
        if int(last, 16) <= reached:
            continue
        if int(first, 16) > reached or ("w" if write else "r") not in rights:
            return False
        reached = int(last, 16)
        if reached >= end:
            return True
    return False


def _objects_of_callers() -> Iterator[Any]:
    """Local variables of the callers, nearest first, and the items of lists, dictionaries and objects among them."""
    seen: set[int] = set()
    pending: list[tuple[Any, int]] = []
    frame: FrameType | None = sys._getframe(2)
    left = _FRAMES
    while frame is not None and left:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            pending += [(value, 0) for value in _locals(frame)]
            left -= 1
        frame = frame.f_back
    for value, depth in pending:
        if id(value) in seen:
            continue
        seen.add(id(value))
        if len(seen) > _MOST:
            return
        yield value
        if depth < _DEEP:
            pending += [(each, depth + 1) for each in _parts(value)]


def _locals(frame: FrameType) -> list[Any]:
    names = frame.f_locals
    values = list(names.values())
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(names) <= 3:
        # Avoids a copy in the frame, which would keep arrays alive that the program has dropped. There is no other
        # reference to it.
        names.clear()
    return values


def _parts(value: Any) -> list[Any]:
    kind = type(value)
    if issubclass(kind, list | tuple):
        return list(value)
    if issubclass(kind, dict):
        return list(value.values())
    if issubclass(kind, type | ModuleType | np.ndarray) or not kind.__dictoffset__:
        return []
    return list(object.__getattribute__(value, "__dict__").values())


def _as_owner(value: Any, address: int) -> Owner | None:
    if issubclass(type(value), np.ndarray):
        return _owner_of_array(value, address)
    if any(kind.__name__ == "Tensor" and kind.__module__ == "torch" for kind in type(value).__mro__):
        return _owner_of_tensor(value, address)
    return None


def _owner_of_array(array: npt.NDArray[Any], address: int) -> Owner | None:
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if root.dtype.hasobject:
        return None
    start, size = bounds(root)
    if not start <= address < start + size:
        return None
    is_first = address == _first(array) and not array.flags.c_contiguous
    return Owner(root, start, size, bool(array.flags.writeable), is_first)


def _owner_of_tensor(tensor: Any, address: int) -> Owner | None:
    from opdump.adapters.torch.unseen import unseen  # PyTorch is imported: the program has a tensor

    with unseen():
        # A tensor on a device, of a compiler or without memory has no address that the host can read.
        if tensor.device.type != "cpu" or str(tensor.layout) != "torch.strided" or tensor.is_quantized:
            return None
        try:
            storage = tensor.untyped_storage()
            start, size = int(storage.data_ptr()), int(storage.nbytes())
        except (RuntimeError, NotImplementedError):  # no storage, or one without memory, whatever the layout says
            return None
        if not start <= address < start + size:
            return None
        return Owner(tensor, start, size, True, address == tensor.data_ptr() and not tensor.is_contiguous())


def _first(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def bounds(array: npt.NDArray[Any]) -> tuple[int, int]:
    """Address and size of the memory from the lowest to the highest element of an array."""
    if not array.size:
        return _first(array), 0
    low = high = _first(array)
    for dim, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += stride * (dim - 1)
        else:
            high += stride * (dim - 1)
    return low, high + array.itemsize - low
