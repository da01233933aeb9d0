"""Files of records, tables of text and checksums: the twins of native/append_file.cpp, table_text.cpp and xxh3.cpp, used if the
compiled module is missing.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# XXH3 with 128 bits in Python and numpy: the twin of native/xxh3.cpp, used if the compiled module is missing.
#
# Source: "xxHash fast digest algorithm" (doc/xxhash_spec.md of xxHash). No seed, the default secret.

_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME32_1: Final = 0x9E3779B1
_PRIME32_2: Final = 0x85EBCA77
_PRIME32_3: Final = 0xC2B2AE3D
_PRIME64_1: Final = 0x9E3779B185EBCA87
_PRIME64_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME64_3: Final = 0x165667B19E3779F9
_PRIME64_4: Final = 0x85EBCA77C2B2AE63
_PRIME64_5: Final = 0x27D4EB2F165667C5
_MIX_1: Final = 0x165667919E3779F9
_MIX_2: Final = 0x9FB21C651E98DF25
_MASK32: Final = 2**32 - 1
_MASK64: Final = 2**64 - 1

_MEDIUM: Final = 240
_STRIPE: Final = 64
_STRIPES_OF_BLOCK: Final = (len(_SECRET) - _STRIPE) // 8
_BYTES_OF_BLOCK: Final = _STRIPES_OF_BLOCK * _STRIPE
_BLOCKS_AT_A_TIME: Final = 256
_LOW: Final = np.uint64(_MASK32)
_HALF: Final = np.uint64(32)
Words = NDArray[np.uint64]


def xxh3_128(data: bytes | memoryview) -> str:
    """The hash of the bytes, 32 hexadecimal digits, the most significant first; `data` is C-contiguous. What `xxh128sum` prints."""
    count = len(data)
    if count <= 16:
        low, high = _of_small(bytes(data))
    elif count <= _MEDIUM:
        low, high = _of_medium(bytes(data))
    else:
        low, high = _of_large(np.frombuffer(data, np.uint8))
    return f"{high:016x}{low:016x}"


def _word(data: bytes, offset: int, size: int = 8) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def _mixed_secret(first: int, second: int, size: int = 8) -> int:
    return _word(_SECRET, first, size) ^ _word(_SECRET, second, size)


def _folded_product(x: int, y: int) -> int:
    product = x * y
    return (product & _MASK64) ^ (product >> 64)


def _avalanche(x: int) -> int:
    x ^= x >> 37
    x = x * _MIX_1 & _MASK64
    return x ^ (x >> 32)


def _avalanche_of_xxh64(x: int) -> int:
    x = (x ^ (x >> 33)) * _PRIME64_2 & _MASK64
    x = (x ^ (x >> 29)) * _PRIME64_3 & _MASK64
    return x ^ (x >> 32)


def _of_small(data: bytes) -> tuple[int, int]:
    if len(data) > 8:
        return _of_9_to_16(data)
    if len(data) > 3:
        return _of_4_to_8(data)
    if data:
        return _of_1_to_3(data)
    return _avalanche_of_xxh64(_mixed_secret(64, 72)), _avalanche_of_xxh64(_mixed_secret(80, 88))


def _of_1_to_3(data: bytes) -> tuple[int, int]:
    count = len(data)
    combined = data[-1] | count << 8 | data[0] << 16 | data[count >> 1] << 24
    swapped = int.from_bytes(combined.to_bytes(4, "little"), "big")
    turned = (swapped << 13 | swapped >> 19) & _MASK32
    return (
        _avalanche_of_xxh64(_mixed_secret(0, 4, 4) ^ combined),
        _avalanche_of_xxh64(_mixed_secret(8, 12, 4) ^ turned),
    )


def _of_4_to_8(data: bytes) -> tuple[int, int]:
    count = len(data)
    combined = _word(data, 0, 4) | _word(data, count - 4, 4) << 32
    product = (_mixed_secret(16, 24) ^ combined) * (_PRIME64_1 + (count << 2))
    low, high = product & _MASK64, product >> 64
    high = (high + (low << 1)) & _MASK64
    low ^= high >> 3
    low = (low ^ (low >> 35)) * _MIX_2 & _MASK64
    return low ^ (low >> 28), _avalanche(high)


def _of_9_to_16(data: bytes) -> tuple[int, int]:
    count = len(data)
    last = _word(data, count - 8)
    one = _mixed_secret(32, 40) ^ _word(data, 0) ^ last
    other = _mixed_secret(48, 56) ^ last
    product = one * _PRIME64_1
    low = (product + ((count - 1) << 54)) & _MASK64
    high = ((product >> 64) + (other & ~_MASK32) + (other & _MASK32) * _PRIME32_2) & _MASK64
    low ^= int.from_bytes(high.to_bytes(8, "little"), "big")
    product = low * _PRIME64_2
    return _avalanche(product & _MASK64), _avalanche(((product >> 64) + high * _PRIME64_2) & _MASK64)


def _of_medium(data: bytes) -> tuple[int, int]:
    count = len(data)
    low, high = count * _PRIME64_1 & _MASK64, 0

    def mixed(at: int, offset: int) -> int:
        return _folded_product(
            _word(data, at) ^ _word(_SECRET, offset), _word(data, at + 8) ^ _word(_SECRET, offset + 8)
        )

    def take(one: int, other: int, offset: int) -> None:
        nonlocal low, high
        low = (low + mixed(one, offset) & _MASK64) ^ (_word(data, other) + _word(data, other + 8) & _MASK64)
        high = (high + mixed(other, offset + 16) & _MASK64) ^ (_word(data, one) + _word(data, one + 8) & _MASK64)

    if count <= 128:
        for i in reversed(range((count - 1) // 32 + 1)):
            take(16 * i, count - 16 * i - 16, 32 * i)
    else:
        for i in range(4):
            take(32 * i, 32 * i + 16, 32 * i)
        low, high = _avalanche(low), _avalanche(high)
        for i in range(4, count // 32):
            take(32 * i, 32 * i + 16, 32 * (i - 4) + 3)
        take(count - 16, count - 32, 103)
    mixed_all = (low * _PRIME64_1 + high * _PRIME64_4 + count * _PRIME64_2) & _MASK64
    return _avalanche((low + high) & _MASK64), -_avalanche(mixed_all) & _MASK64


def _of_large(data: NDArray[np.uint8]) -> tuple[int, int]:
    count = data.size
    accumulators = np.array(
        [_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1], np.uint64
    )
    blocks = (count - 1) // _BYTES_OF_BLOCK
    for first in range(0, blocks, _BLOCKS_AT_A_TIME):
        some = data[first * _BYTES_OF_BLOCK : min(first + _BLOCKS_AT_A_TIME, blocks) * _BYTES_OF_BLOCK]
        # The contribution of a block does not depend on earlier blocks, and sums modulo 2**64 are commutative.
        for added in _added(some.reshape(-1, _STRIPES_OF_BLOCK, _STRIPE), _SECRETS):
            accumulators = _scrambled(accumulators + added)
    stripes = (count - 1 - blocks * _BYTES_OF_BLOCK) // _STRIPE
    rest = data[blocks * _BYTES_OF_BLOCK : blocks * _BYTES_OF_BLOCK + stripes * _STRIPE].reshape(1, stripes, _STRIPE)
    accumulators = accumulators + _added(rest, _SECRETS[:stripes])[0]
    last = data[count - _STRIPE :].reshape(1, 1, _STRIPE)
    accumulators = accumulators + _added(last, _words_of_secret(len(_SECRET) - 71)[np.newaxis])[0]
    found = accumulators.tolist()
    return (
        _merged(found, count * _PRIME64_1 & _MASK64, 11),
        _merged(found, ~(count * _PRIME64_2) & _MASK64, len(_SECRET) - 75),
    )


def _words_of_secret(offset: int) -> Words:
    return np.frombuffer(_SECRET[offset : offset + _STRIPE], "<u8").astype(np.uint64)


_SECRETS: Final[Words] = np.stack([_words_of_secret(8 * i) for i in range(_STRIPES_OF_BLOCK)])
"""For each stripe of a block."""


def _added(blocks: NDArray[np.uint8], secrets: Words) -> Words:
    """The contribution of each of the blocks (n, stripes, 64 bytes) to the eight accumulators: (n, 8)."""
    words = np.ascontiguousarray(blocks).view("<u8").astype(np.uint64, copy=False)
    mixed = words ^ secrets
    products = (mixed & _LOW) * (mixed >> _HALF)
    neighbours = words.reshape(*words.shape[:2], 4, 2)[..., ::-1].reshape(words.shape)
    total: Words = (products + neighbours).sum(axis=1, dtype=np.uint64)
    return total


def _scrambled(accumulators: Words) -> Words:
    mixed = accumulators ^ (accumulators >> np.uint64(47)) ^ _words_of_secret(len(_SECRET) - _STRIPE)
    scrambled: Words = mixed * np.uint64(_PRIME32_1)
    return scrambled


def _merged(accumulators: list[int], result: int, offset: int) -> int:
    for i in range(0, 8, 2):
        result += _folded_product(
            accumulators[i] ^ _word(_SECRET, offset + 8 * i), accumulators[i + 1] ^ _word(_SECRET, offset + 8 * i + 8)
        )
    return _avalanche(result & _MASK64)


# A file to which records are appended: the twin of native/append_file.cpp, used if the compiled module is missing.
#
# A record is a header of a multiple of 64 bytes and its elements, padded with zeros to such a multiple. Its offset in the file and
# two checksums are filled in here; `layouts/packed.py` defines the rest of the header. This twin writes in the thread of the
# caller.

ALIGNMENT: Final = 64
OFFSET_FIELD: Final = 24
ELEMENTS_HASH: Final = 48
HEADER_HASH: Final = 56
_MOST_BUFFERED: Final = 1 << 20
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
        self._most_waiting = min(_MOST_BUFFERED, capacity)

    def append(self, header: bytes, elements: int, byte_count: int) -> int:
        """Copy a record with `byte_count` bytes of elements at an address; returns its offset in the file.

        Returns -1 and copies nothing if the file was stopped or a write failed. Raises ValueError for a header of another size.
        """
        if len(header) < ALIGNMENT or len(header) % ALIGNMENT:
            raise ValueError("the size of a record's header must be a multiple of 64 bytes")
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


# Fills tables of repeated text with numbers: the twin of the compiled `TableText`, used if the compiled module is missing. The output
# equals `template % values`.

_PLACES: Final = re.compile("%[dgs%]")


class TableText:
    """A reusable template for `%` with `%d`, `%g`, `%s` and `%%`. Raises ValueError for other conversions."""

    def __init__(self, template: str) -> None:
        if "%" in _PLACES.sub("", template):
            raise ValueError("a template may contain only %d, %g, %s and %% as conversions")
        self._template = template

    def fill(self, columns: list[NDArray[np.float64] | list[Any]]) -> bytes:
        """The text in UTF-8, with other characters escaped: row by row, one value of each column.

        Raises ValueError if the columns differ in length, and for NaN as an integer; TypeError if the template has another number
        of placeholders, and for a value that is not a number where one is needed.
        """
        if len({*map(len, columns)}) > 1:
            raise ValueError("the columns of a table must have the same length")
        # Row by row: assigning whole columns takes a third of the time of one tuple per row.
        cells: list[Any] = [0] * sum(map(len, columns))
        for place, column in enumerate(columns):
            cells[place :: len(columns)] = column if isinstance(column, list) else column.tolist()
        return (self._template % tuple(cells)).encode("utf-8", "backslashreplace")
