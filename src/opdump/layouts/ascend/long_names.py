"""The name under which a device files what has too long a name: the decimal hash of the whole path.

It is a 64-bit MurmurHash of the path's bytes (docs/files.md#names).
"""

from __future__ import annotations

import os
from typing import Final

_MASK: Final = 2**64 - 1
_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0xC70F6907


def hashed_name(path: str) -> str:
    """`path` in digits.

    >>> hashed_name("abc")
    '3663726644998027833'
    """
    data = os.fsencode(path)
    whole = len(data) & ~7
    value = _SEED ^ (len(data) * _MULTIPLIER & _MASK)
    for start in range(0, whole, 8):
        block = int.from_bytes(data[start : start + 8], "little")
        value = (value ^ (_mixed(block * _MULTIPLIER & _MASK) * _MULTIPLIER & _MASK)) * _MULTIPLIER & _MASK
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    return str(_mixed(_mixed(value) * _MULTIPLIER & _MASK))


def _mixed(value: int) -> int:
    return value ^ (value >> 47)
