"""A file to which records are appended: the twin of native/append_file.cpp, used if the compiled module is missing.

A record is a header of a multiple of 64 bytes and its elements, padded with zeros to such a multiple. Its offset in the file and
two checksums are filled in here; `layouts/packed/record.py` defines the rest of the header. This twin writes in the thread of the
caller.
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
    """Writes into the open file `descriptor` from its beginning. Its owner closes it after `stop`.

    At most `capacity` bytes wait in memory, plus one larger record, for `threads` threads; this twin has no threads.
    """

    def __init__(self, descriptor: int, threads: int = 2, capacity: int = 1 << 30) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._stopped = False
        self.error = 0
        """The errno of the first failed write, after which nothing is written; 0 before that."""
        self.bytes_appended = 0
        self.bytes_written = 0
        self.seconds_waited = 0.0
        """Total time that callers have waited for free space in the queue; in this twin, for the disk."""
        self._most_waiting = min(_BLOCK, capacity)

    def append(self, header: bytes, elements: int, byte_count: int) -> int:
        """Copy a record with `byte_count` bytes of elements at an address; returns its offset in the file.

        Returns -1 and copies nothing if the file was stopped or a write failed. Raises ValueError for a header of another size.
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
        """Pass the appended records to the threads; this twin writes them."""
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
        """Return when all appended records are written, or dropped after a failure."""
        self.push()

    def stop(self) -> None:
        """Write all appended records and accept no more. May be called again."""
        self.push()
        self._stopped = True


def xxh3_low(data: bytes) -> int:
    """The lower half of the 128-bit XXH3."""
    return int(xxh3_128(data)[16:], 16)


def xxh3_low_pointer(pointer: int, byte_count: int) -> int:
    """The same for `byte_count` bytes at an address. Raises ValueError for a null address."""
    if byte_count < 0 or (byte_count and not pointer):
        raise ValueError(f"{byte_count} bytes at {pointer} cannot be hashed")
    return xxh3_low(ctypes.string_at(pointer, byte_count) if byte_count else b"")
