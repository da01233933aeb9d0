"""Reads elements from npy files of a dump, once if they are requested often, and rejects paths outside of the dump."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from opdump.call_stacks import Frame, Stack, linked
from opdump.errors import CorruptDumpError
from opdump.index.opening import SUMMARY
from opdump.kernels import SUMMARY_FIELDS, Summary
from opdump.records import Memory, StatisticValue
from opdump.sink.npy import NpyHeader, read_npy, read_npy_header
from opdump.statistics import OWN

# Types that numpy lacks, by the types in their npy files (from MindSpore's guide: bfloat16 as float32, int4 as int8).
_STORED_AS: Final = {
    "bfloat16": ("float32", "bfloat16"),
    "int4": ("int8",),
    "uint4": ("uint8",),
    "uint1": ("uint8",),
    "complex32": ("complex64",),
    **dict.fromkeys(("qint8", "quint8", "qint32"), ("float32",)),
}
_ITEM_BITS: Final = {"bool": 8, "bfloat16": 16, "complex32": 32, "complex64": 64, "complex128": 128, "uint1": 1}


_MOST_KEPT: Final = 1 << 27
"""Bytes of elements that are kept at most."""
_SMALL: Final = 1 << 16
"""Larger tensors are mapped from their files, which costs little beside what is done with them, so they are not kept."""


@dataclass(slots=True)
class _Kept:
    """What was read from the files of dumps that do not change: the paths of files, and the elements of small tensors."""

    paths: dict[tuple[Path, str], Path] = field(default_factory=dict)
    elements: OrderedDict[InFile, npt.NDArray[Any]] = field(default_factory=OrderedDict)
    """Those that were used last are at the end."""
    size: int = 0

    def path(self, root: Path, relative: str) -> Path:
        found = self.paths.get((root, relative))
        if found is None:
            found = self.paths[root, relative] = inside(root, relative)
        return found

    def read(self, payload: InFile) -> npt.NDArray[Any]:
        found = self.elements.get(payload)
        if found is not None:
            self.elements.move_to_end(payload)
            return found
        found = payload.read()
        if found.nbytes < _SMALL:
            self.elements[payload] = found
            self.size += found.nbytes
            while self.size > _MOST_KEPT:
                self.size -= self.elements.popitem(last=False)[1].nbytes
        return found


_KEPT: Final[ContextVar[_Kept | None]] = ContextVar("_KEPT", default=None)


@contextmanager
def dumps_unchanged() -> Iterator[None]:
    """Read each small tensor, and resolve the path of each file, only once inside this context: no dump changes there.

    What was read is kept for the calling thread, up to 128 MB. A context inside another one uses what the outer one keeps.
    """
    token = _KEPT.set(_KEPT.get() or _Kept())
    try:
        yield
    finally:
        _KEPT.reset(token)


@dataclass(frozen=True, slots=True)
class InFile:
    """Elements in the file `root`/`relative` of a dump; the base of payloads for each kind of file."""

    root: Path
    relative: str

    @property
    def path(self) -> Path:
        """The resolved path of the file. Raises CorruptDumpError if it is outside of the dump."""
        kept = _KEPT.get()
        return inside(self.root, self.relative) if kept is None else kept.path(self.root, self.relative)

    def to_host(self) -> npt.NDArray[Any]:
        """Return the elements as a read-only array; bfloat16 and the 8-bit floats are float32.

        Raises CorruptDumpError with the path if the file is missing, cut off, of another format, or does not match the index.
        """
        kept = _KEPT.get()
        return self.read() if kept is None else kept.read(self)

    @abstractmethod
    def read(self) -> npt.NDArray[Any]:
        """Read the elements from the file, as `to_host` returns them."""

    @property
    def file(self) -> str:
        """The path below the one that the dump was opened with."""
        return os.path.join(self.root, self.relative)


@dataclass(frozen=True, slots=True)
class FilePayload(InFile):
    """Elements in an npy file, read on demand.

    `dtype` is the original element type, and `shape` the shape in the index; a shape of None accepts that of the file.
    """

    dtype: str
    shape: tuple[int, ...] | None = None

    def inspect(self) -> None:
        """Raise CorruptDumpError like `to_host`, without reading elements."""
        self.header()

    def header(self) -> NpyHeader:
        """Read shape and stored element type, without reading elements. Raises CorruptDumpError like `to_host`."""
        path = self.path
        header = read_npy_header(path)
        if self.shape is not None and header.shape != self.shape:
            raise CorruptDumpError(f"{path}: holds shape {header.shape}, but the index has {self.shape}")
        if self.shape is not None and not is_stored_as(self.dtype, header.dtype):
            raise CorruptDumpError(f"{path}: holds {header.dtype}, but the index has {self.dtype}")
        return header

    def read(self) -> npt.NDArray[Any]:
        self.header()
        return read_npy(self.path)


def inside(root: Path, relative: str) -> Path:
    """Return `root`/`relative` with all links resolved. Raises CorruptDumpError if that is not inside `root`."""
    real_root = os.path.realpath(root)
    if "\0" not in relative and not os.path.isabs(relative):
        path = os.path.realpath(os.path.join(real_root, relative))
        if path == real_root or path.startswith(real_root.rstrip(os.sep) + os.sep):
            return Path(path)
    raise CorruptDumpError(
        f"{root}: the dump refers to {relative[:200]!r}, which is outside of it and is not read. If this is a link on "
        "purpose, replace the link by the files"
    )


def is_stored_as(dtype: str, stored: str) -> bool:
    """Return whether an npy file of element type `stored` can contain tensors of type `dtype`."""
    return dtype == stored or stored in _STORED_AS.get(dtype, ("float32",) if dtype.startswith("float8") else ())


def is_sample(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether a file with shape `stored` can be a sample, the first elements, of a tensor with this shape."""
    return len(stored) == 1 and 0 < stored[0] < math.prod(shape)


