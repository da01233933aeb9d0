"""Decodes and encodes the payload of an overflow file: the accelerator, the task and the status bits.

record = decode_opdebug(file.outputs[0].data.read(), "Opdebug.Node_OpDebug.59.1597922031178434")
record.reports[2].accelerator, record.reports[2].task_id           # "AI Core", 57
status_words("AI Core", 272)                                       # ("overflow of an integer addition, ...", "overflow of ...")

There are two little-endian layouts. The old one is 2048 bytes with three reports at fixed places; the new one begins with a magic
number and contains one report of one accelerator, whose fields depend on its type (docs/dump-files.md#overflow-files).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from opdump.dtypes import data_type_number
from opdump.dump_file.dump_file import DumpFile, DumpTensor, OriginalOp, format_number
from opdump.dump_file.stored_bytes import HeldBytes
from opdump.errors import CorruptDumpError

OPDEBUG_MAGIC: Final = 0x5A5A5A5A
OLD_SIZE: Final = 2048
OVERFLOW_NODE: Final = "Node_OpDebug"
NONE_OF_THREAD: Final = 65535
"""Stands for a missing context or thread."""

_COMMON: Final = ("model_id", "stream_id", "task_id", "task_type")
_PLACES: Final = (*_COMMON, "pc_start", "para_base")
# Name, offset of the six common fields, offset and names of the other fields.
_OLD: Final = (
    ("DHA Atomic Add", 0, 512, ("status",)),
    ("L2 Atomic Add", 128, 768, ("status",)),
    ("AI Core", 256, 1024, ("kernel_code", "block_idx", "status")),
)
_CORE: Final = (*_COMMON, "context_id", "thread_id", "pc_start", "para_base", "core_id", "block_id", "status")
_NEW: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("AIC", _CORE),
    ("AIV", _CORE),
    ("AICPU", (*_COMMON, "context_id", "cpu_id", "thread_id", "status")),
    ("SDMA", (*_COMMON, "context_id", "thread_id", "src_addr", "dst_addr", "channel_id", "status")),
)
ACCELERATORS: Final = tuple(name for name, _ in _NEW)
"""By the number in the new layout."""
_HEXADECIMAL: Final = frozenset({"pc_start", "para_base", "kernel_code", "src_addr", "dst_addr"})
_HEADER: Final = struct.Struct("<6I")

_CORE_BITS: Final[Mapping[int, str]] = {
    0x8: "negation of the smallest integer",
    0x10: "overflow of an integer addition, subtraction, multiplication or multiply-add",
    0x20: "overflow of a floating-point operation",
    0x80: "conversion of a negative float to an unsigned integer",
    0x100: "overflow of a conversion from FP32 or INT32 to FP16",
    0x400: "overflow of an accumulation in the CUBE unit",
}
_DHA_CODES: Final[Mapping[int, str]] = {
    0x9: "overflow of an atomic addition",
    0xA: "underflow of an atomic addition",
    0xB: "NaN in the source of an atomic addition",
    0xC: "NaN in the destination of an atomic addition",
    0xD: "NaN in source and destination of an atomic addition",
}
_L2_CODES: Final[Mapping[int, str]] = {code: _DHA_CODES[code + 8] for code in range(1, 6)}


@dataclass(frozen=True, slots=True)
class AcceleratorReport:
    """The report of one accelerator: its numbers by name, in the order of the file. Addresses are numbers, too."""

    accelerator: str
    fields: tuple[tuple[str, int], ...]
    statuses: tuple[int, ...]
    """One word; four if an AI Core wrote a record of version 1."""

    def field(self, name: str) -> int | None:
        """The number of that name; None if this accelerator does not have it."""
        return dict(self.fields).get(name)

    @property
    def model_id(self) -> int:
        return self.fields[0][1]

    @property
    def stream_id(self) -> int:
        return self.fields[1][1]

    @property
    def task_id(self) -> int:
        return self.fields[2][1]

    @property
    def context_id(self) -> int | None:
        """The context of an FFTS+ task; None if there is none."""
        return _existing(self.field("context_id"))

    @property
    def thread_id(self) -> int | None:
        """The thread of an FFTS+ task; None if there is none."""
        return _existing(self.field("thread_id"))

    @property
    def overflowed(self) -> bool:
        """Whether any status bit is set."""
        return any(self.statuses)

    @property
    def words(self) -> tuple[str, ...]:
        """Every set status bit in words; empty if none is set."""
        first, *others = self.statuses
        more = (f"status word {place}: 0x{word:x}" for place, word in enumerate(others, 1) if word)
        return (*status_words(self.accelerator, first), *more)


@dataclass(frozen=True, slots=True)
class OpdebugHeader:
    """The numbers before the fields of a record in the new layout."""

    version: int
    valid: int
    accelerator: int
    reserved: int
    data_length: int


@dataclass(frozen=True, slots=True)
class OpdebugRecord:
    """One payload. `header` is None in the old layout, which has three reports; the new one has one.

    `problems` lists defects of a payload that can still be read.
    """

    reports: tuple[AcceleratorReport, ...]
    header: OpdebugHeader | None = None
    problems: tuple[str, ...] = ()

    @property
    def layout(self) -> Literal["old", "new"]:
        return "old" if self.header is None else "new"

    @property
    def overflows(self) -> tuple[AcceleratorReport, ...]:
        """The reports with a status bit set."""
        return tuple(report for report in self.reports if report.overflowed)


def decode_opdebug(payload: bytes | memoryview, source: str = "overflow record") -> OpdebugRecord:
    """The record in the bytes of an output of an overflow file; `source` names it in errors.

    Raises CorruptDumpError for fewer bytes than the layout needs, an old record that is not 2048 bytes, and an unknown
    accelerator.
    """
    data = bytes(payload)
    if len(data) >= 4 and int.from_bytes(data[:4], "little") == OPDEBUG_MAGIC:
        return _new(data, source)
    if len(data) != OLD_SIZE:
        raise CorruptDumpError(
            f"{source}: an overflow record of {len(data)} bytes without the magic number 0x{OPDEBUG_MAGIC:x}; the old layout "
            f"has exactly {OLD_SIZE}: the file was cut off, or it is not an overflow file"
        )
    reports = []
    for name, start, rest_start, rest in _OLD:
        numbers = dict(zip(_PLACES, struct.unpack_from("<6Q", data, start), strict=True))
        numbers.update(zip(rest, struct.unpack_from(f"<{len(rest)}Q", data, rest_start), strict=True))
        reports.append(_report(name, numbers))
    return OpdebugRecord(tuple(reports))


def encode_opdebug(record: OpdebugRecord) -> bytes:
    """The 2048 bytes of a record of the old layout; missing values are zero.

    Raises ValueError for a record of the new layout, which only devices write; for reports other than the three of the old layout
    in their order; for a number outside of 64 bits; and for a first number (the model of "DHA Atomic Add") that a reader would
    mistake for the magic number of the new layout.
    """
    names = tuple(report.accelerator for report in record.reports)
    expected = tuple(name for name, *_ in _OLD)
    if record.header is not None or names != expected:
        raise ValueError(
            f"found an overflow record of the {record.layout} layout with reports of {', '.join(names) or 'no accelerator'}; expected one "
            f"of the old layout, with reports of {', '.join(expected)} in this order"
        )
    data = bytearray(OLD_SIZE)
    for report, (name, start, rest_start, rest) in zip(record.reports, _OLD, strict=True):
        numbers = {**dict(report.fields), "status": report.statuses[0]}
        known = (*_PLACES, *rest)
        if tuple(name for name, _ in report.fields) != known[:-1] or len(report.statuses) != 1:
            raise ValueError(
                f"found a report of {name} with {', '.join(numbers)}; expected {', '.join(known)} in this order, and one status word"
            )
        if any(not 0 <= number < 2**64 for number in numbers.values()):
            raise ValueError(f"found a number in a report of {name} that does not fit into 64 bits: {numbers}")
        for place, names_of in ((start, _PLACES), (rest_start, rest)):
            struct.pack_into(f"<{len(names_of)}Q", data, place, *(numbers[each] for each in names_of))
    if int.from_bytes(data[:4], "little") == OPDEBUG_MAGIC:
        raise ValueError(
            f"found 0x{OPDEBUG_MAGIC:x} as the model of {names[0]}; in this place it begins the new layout"
        )
    return bytes(data)


def overflow_record(
    status: int,
    *,
    accelerator: str = "AI Core",
    model_id: int = 0,
    stream_id: int = 0,
    task_id: int = 0,
    task_type: int = 0,
) -> OpdebugRecord:
    """A record of the old layout with the report of one accelerator about one task; the other two reports are zero.

    `accelerator` is "AI Core", "L2 Atomic Add" or "DHA Atomic Add"; addresses, which a host does not have, are 0. `atomic_status`
    makes the status word of an atomic addition. Raises ValueError for another accelerator.
    """
    known = tuple(name for name, *_ in _OLD)
    if accelerator not in known:
        raise ValueError(f"found the accelerator {accelerator!r}; the old layout has {', '.join(known)}")
    identity = {"model_id": model_id, "stream_id": stream_id, "task_id": task_id, "task_type": task_type}
    reports = []
    for name, _, _, rest in _OLD:
        numbers = dict.fromkeys((*_PLACES, *rest), 0)
        if name == accelerator:
            numbers |= {**identity, "status": status}
        reports.append(_report(name, numbers))
    return OpdebugRecord(tuple(reports))


def atomic_status(accelerator: str) -> int:
    """The status word of an atomic addition that overflowed, for "DHA Atomic Add" or "L2 Atomic Add"."""
    return 0x9 << 8 if accelerator.startswith("DHA") else 0x1 << 16


def overflow_dump_file(*, dump_time: int = 0, **report: Any) -> DumpFile:
    """The overflow file: one output of 2048 bytes with the `overflow_record` for the arguments in `report`.

    `dump_time` is in microseconds since the epoch. Raises ValueError like `overflow_record` and `encode_opdebug`.
    """
    record = overflow_record(**report)
    output = DumpTensor(
        io="output",
        slot=0,
        data_type=data_type_number("UINT8"),
        format=format_number("ND"),
        shape=(OLD_SIZE,),
        data=HeldBytes(encode_opdebug(record)),
        original_op=OriginalOp(name=OVERFLOW_NODE),
    )
    return DumpFile(outputs=(output,), op_name=OVERFLOW_NODE, dump_time=dump_time)


def _new(data: bytes, source: str) -> OpdebugRecord:
    if len(data) < _HEADER.size:
        raise CorruptDumpError(
            f"{source}: an overflow record of {len(data)} bytes; its header alone takes {_HEADER.size}"
        )
    _, version, valid, kind, reserved, length = _HEADER.unpack_from(data)
    header = OpdebugHeader(version, valid, kind, reserved, length)
    if kind >= len(_NEW):
        known = ", ".join(f"{number} {name}" for number, name in enumerate(ACCELERATORS))
        raise CorruptDumpError(f"{source}: an overflow record of accelerator {kind}; known are {known}")
    name, fields = _NEW[kind]
    statuses = 4 if fields is _CORE and version == 1 else 1
    count = len(fields) - 1 + statuses
    if len(data) < _HEADER.size + 8 * count:
        raise CorruptDumpError(
            f"{source}: an overflow record of {len(data)} bytes; that of {name} in version {version} takes "
            f"{_HEADER.size + 8 * count}: the file was cut off"
        )
    values = struct.unpack_from(f"<{count}Q", data, _HEADER.size)
    problems = []
    if valid != 1:
        problems.append(f"{source}: the record is marked invalid (valid is {valid}, expected 1)")
    if length != 8 * count:
        problems.append(f"{source}: the record announces {length} bytes of fields; {name} has {8 * count}")
    pairs = tuple(zip(fields[:-1], values[: len(fields) - 1], strict=True))
    return OpdebugRecord((AcceleratorReport(name, pairs, values[len(fields) - 1 :]),), header, tuple(problems))


def _report(name: str, numbers: dict[str, int]) -> AcceleratorReport:
    status = numbers.pop("status")
    return AcceleratorReport(name, tuple(numbers.items()), (status,))


def _existing(number: int | None) -> int | None:
    return None if number == NONE_OF_THREAD else number


def status_words(accelerator: str, status: int) -> tuple[str, ...]:
    """The meanings of the bits of a status word; bits of unknown meaning are one number at the end.

    AI Core (also `AIC` and `AIV`) has one meaning for each bit, and any number of them may be set; the atomic additions of DHA
    and L2 have a code in bits 8 to 15, and 16 to 18. The words of AICPU and SDMA are not documented.
    """
    words: list[str] = []
    rest = status
    if accelerator in ("AI Core", "AIC", "AIV"):
        for bit, text in _CORE_BITS.items():
            if status & bit:
                words.append(text)
                rest &= ~bit
    elif accelerator in ("DHA Atomic Add", "L2 Atomic Add"):
        first, mask, codes = (8, 0xFF, _DHA_CODES) if accelerator.startswith("DHA") else (16, 0x7, _L2_CODES)
        text = codes.get(status >> first & mask, "")
        if text:
            words.append(text)
            rest &= ~(mask << first)
    if rest:
        words.append(f"bits 0x{rest:x} of unknown meaning")
    return tuple(words)


def opdebug_json(record: OpdebugRecord) -> str:
    """The record as CANN's converter prints it: four spaces of indentation, addresses in hexadecimal, no final newline."""
    header = record.header
    if header is None:
        content: dict[str, Any] = {report.accelerator: _printed(report) for report in record.reports}
    else:
        (report,) = record.reports
        content = {
            "magic": hex(OPDEBUG_MAGIC),
            "version": header.version,
            "acc_list": {
                "valid": header.valid,
                "acc_type": report.accelerator,
                "rsv": header.reserved,
                "data_len": header.data_length,
                "data": _printed(report),
            },
        }
    return json.dumps(content, indent=4)


def _printed(report: AcceleratorReport) -> dict[str, Any]:
    printed: dict[str, Any] = {name: hex(value) if name in _HEXADECIMAL else value for name, value in report.fields}
    printed["status"] = report.statuses[0] if len(report.statuses) == 1 else list(report.statuses)
    return printed
