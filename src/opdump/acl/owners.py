"""Finds the array that owns the memory at an address that the program obtained itself.

    acl.rt.memcpy(device, image.nbytes, image.ctypes.data, image.nbytes, 1)
    acl.create_data_buffer(tensor.data_ptr(), tensor.nbytes)

The array is searched among the local variables of the calling functions, and the objects in them; if it is found, its bounds
apply. For every other address, it is only known what the operating system has mapped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
        except (RuntimeError, NotImplementedError):
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
