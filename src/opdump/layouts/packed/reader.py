"""Reads a rank of a packed dump. Records of an interrupted run that the index does not list are found in the file of elements."""

from __future__ import annotations

import math
import mmap
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from opdump.errors import CorruptDumpError
from opdump.index.payload import FilePayload, InFile, inside, is_stored_as
from opdump.index.runs import LostFiles, RunChoice
from opdump.kernels import xxh3_low_pointer
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
from opdump.layouts.packed.record import (
    HEADER,
    LARGEST_HEADER,
    LARGEST_RANK,
    MAGIC,
    STORED,
    RecordHeader,
    open_elements,
    read_elements,
    read_header,
    records_of,
    type_and_sizes,
)
from opdump.records import TensorRecord
from opdump.step_table import FactsByTemplate, StepTable

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


_ELEMENTS = "elements"
_SUFFIX = ".pack"
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
            if place not in self._places:
                self._listed[place] = PlaceFiles(tuple(files), (), None)
            else:
                listed = self.files(place)
                self._listed[place] = replace(listed, tensors=(*listed.tensors, *files))
        return tuple(place for place in found if place not in self._places)

    def _files_to_look_through(self) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(inside(self.root, _ELEMENTS)) if name.endswith(_SUFFIX))
        except OSError:
            names = []
        if self._index is not None:
            complete = {f"{run.id}{_SUFFIX}" for run in self._index.runs if run.complete}
            names = [name for name in names if name not in complete]
        return [f"{_ELEMENTS}/{name}" for name in names]

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
        if not file.endswith(_SUFFIX) or not all(place.startswith(head) for place in places):
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
