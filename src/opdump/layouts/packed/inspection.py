"""Checks the headers of many records at once, those of the tensors of a step."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from opdump.errors import CorruptDumpError
from opdump.index.payload import is_stored_as
from opdump.kernels import xxh3_low_pointer
from opdump.kernels.append_file import ALIGNMENT, HEADER_HASH
from opdump.layouts.packed.record import (
    HEADER,
    LARGEST_HEADER,
    LARGEST_RANK,
    MAGIC,
    STORED,
    open_elements,
    type_and_sizes,
)

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
