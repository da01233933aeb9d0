"""The directories and names of graph files, and the notes of a dump about them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opdump.configs.plan_fields import graph_directories, graph_directory, graph_warnings
from opdump.errors import CorruptDumpError, DumpPathError
from opdump.layouts.graph_files.ge import (
    GraphNote,
    note_graph,
    read_ge_graph,
    read_notes,
    update_of,
    write_new_ge_graph,
)
from tests.ge_graph.graphs import graph

HERE = Path("/work dir")
GRAPHS = [graph("net", "Relu")]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "/work dir"),
        ({"DUMP_GRAPH_PATH": "/g"}, "/g/pid_7_deviceid_3"),
        ({"DUMP_GRAPH_PATH": "g"}, "/work dir/g/pid_7_deviceid_3"),
        ({"ASCEND_WORK_PATH": "/w"}, "/w/pid_7_deviceid_3"),
        ({"NPU_COLLECT_PATH": "/n"}, "/n/extra-info/graph/7_3"),
        ({"NPU_COLLECT_PATH": "", "DUMP_GRAPH_PATH": "", "ASCEND_WORK_PATH": ""}, "/work dir"),
        ({"ASCEND_WORK_PATH": "/w", "DUMP_GRAPH_PATH": "/g"}, "/g/pid_7_deviceid_3"),
        ({"ASCEND_WORK_PATH": "/w", "DUMP_GRAPH_PATH": "/g", "NPU_COLLECT_PATH": "/n"}, "/n/extra-info/graph/7_3"),
        ({"DUMP_GE_GRAPH": "0", "DUMP_GRAPH_LEVEL": "4", "DUMP_GRAPH_FORMAT": "onnx"}, "/work dir"),
    ],
)
def test_the_graph_of_a_dump_is_always_written(environ: dict[str, str], expected: str) -> None:
    assert graph_directory(environ, pid=7, device_id=3, cwd=HERE) == Path(expected)


@pytest.mark.parametrize(
    ("environ", "is_written"),
    [
        ({}, False),
        *(({"DUMP_GE_GRAPH": value}, value in "123") for value in ("0", "1", "2", "3", "4", "9", "x")),
        *(
            ({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_LEVEL": level}, is_written)
            for level, is_written in (
                ("", True), ("1", True), ("2", True), ("3", True), ("4", False), ("Build", True), ("PreRun|uild", True),
                ("PreRunBegin", False), ("7", False), ("|", False),
            )
        ),
        ({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_FORMAT": "GE_PROTO"}, True),
        ({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_FORMAT": "onnx|readable"}, False),
    ],
)  # fmt: skip
def test_without_a_dump_the_variables_decide(environ: dict[str, str], is_written: bool) -> None:
    found = graph_directory(environ, pid=7, device_id=3, cwd=HERE, is_dumping=False)
    assert found == (HERE if is_written else None)


def test_a_reader_looks_where_any_process_wrote() -> None:
    environ = {"NPU_COLLECT_PATH": "/n", "DUMP_GRAPH_PATH": "g"}
    assert graph_directories(environ, cwd=HERE) == (
        (Path("/n/extra-info/graph"), "[0-9]*_[0-9]*"),
        (HERE / "g", "pid_*_deviceid_*"),
    )


def test_what_the_variables_ask_for_in_vain_is_reported() -> None:
    assert graph_warnings({}) == ()
    assert graph_warnings({"DUMP_GE_GRAPH": "2", "DUMP_GRAPH_FORMAT": "ge_proto"}) == ()
    told = "; ".join(graph_warnings({"DUMP_GE_GRAPH": "yes", "DUMP_GRAPH_FORMAT": "ge_proto|onnx|pdf"}))
    assert "found 'yes', expected 1, 2 or 3" in told
    assert "found 'pdf'" in told
    assert "onnx are not written" in told


def test_the_file_of_another_run_is_not_written_over(tmp_path: Path) -> None:
    first = write_new_ge_graph([tmp_path], 2, GRAPHS)
    second = write_new_ge_graph([tmp_path], 2, [graph("later", "Relu")])
    assert [first.path.name, second.path.name] == ["ge_proto_00002_Build.txt", "ge_proto_00003_Build.txt"]
    assert [read_ge_graph(written.path)[0].name for written in (first, second)] == ["net", "later"]
    assert (first.warning, second.warning) == ("", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ge_proto_00002_Build.txt",
        "ge_proto_00002_Build.txt.json",
        "ge_proto_00003_Build.txt",
        "ge_proto_00003_Build.txt.json",
    ]


def test_the_name_of_newer_graph_engines(tmp_path: Path) -> None:
    written = write_new_ge_graph([tmp_path / "new"], 2, GRAPHS, naming="ge8", graph_id=11)
    assert written.path.name == "ge_proto_00000002_graph_11_Build.txt"
    assert read_ge_graph(written.path)[0].name == "net"


def test_a_directory_that_cannot_be_made_gives_way_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    written = write_new_ge_graph([tmp_path / "file" / "below", tmp_path / "here"], 1, GRAPHS)
    assert written.path == tmp_path / "here" / "ge_proto_00001_Build.txt"
    assert str(tmp_path / "file") in written.warning
    assert str(written.path) in written.warning
    with pytest.raises(DumpPathError, match="DUMP_GRAPH_PATH"):
        write_new_ge_graph([tmp_path / "file" / "below"], 1, GRAPHS)


def test_graph_files_are_noted_in_their_order(tmp_path: Path) -> None:
    metadata = tmp_path / "20201120163719" / "0" / ".dump_metadata"
    assert read_notes(metadata) == ()
    file = tmp_path / "ge_proto_00002_Build.txt"
    note_graph(metadata, tmp_path / "ge_proto_00001_Build.txt", "ge_default_20201120163719_1", 1, None)
    note_graph(metadata, file, "ge_default_20201120163719_2", 2, "IteratorV2")
    assert [path.name for path in metadata.iterdir()] == ["ge_graphs.json"]
    assert read_notes(metadata)[1] == GraphNote(str(file), "ge_default_20201120163719_2", 2, "IteratorV2")
    assert [note.rule for note in read_notes(metadata)] == ["", "IteratorV2"]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", '{"graphs": 7}', '{"graphs": [7]}', '{"graphs": [{"file": "ge_proto_1_Build.txt"}]}',
        '{"graphs": [{"file": "/etc/passwd", "model_name": "m", "model_id": 1, "rule": ""}]}',
        '{"graphs": [{"file": "ge_proto_1_Build.txt", "model_name": "m", "model_id": "1", "rule": ""}]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_notes_give_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "ge_graphs.json").write_text(text)
    with pytest.raises(CorruptDumpError, match=r"ge_graphs\.json"):
        read_notes(tmp_path)


def test_notes_are_json(tmp_path: Path) -> None:
    note_graph(tmp_path, Path("ge_proto_00001_Build.txt"), "é", 1, "Iterator")
    (entry,) = json.loads((tmp_path / "ge_graphs.json").read_text())["graphs"]
    assert entry == {
        "file": str(Path.cwd() / "ge_proto_00001_Build.txt"),
        "model_name": "é",
        "model_id": 1,
        "rule": "Iterator",
        "update": "",
    }


def test_training_is_distinguished_from_evaluation_by_an_operator_that_updates() -> None:
    assert update_of([graph("train", "IteratorGetNext", "ResourceApplyAdam")]) == "ResourceApplyAdam"
    assert update_of([graph("evaluate", "IteratorGetNext", "Mean")]) == ""
