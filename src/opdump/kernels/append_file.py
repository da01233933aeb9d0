"""A file that records are appended to: the twin of native/append_file.cpp, and what runs where that is missing.

A record is a header of a multiple of 64 bytes and its elements, padded with zeros to one. Its place in the file and two checksums are
filled in here; `layouts/packed/record.py` says what else is in a header. This one writes in the thread of the caller.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from typing import Final

from opdump.kernels.xxh3 import xxh3_128

ALIGNMENT: Final = 64
OFFSET_FIELD: Final = 24
ELEMENTS_HASH: Final = 48
HEADER_HASH: Final = 56
_BLOCK: Final = 1 << 20
_WORD: Final = struct.Struct("<Q")


class AppendFile:
    """Writes into the open file `descriptor`, which its owner closes after `stop`, from its beginning on.

    At most `capacity` bytes wait in memory, beside one record that is larger, for `threads` threads; this twin has none.
    """

    def __init__(self, descriptor: int, threads: int = 2, capacity: int = 1 << 30) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._stopped = False
        self.error = 0
        """The errno of the first write that failed, after which nothing is written; 0 while there was none."""
        self.bytes_appended = 0
        self.bytes_written = 0
        self.seconds_waited = 0.0
        """How long callers have waited for room; here, for the disk."""
        self._most_waiting = min(_BLOCK, capacity)

    def append(self, header: bytes, elements: int, byte_count: int) -> int:
        """Copies a record whose elements are so many bytes at an address; where it begins in the file.

        -1, and nothing copied, where the file was stopped or a write failed. ValueError for a header of another size.
        """
        if len(header) < ALIGNMENT or len(header) % ALIGNMENT:
            raise ValueError("the header of a record has a multiple of 64 bytes")
        if byte_count < 0 or (byte_count and not elements):
            raise ValueError(f"{byte_count} bytes at {elements} are no elements")
        if self._stopped or self.error:
            return -1
        body = ctypes.string_at(elements, byte_count) if byte_count else b""
        offset = self.bytes_appended
        made = bytearray(header)
        _WORD.pack_into(made, OFFSET_FIELD, offset)
        _WORD.pack_into(made, ELEMENTS_HASH, xxh3_low(body))
        _WORD.pack_into(made, HEADER_HASH, xxh3_low(bytes(made)))
        self._waiting += made
        self._waiting += body
        self._waiting += bytes(-byte_count % ALIGNMENT)
        self.bytes_appended += len(made) + byte_count + -byte_count % ALIGNMENT
        if len(self._waiting) >= self._most_waiting:
            began = time.monotonic()
            self.push()
            self.seconds_waited += time.monotonic() - began
        return offset

    def push(self) -> None:
        """Hands what was appended over to the threads; here it is written."""
        view = memoryview(bytes(self._waiting))
        self._waiting.clear()
        while view and not self.error:
            try:
                done = os.pwrite(self._descriptor, view, self.bytes_written)
            except OSError as error:
                self.error = error.errno or 5
                return
            self.bytes_written += done
            view = view[done:]

    def flush(self) -> None:
        """Returns when all that was appended is written, or dropped after a failure."""
        self.push()

    def stop(self) -> None:
        """Writes what was appended, and takes no more. May be called again."""
        self.push()
        self._stopped = True


def xxh3_low(data: bytes) -> int:
    """The lower half of the XXH3 of 128 bits."""
    return int(xxh3_128(data)[16:], 16)


def xxh3_low_pointer(pointer: int, byte_count: int) -> int:
    """The same of so many bytes at an address. ValueError where there is none."""
    if byte_count < 0 or (byte_count and not pointer):
        raise ValueError(f"{byte_count} bytes at {pointer} cannot be hashed")
    return xxh3_low(ctypes.string_at(pointer, byte_count) if byte_count else b"")
