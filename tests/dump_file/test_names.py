"""Names of dump files, and the tables of long names."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from opdump.dump_file.names import (
    ConvertedName,
    DumpName,
    ExceptionName,
    FftsPlus,
    StatisticsName,
    microseconds_of,
    parse_converted_name,
    parse_dump_name,
    parse_exception_name,
    parse_name,
    read_mapping,
    sanitise,
)
from opdump.errors import CorruptDumpError

NAMES = {
    "Pooling.pool1.1147.1589195081588018": DumpName("Pooling", "pool1", 1147, None, 1589195081588018),
    "Pooling.pool1.1.5.1732082705016774": DumpName("Pooling", "pool1", 1, 5, 1732082705016774),
    "Add.partition0_rank1_new_sub_graph1_sgt_graph_0_Add.0.3.1673383728093446.4.1.0.0": DumpName(
        "Add", "partition0_rank1_new_sub_graph1_sgt_graph_0_Add", 0, 3, 1673383728093446, FftsPlus(1, 0, 0)
    ),
    "Add.one.7.1673383728093446.4.1.2.3": DumpName("Add", "one", 7, None, 1673383728093446, FftsPlus(1, 2, 3)),
    "Add.7.1.1673383728093446": DumpName("Add", "7", 1, None, 1673383728093446),
    "exception_info.7.12.20240101120000123": ExceptionName("exception_info", 7, 12, 20240101120000123),
    "exception_info.7.12.1704106800123000": ExceptionName("exception_info", 7, 12, 1704106800123000),
    "MatMul_k0.7.12.20240101120000123.core": ExceptionName("MatMul_k0", 7, 12, 20240101120000123, is_detail=True),
    "MatMul_k0.7.12.0.24.20240101120000123": ExceptionName("MatMul_k0", 7, 12, 20240101120000123, "0", 24),
    "Pooling.pool1.1.5.173.csv": StatisticsName(DumpName("Pooling", "pool1", 1, 5, 173)),
    "Add.a.1.5.173.input.0.npy": ConvertedName(DumpName("Add", "a", 1, 5, 173), "input", 0, "npy"),
    "Add.a.1.5.173.output.10.NCHW.npy": ConvertedName(
        DumpName("Add", "a", 1, 5, 173), "output", 10, "npy", format="NCHW"
    ),
    "Add.a.1.5.173.output.0.DefaultFormat.BFloat16.npy": ConvertedName(
        DumpName("Add", "a", 1, 5, 173), "output", 0, "npy", dtype="BFloat16", format="DefaultFormat"
    ),
    "Add.a.1.5.173.output.0.2_19_3_4.float16.NCHW.bin": ConvertedName(
        DumpName("Add", "a", 1, 5, 173), "output", 0, "bin", (2, 19, 3, 4), "float16", "NCHW"
    ),
    "Add.a.1.5.173.output.0.6.float16.ND.bin": ConvertedName(
        DumpName("Add", "a", 1, 5, 173), "output", 0, "bin", (6,), "float16", "ND"
    ),
    "Add.a.1.5.173.l1buffer.0.bin": ConvertedName(DumpName("Add", "a", 1, 5, 173), "l1buffer", 0, "bin"),
    "Add.a.1.5.173.space.0.bin": ConvertedName(DumpName("Add", "a", 1, 5, 173), "space", 0, "bin"),
    "Opdebug.Node_OpDebug.59.173.output.0.json": ConvertedName(
        DumpName("Opdebug", "Node_OpDebug", 59, None, 173), "output", 0, "json"
    ),
    "123456789.output.0.npy": ConvertedName("123456789", "output", 0, "npy"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_read_and_printed_back(name: str) -> None:
    parsed = parse_name(name)
    assert parsed == NAMES[name]
    assert str(parsed) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "mapping.csv",
        "statistic.csv",
        "123456789012345",
        "Add.a.1",
        "Add.a.b.1.2",
        "Add.a.1.2.3.4",
        "Add.a.1.2.3.5.1.0.0",
        "Add.a.1.2.3.4.1.0.0.0",
        "Add.a.-1.2.3",
        "Add.a.1.2.٣",
        "../Add.a.1.2.3",
        "Add.a/b.1.2.3",
        "Add.a.1.2.3\n",
        "ge_proto_00000.txt",
        "Add.a.1.2." + "9" * 256,
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert parse_name(name) is None


def test_a_name_of_an_exception_is_no_dump_name() -> None:
    assert parse_dump_name("exception_info.7.12.20240101120000123") is None
    assert parse_exception_name("Add.7.12.20240101120000123") is None


@pytest.mark.parametrize("spelling", ["Opdebug.Node_OpDebug", "OpDebug.Node_Opdebug", "opdebug.node_opdebug"])
def test_overflow_files_are_known_in_any_case_of_letters(spelling: str) -> None:
    four, five = parse_dump_name(f"{spelling}.59.173"), parse_dump_name(f"{spelling}.59.5.173")
    assert four is not None
    assert five is not None
    assert four.is_overflow
    assert five.is_overflow
    assert not DumpName("Pooling", "pool1", 1, 5, 173).is_overflow


class TestTheTwoOrders:
    NAME = "net_fc1_MatMul.MatMulV2.1.2.173"

    def test_the_header_shows_that_the_name_comes_first(self) -> None:
        parsed = parse_dump_name(self.NAME)
        assert parsed is not None
        ordered = parsed.in_true_order("net/fc1/MatMul")
        assert (ordered.op_type, ordered.op_name, ordered.name_first) == ("MatMulV2", "net_fc1_MatMul", True)
        assert str(ordered) == self.NAME
        assert ordered.in_true_order("net/fc1/MatMul") == ordered

    def test_the_header_shows_that_the_type_comes_first(self) -> None:
        parsed = parse_dump_name("MatMulV2.aclnnX.1.2.173")
        assert parsed is not None
        assert parsed.in_true_order("aclnnX") == parsed

    @pytest.mark.parametrize("true_name", ["", "something/else"])
    def test_without_help_of_the_header_the_type_comes_first(self, true_name: str) -> None:
        parsed = parse_dump_name(self.NAME)
        assert parsed is not None
        assert parsed.in_true_order(true_name) == parsed

    def test_without_a_header_the_prefix_of_single_operator_calls_decides(self) -> None:
        parsed = parse_dump_name("aclnnAdd_3_Add.Add.1.2.173")
        assert parsed is not None
        assert parsed.in_true_order().op_type == "Add"

    def test_two_equal_parts_stay_as_they_are(self) -> None:
        parsed = parse_dump_name("Add.Add.1.2.173")
        assert parsed is not None
        assert parsed.in_true_order("Add") == parsed


def test_names_are_written_as_files_have_them() -> None:
    assert sanitise("net/a b\\c.d-e") == "net_a_b_c_d-e"


def test_a_time_of_the_calendar_becomes_microseconds() -> None:
    moment = datetime(2024, 1, 1, 12, 0, 0).astimezone()
    assert microseconds_of(20240101120000123) == int(moment.timestamp()) * 1_000_000 + 123_000
    assert microseconds_of(1732082705016774) == 1732082705016774
    assert microseconds_of(99999999999999999) == 99999999999999999


def test_a_shape_of_a_thousand_digits_is_read_without_harm() -> None:
    parsed = parse_converted_name(f"x.output.0.{'9' * 5000}.float16.ND.bin")
    assert parsed is not None
    assert parsed.part == "output"


class TestMapping:
    def read(self, tmp_path: Path, data: bytes) -> tuple[dict[str, str], list[str]]:
        path = tmp_path / "mapping.csv"
        path.write_bytes(data)
        mapping = read_mapping(path)
        return dict(mapping.names), [str(problem) for problem in mapping.problems]

    def test_rows_are_read_once_however_often_they_stand_there(self, tmp_path: Path) -> None:
        names, problems = self.read(tmp_path, b"123,Add.a.1.2.3\n45,Add.b,c.1.2.3\r\n\n123,Add.a.1.2.3\n")
        assert names == {"123": "Add.a.1.2.3", "45": "Add.b,c.1.2.3"}
        assert problems == []

    def test_names_of_a_converter_are_read_too(self, tmp_path: Path) -> None:
        names, problems = self.read(tmp_path, b"1994743515.npy,A.npy\n0123456789abcdef0123456789abcdef.bin,B.bin\n")
        assert names == {"1994743515.npy": "A.npy", "0123456789abcdef0123456789abcdef.bin": "B.bin"}
        assert problems == []

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            (b"123", "no second column"),
            (b"Add.x.1.2.3,Add.a.1.2.3", "that is not digits"),
            (b"../5,Add.a.1.2.3", "that is not digits"),
            (b"123,../../etc/passwd", "not a plain file name"),
            (b"123,..", "not a plain file name"),
            (b"123,", "not a plain file name"),
            (b"123,a\\b", "not a plain file name"),
            (b"123,a\0b", "not a plain file name"),
            (b"123,\xff\xfe", "not UTF-8"),
            (b"7,Other.a.1.2.3", "contradicts"),
        ],
    )
    def test_a_row_that_lies_is_reported_and_left_out(self, tmp_path: Path, row: bytes, said: str) -> None:
        names, problems = self.read(tmp_path, b"7,Add.a.1.2.3\n" + row + b"\n")
        assert names == {"7": "Add.a.1.2.3"}
        assert len(problems) == 1
        assert said in problems[0]
        assert "line 2" in problems[0]

    def test_many_bad_rows_are_one_problem(self, tmp_path: Path) -> None:
        _, problems = self.read(tmp_path, b"x\n" * 10_000)
        assert len(problems) == 1
        assert "9999 more rows" in problems[0]

    def test_a_table_too_large_is_refused_unread(self, tmp_path: Path) -> None:
        path = tmp_path / "mapping.csv"
        path.touch()
        os.truncate(path, (100 << 20) + 1)
        with pytest.raises(CorruptDumpError, match="at most"):
            read_mapping(path)

    @pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
    def test_what_is_no_file_is_refused(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        path = tmp_path / "mapping.csv"
        make(path)
        with pytest.raises(CorruptDumpError, match=r"mapping\.csv"):
            read_mapping(path)