def bytes_of(dtype: str, elements: int) -> int:
    """Return the bytes of a tensor in its original type, or 0 if the type is unknown."""
    digits = "".join(character for character in dtype.partition("_")[0] if character.isdigit())
    bits = _ITEM_BITS.get(dtype) or (int(digits) if 0 < len(digits) < 4 else 0)
    return (elements * bits + 7) // 8


# Checks the values of an index, and stores the call stacks in it.
#
# No value is trusted: SQLite stores text in a column of numbers, and JSON may contain anything. Each function that checks a value raises
# CorruptDumpError for an unexpected one.

_COUNTS: Final = SUMMARY_FIELDS.index("max")
_LONGEST_NAME: Final = 1 << 16
_LAST_MOMENT: Final = 250_000_000_000_000_000  # in the year 9892
_MOST_DIMENSIONS: Final = 255  # TensorFlow has up to 254, numpy and PyTorch up to 64
_SURROGATES: Final = re.compile("[\ud800-\udfff]")  # never in valid UTF-8


class Budget:
    """Limits the bytes of the rows read from one file to the size of the file.

    In a malicious file, rows may share pages or refer to each other in a circle, and yield more bytes than the file has, without end. Rows are read
    one by one, so reading ends at the limit.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0

    def spend(self, row: Sequence[Any]) -> None:
        """Count a row. Raises CorruptDumpError if the limit is exceeded."""
        used = 2
        for value in row:
            if type(value) is str or type(value) is bytes:
                used += len(value)
        self.used += used
        if self.used > self.size:
            raise CorruptDumpError(
                f"the rows of the index hold more than the {self.size} bytes of its file: its pages refer to each other"
            )

    def each(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows. Their first values must be integers and increase from row to row, so that no row occurs twice."""
        last: int | None = None
        for row in rows:
            key = whole(row[0])
            if last is not None and key <= last:
                raise CorruptDumpError(f"the rows of the index are out of order: {key} comes after {last}")
            last = key
            self.spend(row)
            yield row


def whole(value: Any) -> int:
    """Return a 64-bit integer."""
    # Unlike SQLite, JSON has booleans, which Python counts as integers, and integers of any length.
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise CorruptDumpError(f"the index has {shown(value)}, expected a whole number")


def count(value: Any) -> int:
    """Return a 64-bit integer that is not negative."""
    if type(value) is int and 0 <= value < 2**63:
        return value
    if whole(value) < 0:
        raise CorruptDumpError(f"the index has {value}, expected a number of 0 and up")
    return int(value)


def moment(value: Any) -> int:
    """Return microseconds since the epoch, within the range of a calendar."""
    if not 0 <= whole(value) <= _LAST_MOMENT:
        raise CorruptDumpError(f"the index has {value}, expected a time in microseconds")
    return int(value)


def text(value: Any) -> str:
    """Return text of any length."""
    if isinstance(value, str):
        return value
    raise CorruptDumpError(f"the index has {shown(value)}, expected text")


def name(value: Any) -> str:
    """Return text of limited length, because very many records may repeat it."""
    if type(value) is str and len(value) <= _LONGEST_NAME:
        return value
    if len(text(value)) > _LONGEST_NAME:
        raise CorruptDumpError(
            f"the index holds a name of {len(value)} characters; at most {_LONGEST_NAME} were expected"
        )
    return str(value)


