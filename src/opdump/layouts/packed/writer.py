"""Writes a rank of a dump in the packed layout.

    {path}/rank_{rank}/
        .dump_metadata/   data_dump.json  config.json  index.sqlite
        elements/         {run}.pack
        graphs/           ms_output_trace_code_graph_{graph}.ir and .pb
        execution_order/  ms_execution_order_graph_{graph}.csv  ms_global_execution_order_graph_{graph}.csv

Statistics and arguments are only in the index. `opdump unpack` writes the files of other layouts.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.index.batch import Batch
from opdump.index.writer import NOTHING_COUNTED, RunFacts
from opdump.kernels import AppendFile
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.layouts.packed.record import encode_header
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import FILE_MODE, DirectorySink

# Writes the file with the elements of a run, and the sink of a rank that has one.

_THREADS = 2


class ElementsFile:
    """A new file below a directory of a dump. Write errors of `AppendFile` are raised as OSError, here and in later calls.

    Raises OSError if it cannot be created, and FileExistsError if the name is taken.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        self._path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        status = os.fstat(self._descriptor)
        self._identity = status.st_dev, status.st_ino
        self._id = os.urandom(16)
        self._file = AppendFile(self._descriptor, _THREADS, capacity)
        self._closed = False

    @property
    def bytes_written(self) -> int:
        return self._file.bytes_written

    @property
    def bytes_appended(self) -> int:
        """Bytes written, and waiting to be written."""
        return self._file.bytes_appended

    @property
    def seconds_waited(self) -> float:
        return self._file.seconds_waited

    @property
    def is_whole(self) -> bool:
        """Whether everything appended is written."""
        return self._file.bytes_written == self._file.bytes_appended

    def append(self, name: str, array: npt.NDArray[Any]) -> int:
        """Copy the elements; returns the offset of their record. They are written in the background, with a limit on waiting
        bytes.
        """
        name_of_type, dtype = _little_endian(array.dtype)
        contiguous = np.ascontiguousarray(array, dtype=dtype)
        header = encode_header(name_of_type, array.shape, name, contiguous.nbytes, self._id)
        offset = self._file.append(header, contiguous.ctypes.data if contiguous.nbytes else 0, contiguous.nbytes)
        if offset < 0:
            self._raise_error()
        return offset

    def push(self) -> None:
        """Pass everything appended to the threads. Raises FileNotFoundError if the file was removed or replaced."""
        self._file.push()
        self._raise_error()
        status = os.stat(self._path, follow_symlinks=False)
        if (status.st_dev, status.st_ino) != self._identity:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path))

    def flush(self) -> None:
        """Return when everything is written."""
        self._file.flush()
        self._raise_error()

    def close(self) -> None:
        """Write everything appended and end the threads. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._file.stop()
        try:
            os.fchmod(self._descriptor, FILE_MODE)
        finally:
            os.close(self._descriptor)
        self._raise_error()

    def _raise_error(self) -> None:
        number = self._file.error
        if number:
            raise OSError(number, os.strerror(number), str(self._path))


@cache
def _little_endian(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    little = dtype.newbyteorder("<")
    return little.name, little


class PackedSink(DirectorySink):
    """The files of a rank, one of which has the elements of all tensors and is created with the first of them."""

    def __init__(self, root: Path, *, capacity: int = 2**30) -> None:
        super().__init__(root, capacity=capacity)
        self.elements = "elements/1.pack"
        """That file, below the root; its owner sets it before the first elements."""
        self._open: list[ElementsFile] = []
        # Also runs at the end of the interpreter, if the sink was not closed.
        self._end = weakref.finalize(self, _close_all, self._open, os.getpid())

    @property
    def seconds_waited(self) -> float:
        """Total time that callers have waited because the queue was full."""
        return super().seconds_waited + sum(file.seconds_waited for file in self._open)

    @property
    def bytes_handed(self) -> int:
        """Bytes written, and waiting for the disk."""
        waiting = sum(file.bytes_appended for file in self._open) - self._state.counted(self.elements)
        return super().bytes_handed + max(waiting, 0)

    @property
    def files_lost(self) -> int:
        """Files that are incomplete on disk, including the one with the elements while some of them wait."""
        return super().files_lost + sum(not file.is_whole for file in self._open)

    def append_elements(self, name: str, array: npt.NDArray[Any]) -> str:
        """Append elements under this name, copied before this returns; returns their place: `elements/1.pack@4096`."""
        offset = 0
        if self._state.is_ready():
            try:
                offset = self._elements().append(name, array)
            except OSError as error:
                self._failed(error)
        return f"{self.elements}@{offset}"

    def push(self) -> None:
        """Pass all elements to the threads that write them. Raises DumpPathError if they can no longer be written."""
        if self._state.is_ready():
            self._each(ElementsFile.push)
            for file in self._open:
                self._state.count_again(self.elements, file.bytes_written)

    def flush(self) -> None:
        if not self._state.is_elsewhere():
            self._each(ElementsFile.flush)
        super().flush()

    def close(self) -> None:
        if self._state.is_elsewhere():
            return
        self._end.detach()
        try:
            self._each(ElementsFile.close)
            for file in self._open:
                self._state.count_again(self.elements, file.bytes_written)
        finally:
            super().close()

    def _elements(self) -> ElementsFile:
        if not self._open:
            above, _, _ = self.elements.rpartition("/")
            self.make_directory(above)
            self._open.append(ElementsFile(self.root / self.elements, self.capacity))
        return self._open[0]

    def _each(self, do: Callable[[ElementsFile], None]) -> None:
        try:
            for file in self._open:
                do(file)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self._state.fail(self.elements, error)
        self._state.raise_failure()


def _close_all(files: list[ElementsFile], process: int) -> None:
    """Write what waits, in the process that it belongs to. A failure was reported already, or there is no caller left for it."""
    if os.getpid() == process:
        for file in files:
            with suppress(OSError):
                file.close()


ELEMENTS = "elements"
SUFFIX = ".pack"


class PackedWriter(SyncWriter):
    """Writes the records of one rank like `SyncWriter`, except that elements go into one file, and tables are not written."""

    sink: PackedSink

    def __init__(self, plan: DumpPlan, run: RunFacts) -> None:
        super().__init__(plan, run)
        self.sink.elements = f"{ELEMENTS}/{self.run_id}{SUFFIX}"

    @property
    def layout_name(self) -> str:
        return "packed"

    def write_kernel_args(self, op: OpRecord) -> None:
        """The arguments are in the index."""

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int] = NOTHING_COUNTED,
    ) -> None:
        """Write the execution history and one transaction of the index, after the elements are on their way to the disk."""
        self.sink.push()
        super().write_step(step, ops, tensors, files, counted)

    def _opened_sink(self) -> PackedSink:
        return PackedSink(self.root, capacity=self.plan.queue_bytes)

    def _write_statistics(self, batch: Batch) -> None:
        pass

    def _write_npy(self, directory: str, name: str, record: TensorRecord) -> str:
        if record.payload is None:
            raise ValueError(f"{record.name}: has no payload to write")
        return self.sink.append_elements(f"{directory}/{name}", record.payload.to_host())
