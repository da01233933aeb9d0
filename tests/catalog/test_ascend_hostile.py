"""Damaged or malicious dumps of Ascend devices, and any tree of directories, are opened, or refused with an error of opdump."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdump.catalog.catalog import Catalog, open_dump
from opdump.dump_file import DumpFile
from opdump.dump_file.dump_file import encode_dump_file
from opdump.dump_file.names import DumpName, ExceptionName, FftsPlus, parse_name
from opdump.errors import OpdumpError, UnknownLayoutError
from tests.layouts.filing import LATER, STAMP, TIME, add_dump_file, add_npy, tensor

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

    def test_a_row_that_names_no_dump_file_is_reported(self, place: Path) -> None:
        add_dump_file(place, "123456", "net/long")
        (place / "mapping.csv").write_text("123456,passwd\n")
        _, names, problems = read(place)
        assert sorted(names) == ["good", "net/long"]
        assert "gives it the name 'passwd'" in problems[0]

    def test_a_row_that_leads_out_is_reported_and_not_followed(self, place: Path) -> None:
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

    def test_a_table_too_large_is_reported(self, place: Path) -> None:
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
def test_what_may_not_be_read_is_reported(place: Path) -> None:
    add_dump_file(place, BAD, "bad").chmod(0)
    (place.parent / "1").mkdir(mode=0)
    _, names, problems = read(place)
    assert names == ["good"]
    assert len(problems) == 2


def test_a_name_that_is_no_text_is_reported(place: Path) -> None:
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


def test_a_npy_file_that_lies_about_its_shape_is_reported(place: Path) -> None:
    array = add_npy(place, f"Add.bad.1.5.{STAMP}.output.0.ND.npy", np.ones(1))
    array.write_bytes(array.read_bytes().replace(b"(1,)", b"(9,)"))
    _, _, problems = read(place)
    assert len(problems) == 1


def test_an_empty_time_is_no_dump(tmp_path: Path) -> None:
    (tmp_path / TIME / "0" / "net" / "1" / "0").mkdir(parents=True)
    with pytest.raises(UnknownLayoutError, match="known layout"):
        open_dump(tmp_path)


_IDS = st.integers(0, 2**63)
_PARTS = st.text(st.characters(exclude_characters="./\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
_FFTS = st.none() | st.builds(FftsPlus, _IDS, _IDS, _IDS)

_DIRECTORIES = (
    "0",
    "3",
    "11",
    "99999999999999",
    TIME,
    LATER,
    "resnet50",
    "rank_0",
    "graphs",
    "extra-info",
    "data-dump",
)
_PLACES = st.one_of(
    st.lists(st.sampled_from(_DIRECTORIES), max_size=6),
    st.sampled_from([[], [TIME, "0"], [TIME, "3", "resnet50", "11", "0"], ["3", TIME, "0"], [LATER, "0", "11"]]),
    st.sampled_from([["graphs"], ["rank_0", "execution_order"]]),
)
_FILES = (
    f"Conv2D.net_conv1.1.5.{STAMP}",
    f"Conv2D.net_conv1.1.{STAMP}",
    f"net_conv1.Conv2D.1.5.{STAMP}.4.1.0.0",
    f"Conv2D.net_conv1.1.5.{STAMP}.csv",
    f"Conv2D.net_conv1.1.5.{STAMP}.output.0.ND.Float32.npy",
    f"Opdebug.Node_OpDebug.59.{STAMP}",
    f"Opdebug.Node_OpDebug.59.{STAMP}.output.0.json",
    "exception_info.7.12.20240101120000123",
    "123456789",
    "mapping.csv",
    "statistic.csv",
    "ms_execution_order_graph_11.csv",
)


def _dump_file() -> bytes:
    import numpy as np

    parts = (tensor("output", 0, np.arange(3, dtype="float32")), tensor("output", 1, np.ones(2, "int8"), short=1))
    return b"".join(bytes(part) for part in encode_dump_file(DumpFile(outputs=parts, op_name="net/conv1")))


_WHOLE = _dump_file()
_CONTENTS = st.one_of(
    st.just(_WHOLE),
    st.binary(max_size=40),
    st.integers(0, len(_WHOLE)).map(lambda size: _WHOLE[:size]),
    st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)).map(
        lambda change: _WHOLE[: change[0]] + bytes([change[1]]) + _WHOLE[change[0] + 1 :]
    ),
    st.sampled_from(
        [
            b"123456789,Conv2D.net_conv1.1.5.7\n",
            b"123456789,../../x\n123456789\n",
            b"Input/Output,Index,Data Size,Data Type,Format,Shape\nInput,0,1,DT_INT8,ND,1\n",
            b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape\n",
        ]
    ),
)
_TREES = st.lists(st.tuples(_PLACES, st.sampled_from(_FILES), _CONTENTS), max_size=6)
_LINKS = st.lists(
    st.tuples(st.lists(st.sampled_from(_DIRECTORIES), max_size=4), st.sampled_from((*_DIRECTORIES, *_FILES))),
    max_size=2,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_TREES, _LINKS, st.sampled_from(["latest", "all", 1]))
def test_any_tree_is_read_or_refused(
    tree: list[tuple[list[str], str, bytes]], links: list[tuple[list[str], str]], run: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        outside, root = Path(folder, "outside"), Path(folder, "dump")
        for place in (outside, outside / "3", root):
            place.mkdir(parents=True)
            if place != root:
                (place / f"Add.secret.1.5.{STAMP}").write_bytes(_WHOLE.replace(b"net/conv1", b"secret/op"))
        for directories, name, content in tree:
            _make(root.joinpath(*directories), name, content)
        for directories, name in links:
            target = root.joinpath(*directories)
            if target.is_dir() and not os.path.lexists(target / name):
                (target / name).symlink_to(outside)
        for opened in (root, *(root / name for name in _DIRECTORIES)):
            if opened.is_symlink():
                continue  # the caller named the outside directory explicitly
            assert "secret/op" not in _read(opened, run)


def _make(directory: Path, name: str, content: bytes) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    except OSError:
        assert directory.exists() or any(parent.is_file() for parent in directory.parents)


def _read(path: Path, run: str) -> set[str]:
    """The operator names of a dump, after reading all of its tensors."""
    try:
        catalog = open_dump(path, run=run)  # type: ignore[arg-type]
        names = {op.op_name for op in catalog.ops(include_skipped=True)}
        records = list(catalog)
        assert all(isinstance(problem, OpdumpError) for problem in catalog.problems)
    except OpdumpError:
        return set()
    for record in records:
        if record.payload is not None:
            try:
                assert record.payload.to_host().shape == record.shape
            except OpdumpError:
                assert catalog.problems
    return names


@given(st.builds(DumpName, _PARTS, _PARTS, _IDS, st.none() | _IDS, st.integers(0, 10**254), _FFTS))
def test_every_dump_name_is_read_back(name: DumpName) -> None:
    if name.op_type != "exception_info":
        assert parse_name(str(name)) == name


@given(
    st.builds(
        ExceptionName,
        _PARTS,
        _IDS,
        _IDS,
        st.integers(10**15, 10**17 - 1),
        is_detail=st.just(True),
    )
)
def test_every_name_of_an_exception_is_read_back(name: ExceptionName) -> None:
    assert parse_name(str(name)) == name
