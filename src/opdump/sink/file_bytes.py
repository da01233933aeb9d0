"""Writes the bytes of files: small ones at once, large ones without the cache of the system (O_DIRECT) if that is not much slower.

Copying a large file into the cache needs more processor time than everything else that a dump does with it, and evicts the program's data.
native/append_file.cpp does the same for elements in one file.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

try:
    import fcntl
except ImportError:  # pragma: no cover  such a system writes through its cache
    _FLAG = 0
else:
    _FLAG = getattr(os, "O_DIRECT", 0)

Buffer = bytes | memoryview | npt.NDArray[np.uint8]

_LARGE: Final = 1 << 20
_PAGE: Final = 4096
"""Writes that bypass the cache begin and end at multiples of this, in memory and in the file."""
_CHUNK: Final = 1 << 22
_MOST_BUFFERS: Final = 1000  # the kernel takes 1024 at once
_WORTH: Final = 4.0
"""The cache is used if it is faster by more than this factor."""
_PATIENCE: Final = 16, 256
"""The other way is tried again after this many files, then after twice as many, up to the second number."""
_FIRST_TRIES: Final = 4
"""Number of first files that use both ways in turns, before one is chosen."""

_local = threading.local()


class FileBytes:
    """Writes files for several threads and learns which way is faster."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pace = [0.0, 0.0]
        """Seconds per byte with and without the cache; 0 if not tried yet."""
        self._tried = 0
        self._is_refused = not _FLAG
        self._since = 0
        self._patience = _PATIENCE[0]

    def write(self, descriptor: int, buffers: Sequence[Buffer]) -> int:
        """Write all `buffers` into an empty file. Return the number of bytes. Raises OSError."""
        written = 0
        if len(buffers) == 1 and isinstance(buffers[0], bytes):
            # A small file usually needs one call; the lists below cost as much as that call.
            if len(buffers[0]) < _LARGE:
                written = os.write(descriptor, buffers[0])
            if written == len(buffers[0]):
                return written
        views = _after(written, [_bytes_of(buffer) for buffer in buffers if len(buffer)])
        size = sum(map(len, views))
        if size < _LARGE or self._is_refused:
            return written + _write_views(descriptor, views)
        goes_past = self._next_goes_past()
        began = time.monotonic()
        done = _write_past_cache(descriptor, views) if goes_past else 0
        self._is_refused = goes_past and not done
        _write_views(descriptor, _after(done, views))
        self._took(goes_past, (time.monotonic() - began) / size)
        return written + size

    def _next_goes_past(self) -> bool:
        with self._lock:
            if self._tried < _FIRST_TRIES:
                self._tried += 1
                return self._tried % 2 == 1
            through, past = self._pace
            is_past = past <= _WORTH * through
            self._since += 1
            if self._since < self._patience:
                return is_past
            self._since, self._patience = 0, min(2 * self._patience, _PATIENCE[1])
            return not is_past

    def _took(self, went_past: bool, pace: float) -> None:
        with self._lock:
            before = self._pace[went_past]
            self._pace[went_past] = (before + pace) / 2 if before else pace


def _write_past_cache(descriptor: int, views: Sequence[memoryview]) -> int:
    """Write the first bytes of an empty file, up to the last whole page. Return their number, which is smaller if the system refuses some or all.

    The caller writes the rest through the cache, where a real error occurs again.
    """
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    written = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _FLAG)
        for chunk in _chunks(views):
            done = os.write(descriptor, chunk)
            written += done
            if done < len(chunk):
                break
    except OSError:
        pass
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return written


def _chunks(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yield the bytes of `views` up to the last whole page, in memory that is aligned to pages."""
    memory = _memory()
    whole = _bytes_of(memory)
    used = 0
    for view in views:
        source = np.frombuffer(view, np.uint8)
        while source.size:
            count = min(source.size, _CHUNK - used)
            np.copyto(memory[used : used + count], source[:count])  # releases the GIL
            source, used = source[count:], used + count
            if used == _CHUNK:
                yield whole
                used = 0
    if used >= _PAGE:
        yield whole[: used // _PAGE * _PAGE]


def _memory() -> npt.NDArray[np.uint8]:
    """Return a buffer of this thread, which is kept."""
    found: npt.NDArray[np.uint8] | None = getattr(_local, "memory", None)
    if found is None:
        # Private: the memory that Python maps by default is shared with forked processes.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        found = _local.memory = np.frombuffer(mmap.mmap(-1, _CHUNK, flags=flags), np.uint8)
    return found


def _bytes_of(buffer: Buffer) -> memoryview:
    return (buffer.data if isinstance(buffer, np.ndarray) else memoryview(buffer)).cast("B")


def _write_views(descriptor: int, views: list[memoryview]) -> int:
    total = 0
    while views:
        written = os.writev(descriptor, views[:_MOST_BUFFERS])
        total += written
        views = _after(written, views)
    return total


def _after(count: int, views: list[memoryview]) -> list[memoryview]:
    """Return what follows the first `count` bytes."""
    for place, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[place + 1 :]]
        count -= len(view)
    return []
