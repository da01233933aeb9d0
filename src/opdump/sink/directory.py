"""Writes files below a directory, from a bounded queue.

Every file appears complete or not at all: its bytes go into a temporary file in the same directory, which is then renamed. Nothing is written through
a link. Arrays are queued and written by a few threads. The queue is limited in bytes; a caller that is faster than the disk waits. The first failure
of any kind stops the writing, and the caller gets it as DumpPathError at its next call.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from opdump.errors import DumpPathError
from opdump.interpreter.leftovers import SUFFIX, own_prefix
from opdump.sink.npy import encode_npy
from opdump.sink.open_directories import OpenDirectories, OpenDirectory, refuse_link, remedy_for, write_error

# Writes the bytes of files: small ones at once, large ones without the cache of the system (O_DIRECT) if that is not much slower.
#
# Copying a large file into the cache needs more processor time than everything else that a dump does with it, and evicts the program's data.
# native/append_file.cpp does the same for elements in one file.

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


# Runs jobs of a bounded queue in threads, and empties the queue whatever happens to the threads.
#
# Anything that stops a job or a thread is reported to the owner. No call waits for a thread that does not exist: if none could be started, or all of
# them died, the caller does the work.

Job = TypeVar("Job")


class WriterThreads(Generic[Job]):
    """At most `threads` threads, started on demand, and at most `capacity` bytes in the queue.

    `work` executes a job. `failed` receives an exception of any kind that leaves it. After `give_up`, queued jobs are dropped, and callers do not
    wait for room.
    """

    def __init__(
        self,
        work: Callable[[Job], None],
        failed: Callable[[Job | None, BaseException], None],
        *,
        threads: int,
        capacity: int,
    ) -> None:
        self._do = work
        self._failed = failed
        self._most = threads
        self._capacity = capacity
        self._queue: deque[tuple[Job, int]] = deque()
        self.queued_bytes = 0
        """Bytes queued or being written."""
        self.seconds_waited = 0.0
        """How long callers have waited for room, in total."""
        self._unfinished = 0
        self._idle = 0
        self._started = 0
        """Number of threads that were started and have not ended."""
        self._gave_up = False
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)

    def put(self, job: Job, size: int) -> bool:
        """Queue a job, after waiting for room. Return False, having queued nothing, if the threads were stopped."""
        while True:
            with self._lock:
                if self._stopping:
                    return False
                if not self.queued_bytes or self.queued_bytes + size <= self._capacity or self._gave_up:
                    self._queue.append((job, size))
                    self.queued_bytes += size
                    self._unfinished += 1
                    if self._idle:
                        self._work.notify()
                    elif self._started < self._most:
                        self._start()
                    taken = self._taken_if_alone()
                    break
                taken = self._taken_if_alone()
                if taken is None:
                    began = time.monotonic()
                    try:
                        self._room.wait()
                    finally:
                        self.seconds_waited += time.monotonic() - began
                    continue
            self._run_job(*taken)
        if taken is not None:
            self._run_job(*taken)
        return True

    def give_up(self) -> None:
        """Drop the queued jobs and all later ones."""
        self._gave_up = True
        with self._lock:
            self._room.notify_all()

    def wait_until_empty(self) -> None:
        """Return when every job is done or dropped."""
        while True:
            with self._lock:
                if not self._unfinished:
                    return
                taken = self._taken_if_alone()
                if taken is None:
                    self._room.wait()
                    continue
            self._run_job(*taken)

    def stop(self) -> None:
        """Execute the queued jobs and end the threads. May be called again."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
        self.wait_until_empty()
        for thread in self._threads:
            # A thread that was not started cannot be joined, and no thread can join itself.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="opdump writer", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no more threads available: existing ones or the caller do the work
            self._threads.remove(thread)
        else:
            self._started += 1

    def _taken_if_alone(self) -> tuple[Job, int] | None:
        """Take the next job if there is no thread to do so."""
        return self._queue.popleft() if self._queue and self._started < 1 else None

    def _run(self) -> None:
        try:
            while (taken := self._next()) is not None:
                self._run_job(*taken)
                del taken
        except BaseException as error:  # noqa: BLE001  it would be lost otherwise
            self._failed(None, error)
        finally:
            with self._lock:
                self._started -= 1
                self._room.notify_all()

    def _next(self) -> tuple[Job, int] | None:
        with self._lock:
            while not self._queue:
                if self._stopping:
                    return None
                self._idle += 1
                try:
                    self._work.wait()
                finally:
                    self._idle -= 1
            return self._queue.popleft()

    def _run_job(self, job: Job, size: int) -> None:
        try:
            if not self._gave_up:
                self._do(job)
        except BaseException as error:
            self._failed(job, error)
            if not isinstance(error, Exception):
                raise  # Ctrl-C in a caller that does the work itself; a thread ends
        finally:
            with self._lock:
                self.queued_bytes -= size
                self._unfinished -= 1
                self._room.notify_all()


