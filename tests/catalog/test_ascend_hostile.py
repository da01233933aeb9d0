"""Damaged or malicious dumps of Ascend devices: bad parts are reported, and the rest is readable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from opdump.catalog.catalog import Catalog, open_dump
from opdump.errors import UnknownLayoutError
from tests.layouts.ascend_dumps import STAMP, TIME, add_dump_file, add_npy

GOOD = f"Add.good.1.5.{STAMP}"
BAD = f"Add.bad.1.5.{STAMP + 1}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A data directory with one good file."""
    place = tmp_path / "dump" / TIME / "0" / "net" / "1" / "0"
    add_dump_file(place, GOOD, "good")
    return place


def read(place: Path) -> tuple[Catalog, list[str], list[str]]:
    """The catalog of the whole dump, the names of the operators with tensors, and the problems."""
    catalog = open_dump(place.parents[4])
    names = [execution.op.op_name for execution in catalog.executions() if execution.tensors]
    return catalog, names, [str(problem) for problem in catalog.problems]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 64,
        (2**63).to_bytes(8, "little") + b"x",
        (4).to_bytes(8, "little") + b"\x0a\xff\xff\xff",
    ],
)
def test_a_file_that_is_no_dump_file_leaves_the_others(place: Path, data: bytes) -> None:
    (place / BAD).write_bytes(data)
    catalog, names, problems = read(place)
    assert names == ["good"]
    assert len(problems) == 1
    assert BAD in problems[0]
    assert [op.op_name for op in catalog.ops()] == ["good", "bad"]


def test_a_file_that_was_cut_off_leaves_the_others(place: Path) -> None:
    data = (place / GOOD).read_bytes()
    (place / BAD).write_bytes(data[:-1])
    _, names, problems = read(place)
    assert names == ["good"]
    assert "cut off" in problems[0]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_does_not_stop_the_reader(place: Path, make: Callable[[Path], None]) -> None:
    for name in (BAD, "statistic.csv", "mapping.csv", f"{BAD}.csv", f"Add.npy.1.5.{STAMP}.output.0.ND.npy"):
        make(place / name)
    _, names, _ = read(place)
    assert names[0] == "good"


class TestLinks:
    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        add_dump_file(tmp_path / "outside", BAD, "outside")
        (tmp_path / "outside" / "mapping.csv").write_text("1,2\n")
        (tmp_path / "outside" / "statistic.csv").write_text("x\n")
        return tmp_path / "outside"

    def test_links_to_files_outside_are_not_followed(self, place: Path, outside: Path) -> None:
        for name in (BAD, "mapping.csv", "statistic.csv"):
            (place / name).symlink_to(outside / name)
        _, names, problems = read(place)
        assert names == ["good"]
        assert len(problems) == 3
        assert all("outside of it" in problem for problem in problems)

    @pytest.mark.parametrize("depth", range(6))
    def test_links_to_directories_outside_are_not_followed(self, place: Path, outside: Path, depth: int) -> None:
        name = "20250101000000" if depth == 5 else "77"
        (place.parents[depth - 1] if depth else place).joinpath(name).symlink_to(outside)
        _, names, problems = read(place)
        assert names == ["good"]
        assert problems == [] or all("outside of it" in problem for problem in problems)

    def test_graphs_outside_are_not_read(self, place: Path, outside: Path) -> None:
        (outside / "ms_output_trace_code_graph_1.ir").write_text("x")
        (outside / "ms_execution_order_graph_1.csv").write_text("x")
        for name in ("graphs", "execution_order"):
            place.parents[4].joinpath(name).symlink_to(outside)
        catalog, names, problems = read(place)
        assert names == ["good"]
        assert "outside of it" in problems[0]
        assert catalog.graph(1) is None
        assert catalog.graphs == (1,)

    def test_a_link_within_the_dump_is_followed(self, place: Path) -> None:
        (place / BAD).symlink_to(place / GOOD)
        _, names, problems = read(place)
        assert names == ["good", "good"]
        assert problems == []

    def test_a_link_in_a_circle_ends(self, place: Path) -> None:
        (place / "0").symlink_to(place)
        (place.parent / "1").symlink_to(place.parent)
        _, names, _ = read(place)
        assert "good" in names

    def test_a_link_to_nothing_is_a_problem(self, place: Path) -> None:
        (place / BAD).symlink_to(place / "gone")
        _, names, problems = read(place)
        assert names == ["good"]
        assert len(problems) == 1


