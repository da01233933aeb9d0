"""Overflow records, read and written: both layouts, every accelerator, the output of the real converter, and every
status bit.
"""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opdump.dump_file import OriginalOp, read_dump_file, write_dump_file
from opdump.dump_file.opdebug import (
    AcceleratorReport,
    OpdebugHeader,
    OpdebugRecord,
    atomic_status,
    decode_opdebug,
    encode_opdebug,
    opdebug_json,
    overflow_dump_file,
    overflow_record,
    status_words,
)
from opdump.errors import CorruptDumpError

ARCHIVE = Path(__file__).parent.parent / "data" / "msaccucmp.tar.gz"
CASES = (
    "opdebug_new_aic_v0",
    "opdebug_new_aicpu",
    "opdebug_new_badlen",
    "opdebug_new_invalid0",
    "opdebug_old",
    "opdebug_old_all",
    "opdebug_two_outputs",
)
NAME = "Opdebug.Node_OpDebug.59.1597922031178434"


def record(kind: int, count: int, *, version: int = 0, valid: int = 1, length: int | None = None) -> bytes:
    """A new-layout record with the fields 1, 2, 3, ..."""
    header = struct.pack("<6I", 0x5A5A5A5A, version, valid, kind, 0, 8 * count if length is None else length)
    return header + struct.pack(f"<{count}Q", *range(1, count + 1))


def case_file(folder: Path, case: str, member: str) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        source = archive.extractfile(f"{case}/{member}")
        assert source is not None
        target = folder / Path(member).name
        target.write_bytes(source.read())
    return target


@pytest.mark.parametrize("case", CASES)
def test_json_is_byte_for_byte_what_the_real_converter_wrote(case: str, tmp_path: Path) -> None:
    file = read_dump_file(case_file(tmp_path, case, f"in/{NAME}"))
    assert file.outputs
    for slot, output in enumerate(file.outputs):
        expected = case_file(tmp_path, case, f"out/{NAME}.output.{slot}.json").read_text()
        assert opdebug_json(decode_opdebug(output.data.read())) == expected


def test_the_old_layout_has_three_reports_of_which_one_overflowed(tmp_path: Path) -> None:
    file = read_dump_file(case_file(tmp_path, "opdebug_old", f"in/{NAME}"))
    decoded = decode_opdebug(file.outputs[0].data.read())
    assert decoded.layout == "old"
    assert [report.accelerator for report in decoded.reports] == ["DHA Atomic Add", "L2 Atomic Add", "AI Core"]
    (core,) = decoded.overflows
    assert (core.model_id, core.stream_id, core.task_id, core.statuses) == (514, 563, 57, (32,))
    assert (core.context_id, core.thread_id, core.field("block_idx")) == (None, None, 1)
    assert core.words == ("overflow of a floating-point operation",)


def test_an_ai_core_of_version_1_has_four_status_words() -> None:
    decoded = decode_opdebug(record(1, 14, version=1))
    (report,) = decoded.reports
    assert report.accelerator == "AIV"
    assert report.statuses == (11, 12, 13, 14)
    assert report.words[0] == "negation of the smallest integer"
    assert report.words[-1] == "status word 3: 0xe"
    assert json.loads(opdebug_json(decoded))["acc_list"]["data"]["status"] == [11, 12, 13, 14]
    assert decoded.problems == ()


@pytest.mark.parametrize(
    ("kind", "count", "names"),
    [
        (2, 8, ["context_id", "cpu_id", "thread_id", "status"]),
        (3, 10, ["context_id", "thread_id", "src_addr", "dst_addr", "channel_id", "status"]),
    ],
)
def test_other_accelerators_have_their_own_fields(kind: int, count: int, names: list[str]) -> None:
    decoded = decode_opdebug(record(kind, count, version=1))
    data = json.loads(opdebug_json(decoded))["acc_list"]["data"]
    assert list(data) == ["model_id", "stream_id", "task_id", "task_type", *names]
    assert data["status"] == count
    if kind == 3:
        assert (data["src_addr"], data["dst_addr"]) == ("0x7", "0x8")
    assert decoded.header == OpdebugHeader(1, 1, kind, 0, 8 * count)


def test_a_thread_of_65535_is_none() -> None:
    payload = bytearray(record(0, 11))
    struct.pack_into("<2Q", payload, 24 + 4 * 8, 7, 65535)
    (report,) = decode_opdebug(bytes(payload)).reports
    assert (report.context_id, report.thread_id) == (7, None)


def test_272_is_an_integer_overflow_and_an_overflow_to_fp16() -> None:
    assert status_words("AI Core", 272) == (
        "overflow of an integer addition, subtraction, multiplication or multiply-add",
        "overflow of a conversion from FP32 or INT32 to FP16",
    )


@pytest.mark.parametrize("accelerator", ["AI Core", "AIC", "AIV"])
def test_every_bit_of_an_ai_core_has_its_words(accelerator: str) -> None:
    every = status_words(accelerator, 0x8 | 0x10 | 0x20 | 0x80 | 0x100 | 0x400)
    assert len(set(every)) == 6
    assert every == tuple(status_words(accelerator, bit)[0] for bit in (0x8, 0x10, 0x20, 0x80, 0x100, 0x400))
    assert status_words(accelerator, 0x440)[-1] == "bits 0x40 of unknown meaning"
    assert status_words(accelerator, 0) == ()


