"""The header of a npy file as MindSpore writes it; apart from `sink`, since it needs no numpy.

    {'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), }

See docs/files.md#names-of-tensor-files, and numpy's formats 1.0 and 2.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

MAGIC: Final = b"\x93NUMPY"
_ALIGNMENT: Final = 64


def npy_header(descr: str, shape: Iterable[int]) -> bytes:
    """The bytes before the elements, as MindSpore writes them: a multiple of 64, with at least one byte of padding.

    A header over 65535 bytes is written as format 2.0. Dimensions keep a trailing comma, `(2,3,)`; a scalar is `()`.
    """
    dimensions = "".join(f"{size}," for size in shape)
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dimensions}), }}".encode("ascii")
    prefix = len(MAGIC) + 4
    padding = _ALIGNMENT - (prefix + len(text)) % _ALIGNMENT
    length = len(text) + padding
    if length > 0xFFFF:
        padding = _ALIGNMENT - (prefix + 2 + len(text)) % _ALIGNMENT
        length = len(text) + padding
        start = MAGIC + b"\x02\x00" + struct.pack("<I", length)
    else:
        start = MAGIC + b"\x01\x00" + struct.pack("<H", length)
    return start + text + b" " * (padding - 1) + b"\n"