_File = tuple[str, Sequence[Buffer]]
"""The path below the root, and the contents."""

FILE_MODE = 0o400
"""The mode that MindSpore sets: a dump is not changed after it is written."""


class DirectorySink:
    """Writes files below `root` in `writers` threads, from a queue of at most `capacity` bytes.

    An array larger than `capacity` waits for an empty queue. A process forked from this one (a data-loader worker) has none of the threads and does
    not own the queued arrays; every call does nothing in it.
    """

    def __init__(
        self, root: Path, *, writers: int = 2, capacity: int = 2**30, file_mode: int = FILE_MODE, lazy: bool = False
    ) -> None:
        """`lazy`: create the directory with the first file, and not at all if there is none."""
        self.root = Path(root)
        self.capacity = max(1, capacity)
        """Limit for the bytes that wait to be written."""
        self._state = _State(str(self.root), max(1, writers), max(1, capacity), file_mode)
        if not lazy:
            self._state.directories.at("")
        self.room: Callable[[], int | None] = lambda: None
        """Returns how many bytes a limit leaves for tables, graphs and the index; None without a limit. A file that does not fit is not written."""
        self.has_refused = False
        """Whether something was not written for lack of room."""
        self.refused_steps: set[int] = set()
        """Steps of which nothing could be added to the index for lack of room."""
        # Also runs at the end of the interpreter if the sink was not closed: queued files are still written.
        self._finalizer = weakref.finalize(self, _finish, self._state)

    @property
    def files_written(self) -> int:
        return self._state.files

    @property
    def bytes_written(self) -> int:
        return self._state.bytes

    @property
    def bytes_handed(self) -> int:
        """Bytes that are written or waiting for the disk."""
        return self._state.handed_bytes

    @property
    def bytes_queued(self) -> int:
        """Bytes that are waiting for the disk or being written."""
        return self._state.threads.queued_bytes

    @property
    def files_lost(self) -> int:
        """Number of files that were passed in and are not on disk, including those that are still waiting."""
        return self._state.handed - self._state.files

    @property
    def seconds_waited(self) -> float:
        """How long callers have waited because the queue was full."""
        return self._state.threads.seconds_waited

    @property
    def failed(self) -> bool:
        """Whether a file could not be written."""
        return self._state.failed

    def write_array(self, relative: str, array: npt.NDArray[Any]) -> None:
        """Queue `array` as an npy file. The sink owns the array from now on; the caller must not change it."""
        if self._state.is_ready():
            self._state.put([(relative, encode_npy(array))])

    def take_over(self, relative: str, file: str) -> bool:
        """Move a file into the dump at once, with the permissions of the dump's files. A file with the same name is replaced.

        Return False, having done nothing, if `file` no longer exists or is on another file system.
        """
        return self._state.is_ready() and self._state.take_over(relative, file)

    def write_parts(self, relative: str, parts: Sequence[Buffer]) -> None:
        """Queue a file that consists of these parts. They must not be changed afterwards."""
        if self._state.is_ready():
            self._state.put([(relative, parts)])

    def write_small(self, files: Sequence[tuple[str, bytes]]) -> None:
        """Queue many small files, each as (relative path, bytes). One thread writes them in this order.

        Successive files in a directory that does not exist yet appear at once, together with the directory. Queueing them one by one costs more than
        writing them, because threads that create files in the same directory wait for each other.
        """
        if self._state.is_ready() and files and self._has_room(sum(len(data) for _, data in files)):
            self._state.put([(relative, (data,)) for relative, data in files])

    def write_bytes(self, relative: str, data: bytes) -> None:
        """Write a file at once. A file with the same name is replaced."""
        if self._has_room(len(data) - self._state.counted(relative)):
            self._at_once(self._state.write_again, relative, data)

    def append(self, relative: str, data: bytes) -> None:
        """Append to a file at once, or create it."""
        if self._has_room(len(data)):
            self._at_once(self._state.append, relative, data)

    def _has_room(self, size: int) -> bool:
        room = self.room()
        if room is None or size <= room:
            return True
        self.has_refused = True
        return False

    def _at_once(self, write: Callable[[str, bytes], None], relative: str, data: bytes) -> None:
        if self._state.is_ready():
            try:
                write(relative, data)
            except Exception as error:  # noqa: BLE001  reported like a failure of a thread
                self._state.fail(relative, error)
            self._state.raise_failure()

    def adopt(self, relative: str) -> None:
        """Count a file of the dump that the sink did not write: the index. Each file is counted once."""
        state = self._state
        size = os.stat(f"{state.root}/{relative}", follow_symlinks=False).st_size
        state.count_again(relative, size)

    def read(self, relative: str) -> bytes:
        """Read a file of the dump. Return empty bytes if it does not exist. Raises DumpPathError if it cannot be read."""
        state = self._state
        try:
            return state.read(relative)
        except OSError as error:
            raise DumpPathError(
                f"{state.root}/{relative}: cannot be read ({error.strerror}), but rows must be added to it: {remedy_for(error)}"
            ) from error

    def make_directory(self, relative: str) -> None:
        """Create a directory of the dump. Raises DumpPathError if that fails, or if a link has this name."""
        state = self._state
        try:
            state.directories.at(relative)
        except OSError as error:
            raise write_error(f"{state.root}/{relative}", error, files=state.files, size=state.bytes) from error

    def exists(self, relative: str) -> bool:
        """Return whether an entry with that name exists."""
        return self._state.directories.exists(relative)

    def flush(self) -> None:
        """Wait until everything that was passed in is written."""
        state = self._state
        if state.is_elsewhere():
            return
        state.threads.wait_until_empty()
        state.raise_failure()

    def close(self) -> None:
        """Write what is queued and stop the threads. Raises DumpPathError for a failure that no earlier call raised. May be called again."""
        state = self._state
        if state.is_elsewhere():
            return
        was_raised = state.failure_raised
        state.threads.stop()
        self._finalizer.detach()
        if not was_raised:
            state.raise_failure()


