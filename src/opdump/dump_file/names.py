r"""Parses and builds the names of files that Ascend devices and their converter write.

    Pooling.pool1.1147.1589195081588018                                     op_type, op_name, task, time
    Conv2D.conv1.1.5.1732082705016774                                       and the stream before the time
    Add.sgt_graph_0_Add.0.3.1673383728093446.4.1.0.0                        FFTS+: 4, context, thread, device
    Opdebug.Node_OpDebug.59.1597922031178434                                an overflow file, in any case
    exception_info.7.12.20240101120000123                                   an exception file
    Conv2D.conv1.1.5.1732082705016774.output.0.npy                          a converted tensor
    Conv2D.conv1.1.5.1732082705016774.csv                                   statistics instead

A name longer than a file system takes is replaced by digits, and `mapping.csv` beside it has the long one (`read_mapping`):
docs/device-dumps.md#names.

Single-operator calls (aclnn) write the operator's name before its type. The file name does not show the order: `in_true_order`
determines it by the name in the file's header, which, in its form for file names, equals one of the two parts. Without a header
(npy, csv), a first part is the name if it begins with `aclnn` or ends like MindSpore's names (`-op7`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast

from opdump.dump_file.stored_bytes import open_regular
from opdump.errors import CorruptDumpError
from opdump.records import escaped

MAPPING_NAME: Final = "mapping.csv"
UNKNOWN_ID: Final = 65535
"""The task or stream of an operator without one."""

_LARGEST_MAPPING: Final = 100 << 20
_REPLACED = str.maketrans(dict.fromkeys("/\\. ", "_"))
# The prefix of the name of a single-operator call, and the suffix of MindSpore's operator names: no type has either.
_IS_NAME = re.compile(r"aclnn[A-Z0-9_].*|.*-op[0-9]+", re.ASCII | re.DOTALL)
_CALENDAR_DIGITS: Final = 17

_NUMBER = r"[0-9]{1,20}"
_PART = r"[^./\x00]+"
_DUMP = (
    rf"(?P<op_type>{_PART})\.(?P<op_name>{_PART})\.(?P<task>{_NUMBER})(?:\.(?P<stream>{_NUMBER}))?\.(?P<time>[0-9]{{1,255}})"
    rf"(?:\.4\.(?P<context>{_NUMBER})\.(?P<thread>{_NUMBER})\.(?P<device>{_NUMBER}))?"
)
_EXCEPTION_NAME = (
    rf"(?P<kernel>{_PART})\.(?P<stream>{_NUMBER})\.(?P<task>{_NUMBER})"
    rf"(?:\.(?P<core_type>{_PART})\.(?P<core_id>{_NUMBER}))?\.(?P<time>[0-9]{{16,17}})(?P<detail>\.core)?"
)
_TENSOR_ENDING = (
    rf"(?P<dump>.+)\.(?P<part>input|output|l1buffer|space)\.(?P<slot>[0-9]{{1,9}})"
    rf"(?:\.(?P<shape>[0-9]+(?:_[0-9]+)*)(?=\.{_PART}\.{_PART}\.bin))?"
    rf"(?:\.(?P<one>{_PART}))?(?:\.(?P<two>{_PART}))?\.(?P<suffix>npy|bin|json|txt|pt)"
)
_STORED = r"(?:[0-9]{1,255}|[0-9a-f]{32})(?:\.[a-z0-9]{1,8})?"

Part = Literal["input", "output", "l1buffer", "space"]


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled on first use, because compilation takes longer than the rest of the import."""
    return re.compile(pattern, re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class FftsPlus:
    """The place where a task of an FFTS+ graph ran."""

    context_id: int
    thread_id: int
    device_id: int

    def __str__(self) -> str:
        return f".4.{self.context_id}.{self.thread_id}.{self.device_id}"


@dataclass(frozen=True, slots=True)
class DumpName:
    """The name of a dump file. The parts are as in the name; `stream_id` is None in names of four parts.

    `timestamp` is as written: microseconds since the epoch, or the local time of an exception with 17 digits
    (`YYYYmmddHHMMSSmmm`); `microseconds` is the same for both.
    """

    op_type: str
    op_name: str
    task_id: int
    stream_id: int | None
    timestamp: int
    ffts: FftsPlus | None = None
    name_first: bool = False
    """Whether the name is before the type, as in single-operator calls."""

    @property
    def is_overflow(self) -> bool:
        """Whether it is the name of an overflow file, case-insensitive (the documents spell it in two ways)."""
        return (self.op_type.lower(), self.op_name.lower()) == ("opdebug", "node_opdebug")

    @property
    def microseconds(self) -> int:
        """The time stamp in microseconds since the epoch."""
        return microseconds_of(self.timestamp)

    def in_true_order(self, true_name: str = "") -> DumpName:
        """The same name, with type and name distinguished by the operator's true name; see the module's docstring.

        If the true name is empty, or equals neither part or both, only a part that begins with `aclnn` or ends with `-op7`
        decides.
        """
        if not self.name_first:
            written = sanitise(true_name) if true_name else ""
            first, second = self.op_type == written, self.op_name == written
            swapped = first if first != second else _is_name(self.op_type, self.op_name) and not second
            if swapped:
                return replace(self, op_type=self.op_name, op_name=self.op_type, name_first=True)
        return self

    def __str__(self) -> str:
        """The file name; parsing and printing only removes leading zeros of numbers."""
        names = f"{self.op_name}.{self.op_type}" if self.name_first else f"{self.op_type}.{self.op_name}"
        stream = "" if self.stream_id is None else f".{self.stream_id}"
        return f"{names}.{self.task_id}{stream}.{self.timestamp}{self.ffts or ''}"


@dataclass(frozen=True, slots=True)
class ExceptionName:
    """The name of a file about an exception of a kernel: brief (`kernel` is `exception_info`), by core, or detailed.

    The normal form has the four parts of a dump file; only its time stamp of 17 digits distinguishes it.
    """

    kernel: str
    stream_id: int
    task_id: int
    timestamp: int
    core_type: str = ""
    core_id: int | None = None
    is_detail: bool = False

    @property
    def microseconds(self) -> int:
        """The time stamp in microseconds since the epoch."""
        return microseconds_of(self.timestamp)

    def __str__(self) -> str:
        core = "" if self.core_id is None else f".{self.core_type}.{self.core_id}"
        detail = ".core" if self.is_detail else ""
        return f"{self.kernel}.{self.stream_id}.{self.task_id}{core}.{self.timestamp}{detail}"


@dataclass(frozen=True, slots=True)
class ConvertedName:
    """The name of a file with one part of a dump file, written by a converter or, as npy, by MindSpore itself.

    `shape`, `dtype` and `format` are empty if the name has none; `dump` may be any text (digits that replace a long name).
    """

    dump: DumpName | ExceptionName | str
    part: Part
    slot: int
    suffix: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    format: str = ""

    def __str__(self) -> str:
        shape = "" if self.shape is None else "." + "_".join(map(str, self.shape))
        # `bin` has the type before the format, npy the format before the type (MindSpore 2.10).
        words = (self.dtype, self.format) if self.suffix == "bin" else (self.format, self.dtype)
        middle = "".join(f".{word}" for word in words if word)
        return f"{self.dump}.{self.part}.{self.slot}{shape}{middle}.{self.suffix}"


@dataclass(frozen=True, slots=True)
class StatisticsName:
    """The name of the csv file with the statistics of an operator instead of its dump file."""

    dump: DumpName

    def __str__(self) -> str:
        return f"{self.dump}.csv"


FileName = DumpName | ExceptionName | ConvertedName | StatisticsName


def parse_name(name: str) -> FileName | None:
    """Parse a file name of any kind; None for other names."""
    if name.endswith(".csv"):
        dump = parse_dump_name(name.removesuffix(".csv"))
        return StatisticsName(dump) if dump is not None else None
    return parse_dump_name(name) or parse_exception_name(name) or parse_converted_name(name)


def parse_dump_name(name: str) -> DumpName | None:
    """The parts of a dump file's name with two to three numbers after the names, and the suffix of FFTS+; otherwise None."""
    match = _compiled(_DUMP).fullmatch(name)
    if match is None or match["op_type"] == "exception_info":
        return None
    return DumpName(
        op_type=match["op_type"],
        op_name=match["op_name"],
        task_id=int(match["task"]),
        stream_id=int(match["stream"]) if match["stream"] else None,
        timestamp=int(match["time"]),
        ffts=(
            FftsPlus(int(match["context"]), int(match["thread"]), int(match["device"])) if match["context"] else None
        ),
    )


def parse_exception_name(name: str) -> ExceptionName | None:
    """The parts of an exception file's name in the forms that no dump file has; otherwise None."""
    match = _compiled(_EXCEPTION_NAME).fullmatch(name)
    if match is None:
        return None
    plain = match["core_id"] is None and match["detail"] is None
    if plain and match["kernel"] != "exception_info":
        return None  # a dump file of four parts, of an operator whose name is a number
    return ExceptionName(
        kernel=match["kernel"],
        stream_id=int(match["stream"]),
        task_id=int(match["task"]),
        timestamp=int(match["time"]),
        core_type=match["core_type"] or "",
        core_id=int(match["core_id"]) if match["core_id"] else None,
        is_detail=match["detail"] is not None,
    )


def parse_converted_name(name: str) -> ConvertedName | None:
    """The parts of a converter's output name; None for other names."""
    match = _compiled(_TENSOR_ENDING).fullmatch(name)
    if match is None:
        return None
    first, second, suffix = match["one"] or "", match["two"] or "", match["suffix"]
    dtype, format_ = (first, second) if suffix == "bin" and second else (second, first)
    shape = match["shape"]
    return ConvertedName(
        dump=parse_dump_name(match["dump"]) or parse_exception_name(match["dump"]) or match["dump"],
        part=cast(Part, match["part"]),
        slot=int(match["slot"]),
        suffix=suffix,
        shape=tuple(int(size[:20]) for size in shape.split("_")) if shape else None,
        dtype=dtype,
        format=format_,
    )


def sanitise(name: str) -> str:
    r"""`name` in its form for file names: space, `.`, `/` and `\` are replaced by `_`."""
    return escaped(name).translate(_REPLACED)


def _is_name(part: str, other: str) -> bool:
    """Whether a part of a file name is the operator's name, judged by its form; False if the other part has the form of
    MindSpore's names.
    """
    return _IS_NAME.fullmatch(part) is not None and ("-op" not in part or _IS_NAME.fullmatch(other) is None)


def microseconds_of(timestamp: int) -> int:
    """Microseconds since the epoch of a time stamp in a name; one of 17 digits is local time."""
    digits = str(timestamp)
    if len(digits) == _CALENDAR_DIGITS:
        from datetime import datetime

        try:
            moment = datetime.strptime(digits[:14], "%Y%m%d%H%M%S").astimezone()
        except (ValueError, OverflowError):
            return timestamp
        return int(moment.timestamp()) * 1_000_000 + int(digits[14:]) * 1000
    return timestamp


@dataclass(frozen=True, slots=True)
class NameMapping:
    """The content of a mapping.csv: the true names by the names on disk, and its first defect if there is any."""

    names: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[CorruptDumpError, ...] = ()

    def true_name(self, stored: str) -> str:
        """The true name of the file `stored`; `stored` itself if the table does not list it."""
        return self.names.get(stored, stored)


def read_mapping(path: Path) -> NameMapping:
    """The long names for the short ones of a directory: rows `{digits},{name}` without a header; duplicate rows are allowed.

    Rows of another form, with invalid file names, or in contradiction to an earlier row are left out, and the first of them is
    described in `problems`. Raises CorruptDumpError if the file cannot be read, is not a regular file, or is larger than 100 MiB.
    """
    names: dict[str, str] = {}
    found: list[str] = []
    count = 0
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        defect = _add_row(names, line)
        if defect:
            count += 1
            if not found:
                found.append(f"{path}, line {number}: {line[:200]!r} {defect}")
    if not found:
        return NameMapping(names)
    more = f" ({count - 1} more rows like it)" if count > 1 else ""
    problem = CorruptDumpError(
        f"{found[0]}; a row has the form '6142509188972423790,Conv2D.conv1.1.5.1732082705016774'{more}. "
        "The row was left out; the file that it names is read under the name that it has on disk"
    )
    return NameMapping(names, (problem,))


def _add_row(names: dict[str, str], line: bytes) -> str:
    """Add a row; returns what is wrong with it, empty if it is valid."""
    try:
        stored, comma, true = line.decode("utf-8").rstrip("\r").partition(",")
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    if not comma:
        return "has no second column"
    if not _compiled(_STORED).fullmatch(stored):
        return "has a short name that is not digits"
    if not true or "/" in true or "\\" in true or "\0" in true or true in (".", ".."):
        return "has a long name that is not a plain file name"
    if names.setdefault(stored, true) != true:
        return "contradicts an earlier row"
    return ""


def _read(path: Path) -> bytes:
    descriptor, status = open_regular(path, "a table of names")
    try:
        if status.st_size > _LARGEST_MAPPING:
            raise CorruptDumpError(
                f"{path}: holds {status.st_size} bytes; a table of names may have at most {_LARGEST_MAPPING}"
            )
        return os.pread(descriptor, status.st_size, 0)
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(descriptor)