@lru_cache(maxsize=256)
def shape(value: Any) -> tuple[int, ...]:
    """Return a shape such as `2,3`; the empty text is the shape of a scalar."""
    parts = name(value).split(",") if value else []
    if len(parts) > _MOST_DIMENSIONS or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise CorruptDumpError(f"the index has {shown(value)}, expected a shape")
    return tuple(whole(int(part)) for part in parts)


def memory_text(memory: Memory | None) -> str:
    """Return the text that `memory` reads."""
    if memory is None:
        return ""
    return json.dumps([memory.storage, memory.offset, memory.strides, memory.version])


def memory(value: Any, rank: int) -> Memory | None:
    """Return the memory of a tensor with `rank` axes from a JSON array of storage, offset, strides and version; None for the empty text."""
    if not name(value):
        return None
    parts = json_array(value)
    if len(parts) != 4 or not isinstance(parts[2], list) or len(parts[2]) != rank:
        raise CorruptDumpError(f"the index has {shown(value)}, expected the memory of a tensor of {rank} axes")
    storage, offset, strides, version = parts
    return Memory(count(storage), count(offset), tuple([whole(stride) for stride in strides]), whole(version))


def whole_numbers(value: Any) -> list[int]:
    """Return a JSON array of 64-bit integers."""
    numbers = json_array(value)
    if {*map(type, numbers)} != {int} or not -(2**63) <= min(numbers) <= max(numbers) < 2**63:
        for number in numbers:
            whole(number)
    return numbers


def json_object(value: Any) -> dict[str, Any]:
    """Return a JSON object."""
    parsed = _json(value)
    if not isinstance(parsed, dict):
        raise CorruptDumpError(f"the index has {shown(parsed)}, expected a JSON object")
    return parsed


def json_array(value: Any) -> list[Any]:
    """Return a JSON array."""
    parsed = _json(value)
    if not isinstance(parsed, list):
        raise CorruptDumpError(f"the index has {shown(parsed)}, expected a JSON array")
    return parsed


def by_places(value: Any, tensors: int, what: str) -> dict[int, Any]:
    """Return a JSON object whose keys are tensor indices below `tensors`; empty for None."""
    if value is None:
        return {}
    found = json_object(value)
    if not found:
        return {}
    written = "".join(found)
    if not (written.isascii() and written.isdigit() and "" not in found and max(map(len, found)) < 20):
        bad = next((key for key in found if not (key.isascii() and key.isdigit() and len(key) < 20)), "")
        raise CorruptDumpError(f"{what} has {tensors} tensors, but also data for tensor {shown(bad)}")
    places = [*map(int, found)]
    if max(places) >= tensors:
        raise CorruptDumpError(f"{what} has {tensors} tensors, but also data for tensor {max(places)}")
    return dict(zip(places, found.values(), strict=True))


def texts_by_places(value: Any, tensors: int, what: str) -> dict[int, str]:
    """Return a JSON object from tensor indices to text."""
    found = by_places(value, tensors, what)
    if not {*map(type, found.values())} <= {str}:
        for each in found.values():
            text(each)
    return found


def statistics(found: Any) -> dict[str, StatisticValue]:
    """Return statistics whose values a table can hold: digests are text, and counts have 64 bits. Statistics of extensions may be text or numbers."""
    if not isinstance(found, dict):
        raise CorruptDumpError(f"the index has {shown(found)}, expected statistics")
    for key, each in found.items():
        own = OWN.get(key)
        kinds = (int, float, str) if own is None else (str,) if own.kind is str else (int, float)
        if type(each) not in kinds or not _is_in_range(each, is_count=own is not None and own.kind is int):
            raise CorruptDumpError(f"the index has {shown(each)}, expected a statistic")
    return found


def _is_in_range(value: StatisticValue, *, is_count: bool) -> bool:
    if isinstance(value, str):
        return value.isascii() or not _SURROGATES.search(value)
    if is_count:
        return -(2**63) <= value < 2**63
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def summary_rows(blob: Any, tensors: int) -> NDArray[np.float64]:
    """Return the summaries as rows, shape (tensors, 11); the count of a tensor without a summary is NaN. None is for no summaries."""
    if blob is None:
        return np.full((tensors, len(Summary._fields)), np.nan)
    if not isinstance(blob, bytes) or len(blob) != tensors * SUMMARY.size:
        found = f"{len(blob)} bytes" if isinstance(blob, bytes) else shown(blob)
        raise CorruptDumpError(
            f"the index holds {found} as the summaries of {tensors} tensors; expected {tensors * SUMMARY.size} bytes"
        )
    rows = np.frombuffer(blob, "<f8").reshape(tensors, len(Summary._fields))
    counts, squares = rows[:, :_COUNTS], rows[:, -1]  # the squares are NaN if there are no numbers
    are_counts, are_negative = (counts >= 0) & (counts < 2**63), squares < 0
    if not are_counts.all() or are_negative.any():  # usually, every tensor has a summary
        has_one = ~np.isnan(rows[:, 0])
        if not are_counts[has_one].all() or are_negative[has_one].any():
            raise CorruptDumpError("the index has a summary whose counts or squares are negative or infinite")
    return rows


