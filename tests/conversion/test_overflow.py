"""The operator that an overflow file belongs to, and the values of its tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opdump.conversion import ConversionPlan, convert
from opdump.conversion.overflow import OverflowSearch, find_overflows
from tests.conversion.dump_files import TIME, dump, overflow_file, tensor


def found(directory: Path) -> OverflowSearch:
    return find_overflows([str(directory)])


@pytest.mark.parametrize("spelling", ["Opdebug.Node_OpDebug", "OpDebug.Node_Opdebug"])
@pytest.mark.parametrize("stream", [".563", ""])
def test_an_overflow_is_paired_by_task_and_stream(spelling: str, stream: str, tmp_path: Path) -> None:
    values = np.array([1, np.inf, np.nan, -2], np.float16)
    expected = dump(tmp_path / "deep", f"Add.net_add.57{stream}.{TIME}", tensor(values))
    dump(tmp_path / "deep", f"Mul.net_mul.58.563.{TIME}")
    overflow_file(tmp_path / "deep", f"{spelling}.59.{TIME + 5}", task=57, stream=563, status=272)
    search = found(tmp_path)
    (overflow,) = search.overflows
    assert (overflow.dump, overflow.operator, overflow.op_type) == (str(expected), "net/add", "Add")
    assert overflow.report.words == (
        "overflow of an integer addition, subtraction, multiplication or multiply-add",
        "overflow of a conversion from FP32 or INT32 to FP16",
    )
    (values_of,) = overflow.tensors
    assert (values_of.nan, values_of.inf, values_of.dtype) == (1, 1, "float16")
    assert search.failures == []


def test_of_several_dumps_of_a_task_the_nearest_in_place_and_time_is_taken(tmp_path: Path) -> None:
    for directory, time in (("0", TIME), ("1", TIME), ("1", TIME + 900)):
        dump(tmp_path / directory, f"Add.net_add.57.563.{time}")
    for directory, time in (("0", TIME + 800), ("1", TIME + 800), ("1", TIME + 1)):
        overflow_file(tmp_path / directory, f"Opdebug.Node_OpDebug.59.{time}", task=57, stream=563, status=32)
    pairs = [
        (Path(each.path).parent.name, Path(each.dump).parent.name, each.dump[-3:]) for each in found(tmp_path).overflows
    ]
    assert pairs == [("1", "1", "000"), ("0", "0", "000"), ("1", "1", "900")]


def test_what_mindspore_wrote_as_json_and_npy_is_read_too(tmp_path: Path) -> None:
    source = tmp_path / "source"
    overflow_file(source, f"Opdebug.Node_OpDebug.59.5.{TIME}", task=57, stream=563, status=272)
    dump(source, f"Add.net_add.57.563.{TIME}", tensor(np.array([1, np.inf], np.float16)))
    convert([str(source)], tmp_path / "npy", ConversionPlan())
    (dumps,), (files,) = (found(directory).overflows for directory in (source, tmp_path / "npy"))
    assert files.report == dumps.report
    assert files.tensors == dumps.tensors
    assert (files.operator, files.op_type) == ("net_add", "Add")
    assert found(tmp_path).overflows == [dumps]  # the converted copy adds nothing
    convert([str(source)], source, ConversionPlan())
    assert found(source).overflows == [dumps]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"AI Core": {"status": 1}}', '{"acc_list": {"acc_type": "X", "data": {}}}', "[" * 100_000],
    ids=range(6),
)
def test_json_that_is_no_record_is_reported(text: str, tmp_path: Path) -> None:
    (tmp_path / f"Opdebug.Node_OpDebug.59.5.{TIME}.output.0.json").write_text(text)
    search = found(tmp_path)
    assert ([each.error for each in search.failures], search.overflows) == (["CorruptDumpError"], [])


def test_another_stream_is_another_operator(tmp_path: Path) -> None:
    dump(tmp_path, f"Add.net_add.57.1.{TIME}")
    overflow_file(tmp_path, f"Opdebug.Node_OpDebug.59.{TIME}", task=57, stream=563, status=32)
    (overflow,) = found(tmp_path).overflows
    assert (overflow.dump, overflow.operator, overflow.tensors) == ("", "", ())


def test_files_without_a_status_bit_and_damaged_ones_are_reported(tmp_path: Path) -> None:
    silent = overflow_file(tmp_path, f"Opdebug.Node_OpDebug.59.{TIME}", task=57, stream=563, status=0)
    (tmp_path / f"Opdebug.Node_OpDebug.60.{TIME}").write_bytes(b"")
    dump(tmp_path, f"Opdebug.Node_OpDebug.61.{TIME}", tensor(np.zeros(2047, np.uint8)))
    search = found(tmp_path)
    assert (search.files, search.overflows, search.silent) == (3, [], [str(silent)])
    assert [each.error for each in search.failures] == ["CorruptDumpError", "CorruptDumpError"]


def test_a_damaged_dump_of_the_operator_is_reported_beside_the_overflow(tmp_path: Path) -> None:
    dump(tmp_path, f"Add.net_add.57.563.{TIME}").unlink()
    (tmp_path / f"Add.net_add.57.563.{TIME}").write_bytes(b"\0" * 4)
    overflow_file(tmp_path, f"Opdebug.Node_OpDebug.59.{TIME}", task=57, stream=563, status=32)
    search = found(tmp_path)
    assert (search.overflows[0].operator, search.overflows[0].tensors) == ("net_add", ())
    assert [each.error for each in search.failures] == ["CorruptDumpError"]


def test_the_same_names_in_two_directories_are_two_files(tmp_path: Path) -> None:
    for directory in ("0", "1"):
        overflow_file(tmp_path / directory, f"Opdebug.Node_OpDebug.59.{TIME}", task=57, stream=563, status=32)
    assert len(find_overflows([str(tmp_path / "0"), str(tmp_path / "1")]).overflows) == 2
