"""A directory as a sink.

Every file appears whole or not at all: bytes go to a temporary name in the same directory, then a rename gives the file its
name. Arrays are queued and written by a few threads; the queue is bounded by bytes, and a caller that is faster than the disk
waits. The first failure stops the writing and is raised as DumpPathError in the caller, at its next call.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.errors import DumpPathError
from opdump.sink.npy import encode_npy

Buffer = bytes | memoryview | npt.NDArray[np.uint8]
_File = tuple[str, Sequence[Buffer]]
"""Its path, and what it consists of."""

DIRECTORY_MODE = 0o700
FILE_MODE = 0o400
"""As MindSpore sets them: a dump holds weights and data, and nothing changes it once it is written."""

_MOST_BUFFERS = 1000  # the kernel takes 1024 at once


class DirectorySink:
    """Files below `root`, written by `writers` threads from a queue of at most `capacity` bytes.

    An array larger than `capacity` waits for an empty queue. A process forked from this one (a data-loader worker) inherits
    no threads and owns none of the queued arrays: in it every call does nothing.
    """

    def __init__(
        self, root: Path, *, writers: int = 2, capacity: int = 2**30, file_mode: int = FILE_MODE, lazy: bool = False
    ) -> None:
        """`lazy`: the directory is made with the first file, and not at all where none comes."""
        self.root = Path(root)
        self._state = _State(str(self.root), max(1, writers), max(1, capacity), file_mode)
        if not lazy:
            make_directory(self.root)
        # Runs at the end of the interpreter too, where nobody closed the sink: what was queued is still written.
        self._finalizer = weakref.finalize(self, _finish, self._state)

    @property
    def files_written(self) -> int:
        return self._state.files

    @property
    def bytes_written(self) -> int:
        return self._state.bytes

    @property
    def failed(self) -> bool:
        """Whether some file could not be written."""
        return self._state.failed

    def write_array(self, relative: str, array: npt.NDArray[Any]) -> None:
        state = self._state
        if state.is_elsewhere():
            return
        state.raise_failure()
        state.put(f"{state.root}/{relative}", encode_npy(array))

    def write_parts(self, relative: str, parts: Sequence[Buffer]) -> None:
        """Queue a file that consists of these bytes, one after the other; nobody may change them afterwards."""
        state = self._state
        if state.is_elsewhere():
            return
        state.raise_failure()
        state.put(f"{state.root}/{relative}", parts)

    def write_small(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Queue many small files, each (relative, its bytes); one thread writes them in this order.

        Neighbours whose directory is not there yet appear at once, with it. To hand them over one by one costs more than to write
        them: threads that make files in one directory wait for each other.
        """
        state = self._state
        if state.is_elsewhere():
            return
        state.raise_failure()
        if files:
            state.put_all([(f"{state.root}/{relative}", (data,)) for relative, data in files])

    def write_bytes(self, relative: str, data: bytes) -> None:
        state = self._state
        if state.is_elsewhere():
            return
        state.raise_failure()
        path = f"{state.root}/{relative}"
        try:
            state.write(path, (data,))
        except OSError as error:
            state.fail(path, error)
        state.raise_failure()

    def flush(self) -> None:
        state = self._state
        if state.is_elsewhere():
            return
        state.wait_until_empty()
        state.raise_failure()

    def close(self) -> None:
        """Write what is queued, stop the threads. Raises DumpPathError for a failure that no earlier call raised."""
        state = self._state
        if state.is_elsewhere():
            return
        told = state.failure_told
        state.stop()
        self._finalizer.detach()
        if not told:
            state.raise_failure()