@pytest.mark.parametrize(("accelerator", "first", "start"), [("DHA Atomic Add", 8, 9), ("L2 Atomic Add", 16, 1)])
def test_atomic_additions_have_a_code(accelerator: str, first: int, start: int) -> None:
    words = [status_words(accelerator, code << first) for code in range(start, start + 5)]
    assert words == [
        ("overflow of an atomic addition",),
        ("underflow of an atomic addition",),
        ("NaN in the source of an atomic addition",),
        ("NaN in the destination of an atomic addition",),
        ("NaN in source and destination of an atomic addition",),
    ]
    assert status_words(accelerator, 7 << first) == (f"bits 0x{7 << first:x} of unknown meaning",)
    assert status_words(accelerator, (start << first) | 1)[1] == "bits 0x1 of unknown meaning"


def test_a_wrong_length_and_an_invalid_mark_are_problems_and_no_errors() -> None:
    decoded = decode_opdebug(record(0, 11, valid=0, length=8), "file")
    assert len(decoded.problems) == 2
    assert "valid is 0" in decoded.problems[0]
    assert "announces 8 bytes of fields; AIC has 88" in decoded.problems[1]
    assert decoded.reports[0].statuses == (11,)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "0 bytes without the magic number"),
        (bytes(2047), "2047 bytes without the magic number"),
        (bytes(2049), "exactly 2048"),
        (b"\x5a" * 23, "header alone takes 24"),
        (record(4, 11), "accelerator 4; known are 0 AIC, 1 AIV, 2 AICPU, 3 SDMA"),
        (record(0, 10), "that of AIC in version 0 takes 112"),
        (record(0, 13, version=1), "that of AIC in version 1 takes 136"),
        (record(3, 9), "SDMA"),
    ],
)
def test_a_record_that_cannot_be_read_is_an_error(payload: bytes, message: str) -> None:
    with pytest.raises(CorruptDumpError, match=message) as caught:
        decode_opdebug(payload, "the file")
    assert str(caught.value).startswith("the file: ")


_WORDS = st.integers(0, 2**64 - 1)


@st.composite
def _old_records(draw: st.DrawFn) -> OpdebugRecord:
    """A record with random values in the fields that the old layout has."""
    return OpdebugRecord(
        tuple(
            AcceleratorReport(
                report.accelerator, tuple((name, draw(_WORDS)) for name, _ in report.fields), (draw(_WORDS),)
            )
            for report in decode_opdebug(bytes(2048)).reports
        )
    )


@given(_old_records())
def test_a_record_of_the_old_layout_comes_back_as_it_was(record: OpdebugRecord) -> None:
    assume(record.reports[0].model_id & 0xFFFFFFFF != 0x5A5A5A5A)  # refused, see below
    assert decode_opdebug(encode_opdebug(record)) == record


@pytest.mark.parametrize("case", ["opdebug_old", "opdebug_old_all"])
def test_the_real_records_come_back_as_they_were(case: str, tmp_path: Path) -> None:
    for output in read_dump_file(case_file(tmp_path, case, f"in/{NAME}")).outputs:
        record = decode_opdebug(output.data.read())
        assert decode_opdebug(encode_opdebug(record)) == record


def test_an_overflow_file_is_what_the_documents_say(tmp_path: Path) -> None:
    made = overflow_dump_file(status=0x110, model_id=514, stream_id=563, task_id=57, dump_time=1597922031178434)
    write_dump_file(tmp_path / NAME, made)
    file = read_dump_file(tmp_path / NAME)
    (output,) = file.outputs
    assert (file.op_name, file.dump_time, file.version) == ("Node_OpDebug", 1597922031178434, "2.0")
    assert (output.dtype, output.format_name, output.shape, output.size) == ("uint8", "ND", (2048,), 2048)
    assert output.original_op == OriginalOp(name="Node_OpDebug")
    data = bytes(output.data.read())
    # The offsets are from section 6 of the document.
    assert struct.unpack_from("<6Q", data, 256) == (514, 563, 57, 0, 0, 0)
    assert struct.unpack_from("<3Q", data, 1024) == (0, 0, 0x110)
    assert not any(data[:256] + data[304:1024] + data[1048:])
    assert decode_opdebug(data) == overflow_record(0x110, model_id=514, stream_id=563, task_id=57)


@pytest.mark.parametrize("accelerator", ["DHA Atomic Add", "L2 Atomic Add"])
def test_an_atomic_addition_is_reported_by_its_own_unit(accelerator: str) -> None:
    made = overflow_record(atomic_status(accelerator), accelerator=accelerator, task_id=7)
    (report,) = decode_opdebug(encode_opdebug(made)).overflows
    assert (report.accelerator, report.task_id) == (accelerator, 7)
    assert report.words == ("overflow of an atomic addition",)


def test_what_the_old_layout_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of the new layout with reports of AIC; expected one of the old layout"):
        encode_opdebug(decode_opdebug(record(0, 11)))
    with pytest.raises(ValueError, match="reports of no accelerator"):
        encode_opdebug(OpdebugRecord(()))
    with pytest.raises(ValueError, match="does not fit into 64 bits"):
        encode_opdebug(overflow_record(-1))
    with pytest.raises(ValueError, match="found 0x5a5a5a5a as the model of DHA Atomic Add"):
        encode_opdebug(overflow_record(1, accelerator="DHA Atomic Add", model_id=0x15A5A5A5A))
    with pytest.raises(ValueError, match="found the accelerator 'AIC'"):
        overflow_record(32, accelerator="AIC")
