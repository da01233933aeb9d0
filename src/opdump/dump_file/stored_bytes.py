"""Reads bytes of untrusted files: sizes are checked before anything is allocated."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from opdump.errors import CorruptDumpError, UndecodableTensorError

# Smaller files are read at once: mapping costs more than copying.
_SMALL = 1 << 18
_PIECE = 1 << 20
MOST_DIMENSIONS = 64
"""Maximum number of dimensions of a shape in a file: devices support 25, numpy 64."""


class FileSource:
    """A regular file, read at once if it is small and mapped if it is large.

    A mapping is released when nothing refers to it, and created again on demand: many headers in memory keep no files open.
    Raises CorruptDumpError with the file name if it cannot be opened, is not a regular file, or was replaced in the meantime.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._small: memoryview | None = None
        self._mapping: Callable[[], mmap.mmap | None] = _nothing_mapped
        descriptor, status = open_regular(path)
        try:
            self.size = status.st_size
            self._identity = _identity(status)
            if self.size < _SMALL:
                self._small = self._all(descriptor)
            else:
                self._absolute = path.absolute()
        finally:
            os.close(descriptor)

    def read(self, start: int, size: int) -> memoryview:
        """Bytes `start` to `start + size`; the caller has checked that they exist."""
        data = self._small if self._small is not None else memoryview(self._mapped())
        return data[start : start + size]

    def part(self, start: int, size: int) -> FileBytes:
        """The same, to be read later."""
        return FileBytes(self, start, size)

    def pieces(self, start: int, size: int, first: int) -> Generator[memoryview, None, None]:
        """The same piece by piece, the first of `first` bytes; each is valid until the next is requested.

        All pieces share one buffer: a disk writes its content faster than the pages of a mapped file.
        """
        if self._small is not None:
            yield self._small[start : start + size]
            return
        descriptor = self._opened_again()
        try:
            buffer = memoryview(bytearray(min(size, _PIECE)))
            done = 0
            while done < size:
                count = os.preadv(descriptor, [buffer[: min(size - done, _PIECE if done else first)]], start + done)
                if count == 0:
                    raise CorruptDumpError(f"{self.path}: shrank while it was read: found {start + done} bytes")
                yield buffer[:count]
                done += count
        except OSError as error:
            raise CorruptDumpError(
                f"{self.path}: cannot be read ({error.strerror}); a dump file was expected"
            ) from error
        finally:
            os.close(descriptor)

    def _all(self, descriptor: int) -> memoryview:
        try:
            data = os.pread(descriptor, self.size, 0) if self.size else b""
        except OSError as error:
            raise CorruptDumpError(
                f"{self.path}: cannot be read ({error.strerror}); a dump file was expected"
            ) from error
        if len(data) != self.size:
            raise CorruptDumpError(f"{self.path}: shrank while it was read: found {len(data)} of {self.size} bytes")
        return memoryview(data)

    def _mapped(self) -> mmap.mmap:
        mapping = self._mapping()
        if mapping is not None:
            return mapping
        descriptor = self._opened_again()
        try:
            mapping = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: shorter than a moment ago
            raise CorruptDumpError(f"{self.path}: cannot be read ({error}); a dump file was expected") from error
        finally:
            os.close(descriptor)
        self._mapping = weakref.ref(mapping)
        return mapping

    def _opened_again(self) -> int:
        descriptor, status = open_regular(self._absolute)
        if _identity(status) != self._identity:
            os.close(descriptor)
            raise CorruptDumpError(f"{self.path}: was changed after its header was read; read it again")
        return descriptor


def _nothing_mapped() -> None:
    return None


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def open_regular(path: Path, expected: str = "a dump file") -> tuple[int, os.stat_result]:
    """A descriptor of a regular file, and its status. Raises CorruptDumpError, which names what was `expected`."""
    # O_NONBLOCK: opening a FIFO must not wait for its writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be opened ({error.strerror}); {expected} was expected") from error
    except ValueError as error:
        raise CorruptDumpError(f"{path!r}: is not a path ({error}); {expected} was expected") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise CorruptDumpError(f"{path}: is not a regular file; {expected} was expected")
    return descriptor, status


class Bytes(ABC):
    """A range of bytes, in memory or in a file. Equal to another with the same content."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # by content it would have to read all of it

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self) -> memoryview:
        """The bytes, read-only; those of a large file are mapped."""

    @property
    def path(self) -> Path | None:
        """The file that contains them."""
        return None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bytes):
            return NotImplemented
        return len(self) == len(other) and (len(self) == 0 or self.read() == other.read())


@dataclass(frozen=True, slots=True, eq=False)
class HeldBytes(Bytes):
    """Bytes in memory."""

    data: bytes | memoryview = field(repr=False)

    def __len__(self) -> int:
        return memoryview(self.data).nbytes

    def read(self) -> memoryview:
        return memoryview(self.data).cast("B").toreadonly() if len(self) else memoryview(b"")


@dataclass(frozen=True, slots=True, eq=False)
class FileBytes(Bytes):
    """A range of a file."""

    source: FileSource = field(repr=False)
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def read(self) -> memoryview:
        return self.source.read(self.start, self.size)

    @property
    def path(self) -> Path:
        return self.source.path


@dataclass(frozen=True, slots=True, eq=False)
class UnreadableBytes(Bytes):
    """Replaces bytes that a file announces but that are unavailable, with the reason."""

    origin: Path | None
    reason: str

    def __len__(self) -> int:
        return 0

    def read(self) -> memoryview:
        """Raises UndecodableTensorError, because there are no bytes."""
        raise UndecodableTensorError(f"{self.origin}: {self.reason}" if self.origin else self.reason)

    @property
    def path(self) -> Path | None:
        return self.origin
