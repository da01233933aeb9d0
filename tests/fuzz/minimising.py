"""Shrink an input that fails, so that it still fails in the same place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_SECONDS: Final = 10.0


def minimised(data: bytes, still_fails: Callable[[bytes], bool]) -> bytes:
    """The data without parts that its failure does not need, as far as a few seconds allow; single bytes are tried
    last.
    """
    end = time.monotonic() + _SECONDS
    size = max(1, len(data) // 2)
    while size and time.monotonic() < end:
        place = 0
        while place < len(data) and time.monotonic() < end:
            fewer = data[:place] + data[place + size :]
            if still_fails(fewer):
                data = fewer
            else:
                place += size
        size //= 2
    return data