def known(table: Mapping[int, Any], number: Any, what: str) -> Any:
    """Return the entry with that number."""
    if isinstance(number, int) and number in table:
        return table[number]
    raise CorruptDumpError(f"the index refers to {what} {shown(number)}, which it does not hold")


def shown(value: Any) -> str:
    """Return the beginning of a value for a message. The whole value may be very long, or a number too large to be formatted."""
    if isinstance(value, str | bytes | list):
        value = value[:80]
    try:
        return repr(value)[:80]
    except ValueError:
        return f"a number of {value.bit_length()} bits"


def _json(value: Any) -> Any:
    try:
        return json.loads(text(value))
    except (ValueError, RecursionError) as error:
        raise CorruptDumpError(f"the index holds damaged JSON: {error}") from error


# Call stacks in an index: a tree in which stacks share the rows of their callers.

_MOST_CACHED: Final = 20_000

NewRows = Callable[[str, str], Iterator[tuple[Any, ...]]]
"""Returns the rows of a table after the last one read. Arguments: the table, a query, and the number of columns in its key."""


class StoredStacks:
    """The rows of the stacks that a run has written."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], int] = {}
        """By the rows of their callers and of their innermost lines."""
        self._by_identity: dict[int, tuple[Sequence[Frame], int]] = {}
        """The stack is referenced, so that its identity stays unique."""
        self._lines: dict[Frame, int] = {}

    def forget(self) -> None:
        """Forget the rows: later stacks are stored again."""
        self._rows.clear()
        self._by_identity.clear()
        self._lines.clear()

    def row(self, stack: Sequence[Frame], new_number: Callable[[str], int], add: Callable[..., None]) -> int:
        """Return the row of a stack, 0 for the empty one.

        `new_number` returns the number for a new row of a table. `add` stores the row: the table, then its columns.
        """
        found = self._by_identity.get(id(stack))
        new: list[Stack] = []
        here: Stack | None = None
        if found is None and stack:
            here = cast(Stack, linked(stack))
        while found is None and here is not None:
            new.append(here)
            here = here.callers
            found = self._by_identity.get(id(here))
        number = 0 if found is None else found[1]
        if not new:
            return number
        if len(self._by_identity) >= _MOST_CACHED:
            self._by_identity.clear()
        for each in reversed(new):
            number = self._called_from(number, each.frame, new_number, add)
            self._by_identity[id(each)] = each, number
        self._by_identity[id(stack)] = stack, number
        return number

    def _called_from(
        self, callers: int, frame: Frame, new_number: Callable[[str], int], add: Callable[..., None]
    ) -> int:
        line = self._lines.get(frame)
        if line is None:
            line = self._lines[frame] = new_number("lines")
            add("lines", line, frame.file, frame.line, frame.function, frame.code)
        number = self._rows.get((callers, line))
        if number is None:
            number = self._rows[callers, line] = new_number("stacks")
            add("stacks", number, callers, line)
        return number


class ReadStacks:
    """The stacks of an index, by row."""

    def __init__(self) -> None:
        self._read: dict[int, Sequence[Frame]] = {0: ()}
        self._lines: dict[int, Frame] = {}

    def of(self, number: Any) -> Sequence[Frame]:
        """Return the stack of a row. Raises CorruptDumpError if there is none."""
        return cast(Sequence[Frame], known(self._read, number, "stack"))

    def load(self, new: NewRows) -> None:
        """Read the stacks that were added."""
        query = "SELECT id, file, line, function, code FROM lines WHERE id > ? ORDER BY id"
        for number, *row in new("lines", query):
            self._lines[number] = _frame(*row)
        for number, callers, line in new("stacks", "SELECT id, callers, line FROM stacks WHERE id > ? ORDER BY id"):
            # Rows are in ascending order. In a circle of callers, one row refers to a row that is not known yet, which is an error.
            above = known(self._read, callers, "stack")
            self._read[number] = Stack(known(self._lines, line, "line"), above or None)


def _frame(file: Any, line: Any, function: Any, code: Any) -> Frame:
    return Frame(name(file), whole(line), name(function), name(code))
