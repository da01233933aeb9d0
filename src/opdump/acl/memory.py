"""Host memory behind integer addresses.

Every address that a call is given is looked up here first: one that nobody got from `acl` is refused, and so are more bytes
than there are behind it. So a wrong number gives a return code where a device would crash.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.acl.codes import Code
from opdump.acl.failures import CallError

Bytes = npt.NDArray[np.uint8]

_ALIGNMENT: Final = 64
LARGEST: Final = 2**46


@dataclass(frozen=True, slots=True)
class _Block:
    """Memory from `address` on. `view` gives its bytes, None once nobody owns them any more."""

    address: int
    size: int
    view: Callable[[], Bytes | None]
    is_ours: bool
    """Allocated here, so that `free` may be called for it."""


class Memory:
    """The blocks that a process has got, or has told of."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._held: dict[int, bytes] = {}
        """Bytes objects that the program told of, which have no weak references."""

    def allocate(self, size: Any) -> int:
        """The address of `size` new bytes, on a boundary of 64. Raises CallError for no size and where there is no memory."""
        if not isinstance(size, int) or not 0 < size < LARGEST:
            raise CallError(Code.INVALID_PARAM, f"malloc: size is {size!r}, expected a number of bytes from 1 on")
        try:
            whole = np.zeros(size + _ALIGNMENT, np.uint8)
        except MemoryError as error:
            raise CallError(Code.INTERNAL_ERROR, f"malloc: there are no {size} bytes of memory left") from error
        skipped = -whole.ctypes.data % _ALIGNMENT
        block = whole[skipped : skipped + size]
        address = int(block.ctypes.data)
        self._add(_Block(address, size, lambda: block, is_ours=True))
        return address

    def free(self, address: int) -> None:
        """Forgets a block. Arrays that were made over it keep their bytes."""
        block = self._blocks.get(address)
        if block is None or not block.is_ours:
            raise CallError(
                Code.INVALID_PARAM,
                f"free: {address!r} is no address that malloc gave, or it was freed before; free what malloc returned, once",
            )
        self._remove(block)

    def tell(self, array: npt.NDArray[Any]) -> int:
        """The address of an array's elements; known as long as the array lives."""
        address = int(array.ctypes.data)
        reference = weakref.ref(array)

        def view() -> Bytes | None:
            owner = reference()
            return None if owner is None else owner.reshape(-1).view(np.uint8)

        self._add(_Block(address, array.nbytes, view, is_ours=False))
        return address

    def tell_bytes(self, data: bytes) -> int:
        """The address of a bytes object; known as long as the program keeps it, and never written to."""
        self._forget_unused_bytes()
        elements = np.frombuffer(data, np.uint8)
        address = int(elements.ctypes.data)
        self._held[address] = data
        self._add(_Block(address, len(data), lambda: np.frombuffer(data, np.uint8), is_ours=False))
        return address

    def at(self, address: Any, size: Any, *, where: str, write: bool = False) -> Bytes:
        """`size` bytes from an address on, without a copy.

        Raises CallError for an address that is not known, for more bytes than are there, and to `write` into what is constant.
        """
        if not isinstance(address, int) or not isinstance(size, int) or size < 0:
            raise CallError(Code.INVALID_PARAM, f"{where}: {address!r} and {size!r} are no address and size")
        block = self._block(address)
        view = None if block is None else block.view()
        if block is None or view is None:
            raise CallError(
                Code.INVALID_PARAM,
                f"{where}: {address:#x} is no address of acl.rt.malloc, acl.rt.malloc_host, acl.util.numpy_to_ptr or "
                "acl.util.bytes_to_ptr, or its memory was freed: keep the array until the call is done",
            )
        start = address - block.address
        if start + size > block.size:
            raise CallError(
                Code.INVALID_PARAM, f"{where}: {size} bytes were asked for and {block.size - start} are there"
            )
        if write and not view.flags.writeable:
            raise CallError(Code.INVALID_PARAM, f"{where}: this memory is constant; write into memory of acl.rt.malloc")
        return view[start : start + size]

    def _block(self, address: int) -> _Block | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        block = self._blocks[self._starts[place]]
        return block if address < block.address + max(block.size, 1) else None

    def _add(self, block: _Block) -> None:
        for known in self._overlapping(block):
            if not known.is_ours or known.view() is None:
                self._remove(known)  # its owner is gone, and the memory was given out anew; or it is told of again
        if block.address not in self._blocks:
            insort(self._starts, block.address)
            self._blocks[block.address] = block

    def _overlapping(self, block: _Block) -> list[_Block]:
        first = max(bisect_right(self._starts, block.address) - 1, 0)
        last = bisect_right(self._starts, block.address + max(block.size - 1, 0))
        near = [self._blocks[start] for start in self._starts[first:last]]
        return [known for known in near if known.address + known.size > block.address or known.address == block.address]

    def _remove(self, block: _Block) -> None:
        del self._blocks[block.address]
        self._starts.pop(bisect_right(self._starts, block.address) - 1)
        self._held.pop(block.address, None)

    def _forget_unused_bytes(self) -> None:
        for address in list(self._held):
            # Held here, by the view, and by this call: nobody else has it.
            if sys.getrefcount(self._held[address]) <= 3:
                self._remove(self._blocks[address])
