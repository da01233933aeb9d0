"""The records of a file of elements, one after another, each at a multiple of 64 bytes:

      0  b"OPDPACK1"
      8  bytes of this header, with all padding, u32    12  of the name, u16    14  of the element type, u8    15  axes, u8
     16  bytes of the elements, u64                     24  where this record begins in the file, u64
     32  the file, 16 random bytes
     48  hash of the elements, u64                      56  hash of this header, with 0 in this place, u64
     64  the sizes, u64 each; the element type; the name, in UTF-8; zeros up to a multiple of 64
         the elements, little-endian, C order; zeros up to a multiple of 64

A hash is the lower half of 128-bit XXH3. The name is the path that the tensor's file would have in a synchronous dump of
MindSpore: it identifies a record without any index. A reader trusts nothing: a header is checked against the size of the file and
the two hashes before any of it is used.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from opdump.errors import CorruptDumpError
from opdump.index.batch import Batch
from opdump.index.runs import LostFiles, RunChoice
from opdump.index.values import FilePayload, InFile, inside, is_stored_as
from opdump.index.writer import NOTHING_COUNTED, RunFacts
from opdump.kernels import AppendFile, xxh3_low_pointer
from opdump.kernels.append_file import ALIGNMENT, HEADER_HASH
from opdump.layouts.base import require_run
from opdump.layouts.mindspore_sync.files import (
    FoundFile,
    PlaceFiles,
    RankPlace,
    TensorDirectory,
    parse_file_name,
    place_of,
)
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import FILE_MODE, DirectorySink
from opdump.sink.npy import open_regular
from opdump.step_table import FactsByTemplate, StepTable

MAGIC: Final = b"OPDPACK1"
HEADER: Final = struct.Struct("<8sIHBBQQ16sQQ")
"""The beginning of each header."""
LARGEST_HEADER: Final = 1 << 17
LARGEST_RANK: Final = 64
_FIRST_READ: Final = 1024
_SMALL: Final = 1 << 16
"""Smaller reads are copied: mapping costs more."""
_CHUNK: Final = 1 << 20
_MOST_CANDIDATES: Final = 10_000
"""Maximum number of positions of a file that are searched for a record after a damaged one."""
STORED: Final = {
    name: np.dtype(np.dtype(name).newbyteorder("<").str)  # in the machine's own order, its name has no order
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""The element types that records support, by name."""


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The header of a record, checked against the file; the elements may still not match their hash."""

    dtype: str
    shape: tuple[int, ...]
    name: str
    offset: int
    """Offset of the elements."""
    data_size: int
    elements_hash: int
    end: int
    """Offset of the next record."""
    file: bytes
    """16 bytes that all records of a file share."""


def encode_header(dtype: str, shape: tuple[int, ...], name: str, data_size: int, file: bytes) -> bytes:
    """The header without its offset and its hashes, which `AppendFile` fills in. Raises KeyError for an unsupported type."""
    named = name.encode("utf-8", "backslashreplace")
    prefix, sizes = type_and_sizes(dtype, shape)
    unpadded = HEADER.size + len(sizes) + len(named)
    whole = -(-unpadded // ALIGNMENT) * ALIGNMENT
    fixed = HEADER.pack(MAGIC, whole, len(named), prefix, len(shape), data_size, 0, file, 0, 0)
    return fixed + sizes + named + bytes(whole - unpadded)


@lru_cache(maxsize=10_000)
def type_and_sizes(dtype: str, shape: tuple[int, ...]) -> tuple[int, bytes]:
    """The bytes of a type and the sizes; a program has few combinations."""
    STORED[dtype]
    return len(dtype), struct.pack(f"<{len(shape)}Q", *shape) + dtype.encode("ascii")


def read_header(path: Path, offset: int) -> RecordHeader:
    """The header of the record at an offset. Raises CorruptDumpError with the file name if there is no complete record."""
    descriptor = open_elements(path)
    try:
        return _header(descriptor, path, offset, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def read_elements(path: Path, offset: int) -> tuple[RecordHeader, npt.NDArray[Any]]:
    """The record at an offset and its elements, read-only and in their shape; large ones are mapped, not read.

    Raises CorruptDumpError with the file name if there is no complete record, or if its elements do not match their hash.
    """
    descriptor = open_elements(path)
    try:
        header = _header(descriptor, path, offset, os.fstat(descriptor).st_size)
        size = header.data_size
        if size < _SMALL:
            data: Any = os.pread(descriptor, size, header.offset)
            start = 0
        else:
            page = header.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            start = header.offset - page
            data = mmap.mmap(descriptor, start + size, access=mmap.ACCESS_READ, offset=page)
    except (OSError, ValueError) as error:
        raise CorruptDumpError(f"{path}: the elements at {offset} cannot be read ({error})") from error
    finally:
        os.close(descriptor)
    if len(data) != start + size:
        raise CorruptDumpError(f"{path}: shrank while it was read")
    flat = np.frombuffer(data, np.uint8, size, start)
    if size == 0 or xxh3_low_pointer(flat.ctypes.data, size) == header.elements_hash:
        try:
            return header, flat.view(STORED[header.dtype]).reshape(header.shape)
        except ValueError as error:  # more dimensions than numpy supports
            raise CorruptDumpError(f"{path}: numpy has no array of shape {header.shape}: {error}") from error
    raise CorruptDumpError(
        f"{path}: the elements of {header.name[:200]!r} at {offset} are not those that were written: their hash differs. The file was "
        "damaged or overwritten; dump this step again"
    )


def records_of(path: Path) -> Iterator[tuple[int, RecordHeader | CorruptDumpError]]:
    """The complete records of a file, each with its offset; for other bytes among them, what is wrong with these.

    After such bytes, the search continues with the next complete record of the same file. Raises CorruptDumpError if the file
    cannot be opened.
    """
    descriptor = open_elements(path)
    try:
        size = os.fstat(descriptor).st_size
        offset: int | None = 0
        file: bytes | None = None
        candidates = _MOST_CANDIDATES
        while offset is not None and offset < size:
            try:
                header = _header(descriptor, path, offset, size)
            except CorruptDumpError as error:
                yield offset, error
                offset, candidates = _next_record(descriptor, path, offset + ALIGNMENT, size, file, candidates)
                continue
            yield offset, header
            file, offset = header.file, header.end
    finally:
        os.close(descriptor)


def _next_record(
    descriptor: int, path: Path, begin: int, file_size: int, file: bytes | None, candidates: int
) -> tuple[int | None, int]:
    """The offset of the next complete record of that file, from `begin` on, and the number of positions that may still be
    searched.
    """
    for start in range(begin, file_size, _CHUNK):
        chunk = os.pread(descriptor, _CHUNK, start)
        place = chunk.find(MAGIC)
        while place >= 0:
            if place % ALIGNMENT == 0:
                if not candidates:
                    return None, 0
                candidates -= 1
                with suppress(CorruptDumpError):
                    header = _header(descriptor, path, start + place, file_size)
                    if file is None or header.file == file:  # the elements of a tensor may contain a file of elements
                        return start + place, candidates
            place = chunk.find(MAGIC, place + 1)
    return None, candidates


def open_elements(path: Path) -> int:
    """The descriptor of a file of elements. Raises CorruptDumpError if there is none that can be read."""
    return open_regular(path, expected="a file of elements", named="the dump has its elements in this file")


def _header(descriptor: int, path: Path, offset: int, file_size: int) -> RecordHeader:
    where = f"{path}: at {offset}"
    if offset < 0 or offset % ALIGNMENT or offset + HEADER.size > file_size:
        raise CorruptDumpError(f"{where} no record begins: the file has {file_size} bytes; it was cut off")
    start = os.pread(descriptor, _FIRST_READ, offset)
    if len(start) < HEADER.size or not start.startswith(MAGIC):
        raise CorruptDumpError(f"{where} no record begins: it starts with {start[:8]!r}, expected {MAGIC!r}")
    _, length, name_size, type_size, axes, data_size, own, file, elements_hash, header_hash = HEADER.unpack_from(start)
    sizes_end = HEADER.size + 8 * axes
    if not sizes_end + type_size + name_size <= length <= LARGEST_HEADER or length % ALIGNMENT or axes > LARGEST_RANK:
        raise CorruptDumpError(f"{where} the header of a record claims {length} bytes for {axes} axes")
    end = offset + length + -(-data_size // ALIGNMENT) * ALIGNMENT
    if end > file_size:
        raise CorruptDumpError(f"{where} a record claims {end - offset} bytes of a file of {file_size}; it was cut off")
    if length > len(start):
        start = os.pread(descriptor, length, offset)
    raw = bytearray(start[:length])
    raw[HEADER_HASH : HEADER_HASH + 8] = bytes(8)
    if (len(raw), own, hash_of(raw)) != (length, offset, header_hash):
        raise CorruptDumpError(
            f"{where} the header of a record is damaged: its hash differs, or it belongs to another position"
        )
    shape = struct.unpack_from(f"<{axes}Q", raw, HEADER.size)
    dtype = raw[sizes_end : sizes_end + type_size].decode("latin-1")
    if dtype not in STORED or math.prod(shape) * STORED[dtype].itemsize != data_size:
        raise CorruptDumpError(f"{where} a record claims {data_size} bytes of {dtype[:20]!r} in shape {shape}")
    name = raw[sizes_end + type_size : sizes_end + type_size + name_size].decode("utf-8", "replace")
    return RecordHeader(dtype, shape, name, offset + length, data_size, elements_hash, end, file)


def hash_of(data: bytes | bytearray) -> int:
    """The hash of bytes, as in records."""
    flat = np.frombuffer(data, np.uint8)
    return xxh3_low_pointer(flat.ctypes.data, flat.size)


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


# Reads a rank of a packed dump. Records of an interrupted run that the index does not list are found in the file of elements.

# Elements in a file of elements, read on demand.


@dataclass(frozen=True, slots=True)
class PackedPayload(InFile):
    """Elements in the record at `offset`.

    `dtype` is the original element type and `shape` the shape in the dump; None takes that of the record.
    """

    offset: int
    dtype: str
    shape: tuple[int, ...] | None = None

    def inspect(self) -> None:
        """Raises CorruptDumpError if there is no complete record, or one that does not match the index; no element is read."""
        self.header()

    def header(self) -> RecordHeader:
        """The header of the record. Raises CorruptDumpError like `inspect`."""
        return self._checked(read_header(self.path, self.offset))

    def read(self) -> npt.NDArray[Any]:
        header, elements = read_elements(self.path, self.offset)
        self._checked(header)
        return elements

    def _checked(self, header: RecordHeader) -> RecordHeader:
        if self.shape is None:
            return header
        if header.shape != self.shape or not is_stored_as(self.dtype, header.dtype):
            raise CorruptDumpError(
                f"{self.path}: holds {header.dtype} in shape {header.shape} at {self.offset}, but the index has {self.dtype} in "
                f"shape {self.shape}"
            )
        return header


def open_payload(
    root: Path, file: str, dtype: str, shape: tuple[int, ...] | None = None
) -> FilePayload | PackedPayload:
    """The elements at a place in an index: `elements/1.pack@4096`, or an npy file."""
    name, at, offset = file.rpartition("@")
    if at and name.endswith(".pack") and offset.isascii() and offset.isdecimal() and len(offset) < 19:
        return PackedPayload(root, name, int(offset), dtype, shape)
    return FilePayload(root, file, dtype, shape)


_MOST_DIGITS = 19


class PackedRank(RankTree):
    """The directory of one rank, whose elements are in files of elements.

    The file of a run that was cut off, and all files if the index is lost, are searched from the first complete record to the
    last.
    """

    _open_file = staticmethod(open_payload)

    def __init__(
        self, root: Path, rank_id: int, *, run: RunChoice = "latest", places: Sequence[TensorDirectory] | None = None
    ) -> None:
        self._ends: dict[str, int] = {}
        """The end of the complete records of a file."""
        self._expected = FactsByTemplate(_expected_of)
        super().__init__(root, rank_id, run=run, places=places)

    def _other_places(self) -> tuple[TensorDirectory, ...]:
        found: dict[TensorDirectory, list[FoundFile]] = {}
        for file in self._files_to_look_through():
            self._ends[file] = 0
            try:
                damage: CorruptDumpError | None = None
                for offset, header in records_of(inside(self.root, file)):
                    if damage is not None:
                        self._note(damage)
                        damage = None
                    if isinstance(header, CorruptDumpError):
                        damage = header
                        continue
                    self._ends[file] = header.end
                    directory, _, name = header.name.rpartition("/")
                    place, parsed = place_of(directory), parse_file_name(name)
                    if place is not None and parsed is not None:
                        found.setdefault(place, []).append(FoundFile(parsed, f"{file}@{offset}"))
                # At the end of a run that was cut off, incomplete records are normal.
                if damage is not None and self._index is None:
                    self._note(damage)
            except CorruptDumpError as error:
                self._note(error)
        for place, files in found.items():
            files.sort(key=lambda file: (file.name.timestamp, file.name.io, file.name.slot, file.relative))
            if place not in self.places:
                self._listed[place] = PlaceFiles(tuple(files), (), None)
            else:
                listed = self.files(place)
                self._listed[place] = replace(listed, tensors=(*listed.tensors, *files))
        return tuple(place for place in found if place not in self.places)

    def _files_to_look_through(self) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(inside(self.root, ELEMENTS)) if name.endswith(SUFFIX))
        except OSError:
            names = []
        if self._index is not None:
            complete = {f"{run.id}{SUFFIX}" for run in self._index.runs if run.complete}
            names = [name for name in names if name not in complete]
        return [f"{ELEMENTS}/{name}" for name in names]

    def _present(self, records: Sequence[TensorRecord], run: int, files: LostFiles) -> Sequence[TensorRecord]:
        """The records, without a payload if the elements do not exist."""
        present = list(super()._present(records, run, files))
        lost: Counter[str] = Counter()
        for place, record in enumerate(present):
            payload = record.payload
            if isinstance(payload, PackedPayload) and payload.offset >= self._end_of(payload.relative):
                present[place] = replace(record, payload=None)
                lost[payload.relative] += 1
        for file, count in lost.items():
            why = (
                "it was removed or cut off"
                if self._is_complete(run)
                else "the run was cut off before they were written"
            )
            self._note(
                CorruptDumpError(f"{self.root / file}: {count} tensors are in the index but not in the file: {why}")
            )
        return present

    def _has_elements(self, table: StepTable[TensorRecord]) -> bool:
        """Whether each record begins within the file of elements.

        All elements of a step are in the file of its run. Records in other files are looked up one by one.
        """
        return self._elements_of(table) is not None

    def has_intact_elements(self, table: StepTable[TensorRecord]) -> bool:
        """Whether each record of elements has the expected header."""
        elements = self._elements_of(table)
        if elements is None:
            return False
        expected = self._expected.of(table)
        return are_as_expected(
            inside(self.root, elements[0]), elements[1], expected.at(np.array([*table.files], np.intp))
        )

    def _elements_of(self, table: StepTable[TensorRecord]) -> tuple[str, npt.NDArray[np.int64]] | None:
        """The file of all elements of a step, and where their records begin; None if they are not all within one file."""
        places = [*table.files.values()]
        file, _, _ = places[0].rpartition("@")
        head = f"{file}@"
        if not file.endswith(SUFFIX) or not all(place.startswith(head) for place in places):
            return None
        texts = [place[len(head) :] for place in places]
        digits = "".join(texts)
        if "" in texts or not (digits.isascii() and digits.isdecimal()) or max(map(len, texts)) >= _MOST_DIGITS:
            return None
        offsets = np.array([*map(int, texts)], np.int64)
        return (file, offsets) if offsets.max() < self._end_of(file) else None

    def _end_of(self, file: str) -> int:
        if file not in self._ends:
            try:
                self._ends[file] = os.stat(inside(self.root, file)).st_size
            except (OSError, CorruptDumpError):  # the latter for a file that is not in the dump
                self._ends[file] = 0
        return self._ends[file]


def _expected_of(table: StepTable[TensorRecord]) -> ExpectedHeaders:
    """The expected headers of the records of tensors; those without elements are not checked."""
    return ExpectedHeaders.of((each.dtype, each.payload_shape) for each in table.tensors)


def read_places(path: Path, places: Sequence[RankPlace], run: RunChoice = "latest") -> tuple[PackedRank, ...]:
    """The ranks that `path` refers to. Raises NotInDumpError if none has the run of that number."""
    ranks = tuple(PackedRank(place.root, place.rank_id, run=run, places=place.places) for place in places)
    require_run(path, run, ranks)
    return ranks


# Checks the headers of many records at once, those of the tensors of a step.

_Flags = npt.NDArray[np.bool_]
_FIELDS: Final = np.dtype(
    {
        "names": ["magic", "length", "name_size", "type_size", "axes", "data_size", "offset", "header_hash"],
        "formats": ["S8", "<u4", "<u2", "u1", "u1", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 12, 14, 15, 16, 24, HEADER_HASH],
        "itemsize": HEADER.size,
    }
)
"""The fields of `HEADER`."""
_MOST_ELEMENTS: Final = 1 << 56
_MOST_BYTES: Final = 1 << 20
"""Number of headers checked at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpectedHeaders:
    """The expected headers of records; an item, or a row, for each."""

    type_sizes: npt.NDArray[np.uint8]
    axes: npt.NDArray[np.uint8]
    data_sizes: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.uint8]
    """The sizes and the element type, as stored after the fixed part, padded with zeros."""
    is_text: _Flags
    """Which of these bytes are not padding."""

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> ExpectedHeaders:
        """For the element type of each tensor in the index, and the shape of the stored elements; at least one tensor."""
        kinds = [_as_stored(dtype, shape) for dtype, shape in tensors]
        texts = [type_and_sizes(stored, shape)[1] for stored, shape in kinds]
        longest = max(map(len, texts))
        sizes = [STORED[stored].itemsize * math.prod(shape) for stored, shape in kinds]
        return cls(
            np.array([len(stored) for stored, _ in kinds], np.uint8),
            np.array([len(shape) for _, shape in kinds], np.uint8),
            np.array(sizes, np.uint64),
            np.frombuffer(b"".join(text.ljust(longest, b"\0") for text in texts), np.uint8).reshape(-1, longest),
            np.arange(longest) < np.array([*map(len, texts)])[:, None],
        )

    def at(self, places: npt.NDArray[np.intp]) -> ExpectedHeaders:
        """The expected headers of some tensors."""
        return ExpectedHeaders(
            self.type_sizes[places],
            self.axes[places],
            self.data_sizes[places],
            self.texts[places],
            self.is_text[places],
        )


