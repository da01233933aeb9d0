"""Host memory behind integer addresses.

Every address that a call is given is looked up here first: one that nobody got from `acl` is refused, and so are more bytes
than there are behind it. So a wrong number gives a return code where a device would crash.
"""

from __future__ import annotations

import ctypes
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
_BETWEEN_LOOKS: Final = 64
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
    """The blocks that a process has got, or has told of. They may lie within each other."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, _Block] = {}
        self._held: dict[int, bytes] = {}
        """Bytes objects that the program told of, which have no weak references."""
        self._next_look = _BETWEEN_LOOKS

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
        self._remove(address)

    def tell(self, array: npt.NDArray[Any]) -> int:
        """The address of an array's elements; known as long as their memory is held."""
        self._forget_the_dead()
        address, size, writeable = int(array.ctypes.data), array.nbytes, bool(array.flags.writeable)
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        reference = weakref.ref(owner)

        def view() -> Bytes | None:
            holder = reference()
            if holder is None:
                return None
            memory = (ctypes.c_char * size).from_address(address)
            memory.owner = holder  # type: ignore[attr-defined]  # a ctypes object takes attributes
            elements: Bytes = np.frombuffer(memoryview(memory), np.uint8)
            elements.flags.writeable = writeable
            return elements

        self._add(_Block(address, size, view, is_ours=False))
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
        most = -1
        for place in range(bisect_right(self._starts, address) - 1, -1, -1):
            block = self._blocks[self._starts[place]]
            start = address - block.address
            if start >= block.size:
                continue
            view = block.view()
            if view is None:
                continue
            if start + size > block.size:
                most = max(most, block.size - start)
                continue
            if write and not view.flags.writeable:
                raise CallError(
                    Code.INVALID_PARAM, f"{where}: this memory is constant; write into memory of acl.rt.malloc"
                )
            return view[start : start + size]
        if most >= 0:
            raise CallError(Code.INVALID_PARAM, f"{where}: {size} bytes were asked for and {most} are there")
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: {address:#x} is no address of acl.rt.malloc, acl.rt.malloc_host, acl.util.numpy_to_ptr or "
            "acl.util.bytes_to_ptr, or its memory was freed: keep the array until the call is done",
        )

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
        """Now and then, so that a program of many short-lived arrays leaves no trace of each."""
        if len(self._blocks) < self._next_look:
            return
        for address in [address for address, block in self._blocks.items() if block.view() is None]:
            self._remove(address)
        self._next_look = 2 * len(self._blocks) + _BETWEEN_LOOKS

    def _forget_unused_bytes(self) -> None:
        for address in list(self._held):
            # Held here, by the view, and by this call: nobody else has it.
            if sys.getrefcount(self._held[address]) <= 3:
                self._remove(address)