class _State:
    """The queue and the counters. Separate from the sink, so that the threads do not keep the sink alive."""

    def __init__(self, root: str, writers: int, capacity: int, file_mode: int) -> None:
        self.root = root
        self.file_mode = file_mode
        self.handed = 0
        self.handed_bytes = 0
        self.files = 0
        self.bytes = 0
        self.failed = False
        self.failure_raised = False
        self._failure: DumpPathError | None = None
        self.threads: WriterThreads[Sequence[_File]] = WriterThreads(
            self._write_all, self._job_failed, threads=writers, capacity=capacity
        )
        """A job is a list of files that one thread writes in order."""
        self.directories = OpenDirectories(root)
        self._file_bytes = FileBytes()
        self._sizes: dict[str, int] = {}
        """Bytes that this run wrote into files that are written more than once: tables, graphs, histories."""
        self._lock = threading.Lock()
        self._serial = 0
        # A process may have several sinks, and process IDs may be the same in another container.
        self._token = f"{own_prefix()}{os.urandom(6).hex()}"
        self._appending = threading.Lock()
        self._process = os.getpid()

    def is_elsewhere(self) -> bool:
        return os.getpid() != self._process

    def is_ready(self) -> bool:
        """Return whether this process writes. Raises an earlier failure."""
        if self.is_elsewhere():
            return False
        self.raise_failure()
        return True

    def raise_failure(self) -> None:
        if self.failed:
            self.failure_raised = True
            # A new object each time: raising one object twice would grow its traceback and keep frames alive.
            failure = self._failure or DumpPathError(f"{self.root}: cannot be written")
            raise DumpPathError(str(failure)) from failure.__cause__

    def fail(self, path: str, error: BaseException) -> None:
        """Note the first failure. Nothing is written from now on."""
        with self._lock:
            first, self.failed = not self.failed, True
        if first:
            try:
                self._failure = write_error(
                    f"{self.root}/{path}" if path else self.root, error, files=self.files, size=self.bytes
                )
            except MemoryError:
                self._failure = DumpPathError("memory is full, so the dump cannot be written")
        self.threads.give_up()

    def _job_failed(self, job: Sequence[_File] | None, error: BaseException) -> None:
        self.fail(job[0][0] if job else "", error)

    def hand_over(self, count: int, size: int) -> None:
        with self._lock:
            self.handed += count
            self.handed_bytes += size

    def put(self, files: Sequence[_File]) -> None:
        size = sum(
            buffer.nbytes if isinstance(buffer, np.ndarray) else len(buffer)
            for _, buffers in files
            for buffer in buffers
        )
        self.hand_over(len(files), size)
        if not self.threads.put(files, size):
            raise DumpPathError(f"{self.root}/{files[0][0]}: the dump is closed; open another one")

    def write(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write one complete file. Raises OSError, and leaves no temporary file then."""
        above, _, name = path.rpartition("/")
        directory = self.directories.at(above)
        temporary = self._temporary_name()
        try:
            size = _write_file(temporary, buffers, self.file_mode, directory, self._file_bytes.write)
            directory.move(temporary, name)
        except BaseException:
            with suppress(OSError):
                directory.remove(temporary)
            raise
        with self._lock:
            self.files += 1
            self.bytes += size

    def take_over(self, path: str, file: str) -> bool:
        """Move a file. Return False if it does not exist or is on another file system. Raises OSError for other failures."""
        above, _, name = path.rpartition("/")
        directory = self.directories.at(above)
        try:
            size = directory.take(file, name, self.file_mode)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EXDEV):
                return False
            raise
        with self._lock:
            self.handed += 1
            self.handed_bytes += size
            self.files += 1
            self.bytes += size
        return True

    def write_again(self, path: str, data: bytes) -> None:
        """Replace a file by a new version; it counts as one file."""
        is_new = path not in self._sizes
        if is_new:
            self.hand_over(1, 0)
        self.write(path, (data,))
        with self._lock:
            earlier = self._sizes.get(path)
            self._sizes[path] = len(data)
            self.handed_bytes += len(data) - (earlier or 0)
            if earlier is not None:
                self.files -= 1
                self.bytes -= earlier

    def counted(self, path: str) -> int:
        """Return the size that was counted for a file passed to `count_again`."""
        return self._sizes.get(path, 0)

    def count_again(self, path: str, size: int) -> None:
        """Update the size of a file of this run that is written several times; it counts as one file."""
        with self._lock:
            is_new = path not in self._sizes
            self.handed += is_new
            self.files += is_new
            self.bytes += size - self._sizes.get(path, 0)
            self.handed_bytes += size - self._sizes.get(path, 0)
            self._sizes[path] = size

    def append(self, path: str, data: bytes) -> None:
        """Append to a file. Raises OSError, and DumpPathError for a link."""
        above, _, name = path.rpartition("/")
        parent = self.directories.at(above)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with self._appending:
            try:
                try:
                    descriptor = parent.open(name, flags)
                except PermissionError:  # a finished file is read-only
                    parent.change_mode(name, 0o600)
                    descriptor = parent.open(name, flags)
            except OSError as error:
                refuse_link(f"{self.root}/{path}", name, parent, error)
                raise
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fchmod(descriptor, self.file_mode)
                size = os.fstat(descriptor).st_size  # includes what an earlier run wrote
            finally:
                os.close(descriptor)
            self.count_again(path, size)

    def read(self, path: str) -> bytes:
        """Read a file. Return empty bytes if it does not exist. Raises OSError, and DumpPathError for a link."""
        above, _, name = path.rpartition("/")
        parent = self.directories.at(above)
        try:
            descriptor = parent.open(name, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return b""
        except OSError as error:
            refuse_link(f"{self.root}/{path}", name, parent, error)
            raise
        with os.fdopen(descriptor, "rb") as file:
            return file.read()

    def _write_all(self, files: Sequence[_File]) -> None:
        """Write the files of one job, up to the first failure."""
        for directory, neighbours in groupby(files, key=lambda file: file[0].rpartition("/")[0]):
            group = list(neighbours)
            path = directory
            try:
                if len(group) > 1 and self._is_new(directory):
                    self._write_directory(directory, group)
                else:
                    for path, buffers in group:  # `path` names the file that failed
                        self.write(path, buffers)
            except BaseException as error:
                self.fail(path, error)
                if not isinstance(error, Exception):
                    raise
                return

    def _is_new(self, directory: str) -> bool:
        return directory != "" and not self.directories.is_open(directory) and not self.directories.exists(directory)

    def _write_directory(self, directory: str, files: Sequence[_File]) -> None:
        """Write a new directory. It needs one renaming instead of one per file, which is a third of the cost of a small file."""
        above, _, name = directory.rpartition("/")
        parent = self.directories.at(above)
        temporary = self._temporary_name()
        parent.make_directory(temporary)
        hidden = parent.open_directory(temporary)
        whole: list[str] = []
        size = 0
        try:
            for path, buffers in files:
                file = path.rpartition("/")[2]
                try:
                    size += _write_file(file, buffers, self.file_mode, hidden, self._file_bytes.write)
                except BaseException:
                    with suppress(OSError):
                        hidden.remove(file)
                    raise
                whole.append(file)
        finally:
            try:
                parent.move(temporary, name)
            except OSError:  # the directory was created by something else meanwhile
                other = self.directories.at(directory)
                for file in whole:
                    hidden.move(file, file, other)
                parent.remove_directory(temporary)
            with self._lock:
                self.files += len(whole)
                self.bytes += size

    def _temporary_name(self) -> str:
        self._serial += (
            1  # a lost update would produce the same number in two threads, so the thread is part of the name
        )
        return f"{self._token}-{threading.get_ident():x}-{self._serial:x}{SUFFIX}"


def _write_file(
    name: str,
    buffers: Sequence[Buffer],
    mode: int,
    directory: OpenDirectory,
    write: Callable[[int, Sequence[Buffer]], int],
) -> int:
    descriptor = directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        return write(descriptor, buffers)
    finally:
        os.close(descriptor)


def _finish(state: _State) -> None:
    if not state.is_elsewhere():
        state.threads.stop()