def _as_stored(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Element type and shape of the record of a tensor; a combination that no record has if the tensor cannot have one."""
    stored = next((each for each in STORED if is_stored_as(dtype, each)), None)
    if stored is None or len(shape) > LARGEST_RANK or math.prod(shape) >= _MOST_ELEMENTS:
        return "bool", (_MOST_ELEMENTS,)
    return stored, shape


def are_as_expected(path: Path, offsets: npt.NDArray[np.int64], expected: ExpectedHeaders) -> bool:
    """Whether a complete record with the expected header begins at each offset; no element is read.

    To find out what is wrong, read the headers one by one (`read_header`).
    """
    try:
        descriptor = open_elements(path)
    except CorruptDumpError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if (
            size < ALIGNMENT
            or (offsets % ALIGNMENT).any()
            or not 0 <= offsets.min() <= offsets.max() <= size - ALIGNMENT
        ):
            return False
        # The mapping is not closed explicitly; it ends with its last array. The traceback of an error that passes here
        # references some.
        mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        return _are_as_expected(np.frombuffer(mapped, np.uint8), offsets, expected)
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)


def _are_as_expected(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], expected: ExpectedHeaders) -> bool:
    fields = sliding_window_view(data, HEADER.size)[offsets].view(_FIELDS)[:, 0]
    lengths = fields["length"].astype(np.int64)
    elements = -(-expected.data_sizes.astype(np.int64) // ALIGNMENT) * ALIGNMENT
    as_told = (
        (fields["magic"] == np.bytes_(MAGIC))
        & (fields["type_size"] == expected.type_sizes)
        & (fields["axes"] == expected.axes)
        & (fields["data_size"] == expected.data_sizes)
        & (fields["offset"] == offsets)
        & (lengths % ALIGNMENT == 0)
        & (lengths <= LARGEST_HEADER)
        & (lengths >= HEADER.size + expected.is_text.sum(axis=1) + fields["name_size"])
        & (offsets + lengths + elements <= len(data))
    )
    if not as_told.all():
        return False
    for length in np.unique(lengths).tolist():
        headers = sliding_window_view(data, length)
        places = np.flatnonzero(lengths == length)
        at_once = max(_MOST_BYTES // length, 1)
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            if not _are_whole(headers[offsets[some]], fields["header_hash"][some], expected.at(some)):
                return False
    return True


def _are_whole(headers: npt.NDArray[np.uint8], hashes: npt.NDArray[np.uint64], expected: ExpectedHeaders) -> bool:
    """Whether headers of one length, a row for each, have these hashes and the expected texts."""
    length = headers.shape[1]
    width = min(expected.texts.shape[1], length - HEADER.size)
    texts = headers[:, HEADER.size : HEADER.size + width]
    if ((texts != expected.texts[:, :width]) & expected.is_text[:, :width]).any():
        return False
    headers[:, HEADER_HASH : HEADER_HASH + 8] = 0
    begin = headers.ctypes.data
    found = [xxh3_low_pointer(begin + number * length, length) for number in range(len(headers))]
    return bool((hashes == np.array(found, np.uint64)).all())