class TestMapping:
    def test_a_file_of_digits_without_a_row_is_read_by_its_header(self, place: Path) -> None:
        add_dump_file(place, "123456", "net/long")
        _, names, problems = read(place)
        assert sorted(names) == ["good", "net/long"]
        assert "does not list it" in problems[0]

    def test_a_row_that_names_no_dump_file_is_told(self, place: Path) -> None:
        add_dump_file(place, "123456", "net/long")
        (place / "mapping.csv").write_text("123456,passwd\n")
        _, names, problems = read(place)
        assert sorted(names) == ["good", "net/long"]
        assert "gives it the name 'passwd'" in problems[0]

    def test_a_row_that_leads_out_is_told_and_not_followed(self, place: Path) -> None:
        add_dump_file(place, "123456", "net/long")
        (place / "mapping.csv").write_text("123456,../../../../etc/passwd\n")
        _, names, problems = read(place)
        assert sorted(names) == ["good", "net/long"]
        assert "not a plain file name" in problems[0]

    def test_a_row_that_takes_the_name_of_another_file_adds_an_execution(self, place: Path) -> None:
        add_dump_file(place, "123456", "good")
        (place / "mapping.csv").write_text(f"123456,{GOOD}\n")
        catalog, names, problems = read(place)
        assert names == ["good", "good"]
        assert problems == []
        assert [op.occurrence for op in catalog.ops()] == [0, 1]

    def test_a_table_too_large_is_told(self, place: Path) -> None:
        (place / "mapping.csv").touch()
        os.truncate(place / "mapping.csv", 1 << 40)
        _, names, problems = read(place)
        assert names == ["good"]
        assert "at most" in problems[0]


def test_a_damaged_statistic_csv_leaves_the_files(place: Path) -> None:
    (place / "statistic.csv").write_bytes(b"\xff\xfe")
    _, names, problems = read(place)
    assert names == ["good"]
    assert "statistic.csv" in problems[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_told(place: Path) -> None:
    add_dump_file(place, BAD, "bad").chmod(0)
    (place.parent / "1").mkdir(mode=0)
    _, names, problems = read(place)
    assert names == ["good"]
    assert len(problems) == 2


def test_a_name_that_is_no_text_is_told(place: Path) -> None:
    Path(os.fsdecode(os.fsencode(place) + b"/Add.\xff.1.2.3")).write_bytes(b"x")
    _, names, problems = read(place)
    assert names == ["good"]
    assert "not valid UTF-8" in problems[0]


def test_a_name_cannot_command_a_terminal(place: Path) -> None:
    add_dump_file(place, f"A\x1b[2J.b.1.5.{STAMP}", "\x1b]0;title\x07\udcff\nname")
    _, names, _ = read(place)
    assert sorted(names) == ["good", "\ufffd]0;title\ufffd\ufffd\ufffdname"]


def test_hundreds_of_levels_are_not_entered(tmp_path: Path) -> None:
    directory = tmp_path / TIME / "0"
    add_dump_file(directory, GOOD, "good")
    there = os.getcwd()
    try:
        os.chdir(directory)
        for _ in range(300):
            os.mkdir("1")
            os.chdir("1")
    finally:
        os.chdir(there)
    assert [op.op_name for op in open_dump(tmp_path).ops()] == ["good"]


def test_a_time_stamp_of_any_length_is_borne(tmp_path: Path) -> None:
    add_dump_file(tmp_path / "loose", "Add.a.1.5." + "9" * 200, "a")
    catalog = open_dump(tmp_path / "loose")
    assert [op.timestamp for op in catalog.ops()] == [int("9" * 200)]
    assert len(catalog.runs) == 1


def test_a_npy_file_that_lies_about_its_shape_is_told(place: Path) -> None:
    array = add_npy(place, f"Add.bad.1.5.{STAMP}.output.0.ND.npy", np.ones(1))
    array.write_bytes(array.read_bytes().replace(b"(1,)", b"(9,)"))
    _, _, problems = read(place)
    assert len(problems) == 1


def test_an_empty_time_is_no_dump(tmp_path: Path) -> None:
    (tmp_path / TIME / "0" / "net" / "1" / "0").mkdir(parents=True)
    with pytest.raises(UnknownLayoutError, match="known layout"):
        open_dump(tmp_path)