def make_directory(path: Path) -> None:
    """Make `path` and the missing directories above it, all for their owner alone. Raises DumpPathError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    try:
        for directory in reversed(missing):
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise DumpPathError(
            f"{directory}: the directory cannot be made ({error.strerror}): set 'path' in common_dump_settings to a "
            "directory that this user can write"
        ) from error


class _State:
    """The queue and the counters; apart from the sink so that the threads keep no sink alive."""

    def __init__(self, root: str, writers: int, capacity: int, file_mode: int) -> None:
        self.root = root
        self.file_mode = file_mode
        self.writers = writers
        self.capacity = capacity
        self.files = 0
        self.bytes = 0
        self.failure_told = False
        self._failure: DumpPathError | None = None
        self._queue: deque[tuple[Sequence[_File], int]] = deque()
        """Files that one thread writes one after the other, and their bytes."""
        self._held = 0  # bytes queued or being written
        self._unfinished = 0
        self._waiting_writers = 0
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._directories: set[str] = set()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._serial = 0
        # Not the process id: containers number alike, and a killed run may have left a file.
        self._token = os.urandom(6).hex()
        self._process = os.getpid()

    def is_elsewhere(self) -> bool:
        return os.getpid() != self._process

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def raise_failure(self) -> None:
        if self._failure is not None:
            self.failure_told = True
            # A new object each time: raising one twice would grow its traceback and keep frames alive.
            raise DumpPathError(str(self._failure)) from self._failure.__cause__

    def fail(self, path: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        with self._lock:
            if self._failure is None:
                self._failure = DumpPathError(
                    f"{path}: cannot be written ({reason}) after {self.files} files and {self.bytes} bytes: free space, or "
                    "dump less ('iteration', 'kernels', saved_data 'statistic'), or set 'path' to another disk; the files "
                    "written so far are whole"
                )
                self._failure.__cause__ = error
            self._room.notify_all()

    def put(self, path: str, buffers: Sequence[Buffer]) -> None:
        self.put_all([(path, buffers)])

    def put_all(self, files: Sequence[_File]) -> None:
        size = sum(
            buffer.nbytes if isinstance(buffer, np.ndarray) else len(buffer)
            for _, buffers in files
            for buffer in buffers
        )
        with self._lock:
            while self._held and self._held + size > self.capacity and self._failure is None:
                self._room.wait()
            if self._stopping:
                raise DumpPathError(f"{files[0][0]}: the dump is closed; open another one")
            self._queue.append((files, size))
            self._held += size
            self._unfinished += 1
            if self._waiting_writers:
                self._work.notify()
            elif len(self._threads) < self.writers:
                thread = threading.Thread(target=self._run, name="opdump writer", daemon=True)
                self._threads.append(thread)
                thread.start()

    def wait_until_empty(self) -> None:
        with self._lock:
            while self._unfinished:
                self._room.wait()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self._work.notify_all()
        for thread in self._threads:
            thread.join()

    def write(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write one file whole. Raises OSError, and leaves no temporary file then."""
        directory = path.rpartition("/")[0]
        if directory not in self._directories:
            make_directory(Path(directory))
            self._directories.add(directory)
        temporary = f"{directory}/{self._temporary_name()}"
        try:
            size = _write_file(temporary, buffers, self.file_mode)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        with self._lock:
            self.files += 1
            self.bytes += size

    def _write_all(self, files: Sequence[_File]) -> None:
        """Write files of one job, up to the first that fails."""
        for directory, neighbours in groupby(files, key=_directory_of):
            group = list(neighbours)
            is_new = len(group) > 1 and directory not in self._directories and not os.path.exists(directory)
            path = directory
            try:
                if is_new:
                    self._write_directory(directory, group)
                else:
                    for path, buffers in group:  # whose path is the one that failed
                        self.write(path, buffers)
            except OSError as error:
                self.fail(path, error)
                return
            except DumpPathError as error:
                self._failure = self._failure or error
                return

    def _write_directory(self, directory: str, files: Sequence[_File]) -> None:
        """Write a new directory: one change of name, which is a third of what a small file costs, in place of many."""
        parent = Path(directory).parent
        make_directory(parent)
        temporary = parent / self._temporary_name()
        temporary.mkdir(mode=DIRECTORY_MODE)
        whole: list[str] = []
        size = 0
        try:
            for path, buffers in files:
                name = path.rpartition("/")[2]
                try:
                    size += _write_file(f"{temporary}/{name}", buffers, self.file_mode)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary / name)
                    raise
                whole.append(name)
        finally:
            _publish(temporary, directory, whole)
            self._directories.add(directory)
            with self._lock:
                self.files += len(whole)
                self.bytes += size

    def _temporary_name(self) -> str:
        self._serial += 1  # a lost update would give two threads one name, hence the thread in it
        return f".{self._token}-{threading.get_ident()}-{self._serial}.part"

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    if self._stopping:
                        return
                    self._waiting_writers += 1
                    self._work.wait()
                    self._waiting_writers -= 1
                files, size = self._queue.popleft()
            if self._failure is None:
                self._write_all(files)
            del files
            with self._lock:
                self._held -= size
                self._unfinished -= 1
                self._room.notify_all()


def _publish(temporary: Path, directory: str, names: Iterable[str]) -> None:
    """Give a directory that was written under another name its own."""
    try:
        os.rename(temporary, directory)
    except OSError:
        if not os.path.isdir(directory):
            raise
        for name in names:  # somebody else made it meanwhile
            os.replace(temporary / name, f"{directory}/{name}")
        temporary.rmdir()


def _directory_of(file: _File) -> str:
    return file[0].rpartition("/")[0]


def _write_file(path: str, buffers: Sequence[Buffer], mode: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if len(buffers) == 1 and isinstance(buffers[0], bytes):
            # Most often taken at once; for a small file the lists of `_write_views` cost as much as the call.
            written = os.write(descriptor, buffers[0])
            if written == len(buffers[0]):
                return written
            return written + _write_views(descriptor, [memoryview(buffers[0])[written:]])
        return _write_views(descriptor, [memoryview(buffer) for buffer in buffers if len(buffer)])  # type: ignore[arg-type]  # numpy arrays are buffers
    finally:
        os.close(descriptor)


def _write_views(descriptor: int, views: list[memoryview]) -> int:
    total = 0
    while views:
        written = os.writev(descriptor, views[:_MOST_BUFFERS])
        total += written
        while views and written >= len(views[0]):
            written -= len(views[0])
            views.pop(0)
        if views and written:
            views[0] = views[0][written:]
    return total


def _finish(state: _State) -> None:
    if not state.is_elsewhere():
        state.stop()
