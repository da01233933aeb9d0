"""Widens elements of types that numpy lacks, with a table of the values of each byte."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Codes looked up at once: numpy's indices for them stay in the cache.
_CHUNK: Final = 1 << 15
# For fewer codes, building the table of pairs costs more than it saves.
_WORTH_PAIRS: Final = 1 << 17


def widen(codes: npt.NDArray[np.uint8], table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values of the bytes `codes`, in order, in one dimension.

    `table` has a row for each of the 256 bytes, in C order: a row contains the elements of one byte, and takes 1, 2, 4 or 8
    bytes.
    """
    if table.dtype == np.float32 and table.size == 256:
        from opdump.kernels import active, widened  # most files have no such type

        if active().startswith("native"):
            return widened(codes, table.reshape(256))
    rows = table.view(f"u{table.nbytes // 256}").reshape(-1)
    result = np.empty(len(codes), rows.dtype)
    head = 0
    if rows.itemsize <= 4 and len(codes) >= _WORTH_PAIRS:
        # Two bytes at once: half as many steps through a table that still fits in the cache.
        head = len(codes) // 2 * 2
        _look_up(
            codes[:head].view("<u2"), _pairs(rows.tobytes(), rows.itemsize), result[:head].view(f"u{rows.itemsize * 2}")
        )
    _look_up(codes[head:], rows, result[head:])
    return result.view(table.dtype)


def _look_up(codes: npt.NDArray[Any], rows: npt.NDArray[Any], result: npt.NDArray[Any]) -> None:
    for start in range(0, len(codes), _CHUNK):
        part = slice(start, start + _CHUNK)
        # No code is out of range; "clip" avoids a numpy buffer that "raise" needs.
        rows.take(codes[part], out=result[part], mode="clip")


@lru_cache(maxsize=16)
def _pairs(rows: bytes, size: int) -> npt.NDArray[Any]:
    """The rows of two bytes, for all 65536 pairs; the first byte of a pair is the low one."""
    single = np.frombuffer(rows, f"u{size}")
    pairs = np.empty((256, 256, 2), single.dtype)
    pairs[:, :, 0] = single[None, :]
    pairs[:, :, 1] = single[:, None]
    return pairs.reshape(-1).view(f"u{size * 2}")
