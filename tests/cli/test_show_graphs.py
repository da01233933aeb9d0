"""`opdump show` names the computational graph of a dump with several models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from opdump.layouts.graph_files.ge import COMPUTE_GRAPH, note_graph, write_ge_graph
from tests.cli.programs import opdump
from tests.ge_graph.graphs import graph
from tests.layouts.ascend_dumps import STAMP, TIME, add_dump_file

START, TRAIN = "ge_default_20201120163719_1", "ge_default_20201120163719_2"
OF_TRAINING = f"{TIME}/0/{TRAIN}/2"


class Program(NamedTuple):
    dump: Path
    script: Path


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A dump of a model that initialises and one that trains, and the directory of the script."""
    dump, script = tmp_path / "dump", tmp_path / "script"
    script.mkdir()
    add_dump_file(dump / TIME / "0" / START / "1" / "0", f"AssignVariableOp.init.1.{STAMP}", "init")
    for step in range(2):
        add_dump_file(dump / TIME / "0" / TRAIN / "2" / str(step), f"Conv2D.conv1.1.{STAMP + step + 1}", "conv1")
    return Program(dump, script)


def _write_graphs(directory: Path) -> Path:
    write_ge_graph(directory, 1, [graph(START, "VarHandleOp", "AssignVariableOp")])
    return write_ge_graph(directory, 2, [graph(TRAIN, "IteratorV2", "Conv2D"), graph("body", "Relu")])


def _line(text: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith("computational graph: "))
    return line.removeprefix("computational graph: ")


FOUND = f"{TRAIN} (ge_proto_00002_Build.txt has IteratorV2); its operators are in {OF_TRAINING}"


def test_the_graph_beside_the_script_is_found(program: Program) -> None:
    _write_graphs(program.script)
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert _line(shown.stdout) == FOUND
    assert f"{START}/1, {TRAIN}/2 (computational)" in shown.stdout


@pytest.mark.parametrize("place", [".", TIME, f"{TIME}/0", "pid_17_deviceid_0"])
def test_the_graph_in_the_dump_is_found(place: str, program: Program) -> None:
    _write_graphs(program.dump / place)
    for part in (".", OF_TRAINING):
        shown = opdump("show", str(program.dump / part), cwd=program.script)
        assert shown.returncode == 0
        assert _line(shown.stdout) == FOUND


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("DUMP_GRAPH_PATH", "pid_17_deviceid_0"),
        ("ASCEND_WORK_PATH", "pid_17_deviceid_0"),
        ("NPU_COLLECT_PATH", "extra-info/graph/17_0"),
    ],
)
def test_the_graph_where_the_environment_points_is_found(
    variable: str, place: str, program: Program, tmp_path: Path
) -> None:
    _write_graphs(tmp_path / "graphs" / place)
    shown = opdump("show", str(program.dump), cwd=program.script, **{variable: str(tmp_path / "graphs")})
    assert _line(shown.stdout) == FOUND


def test_the_graph_that_the_dump_notes_is_found_wherever_it_was_written(program: Program, tmp_path: Path) -> None:
    metadata = program.dump / TIME / "0" / ".dump_metadata"
    elsewhere = tmp_path / "elsewhere"
    note_graph(metadata, elsewhere / "ge_proto_00001_Build.txt", START, 1, None)
    note_graph(metadata, elsewhere / "ge_proto_00002_Build.txt", TRAIN, 2, "IteratorV2")
    for part in (".", OF_TRAINING):
        shown = opdump("show", str(program.dump / part), cwd=program.script)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert _line(shown.stdout) == FOUND


def test_damaged_notes_are_told_and_files_looked_for(program: Program) -> None:
    metadata = program.dump / TIME / "0" / ".dump_metadata"
    metadata.mkdir()
    (metadata / "ge_graphs.json").write_text("{")
    _write_graphs(program.script)
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert shown.returncode == 0
    assert "ge_graphs.json: has no notes on graph files" in shown.stderr
    assert _line(shown.stdout) == FOUND


def test_a_mark_stands_for_an_iterator(program: Program) -> None:
    write_ge_graph(program.script, 5, [graph(TRAIN, "Placeholder", "Conv2D", attributes={COMPUTE_GRAPH: True})])
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout) == FOUND.replace("00002", "00005").replace(
        "has IteratorV2", "is marked _opdump_compute_graph"
    )


def test_graphs_of_other_programs_are_passed_over(program: Program) -> None:
    _write_graphs(program.script)
    write_ge_graph(program.script, 3, [graph("ge_default_20260101000000_1", "IteratorV2")])
    (program.script / "ge_proto_00004_Build.txt").write_text('graph {\n  name: "ge_default_20260101000000_2"\n  op {')
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert _line(shown.stdout) == FOUND


def test_a_damaged_graph_is_told_and_the_others_serve(program: Program) -> None:
    _write_graphs(program.script)
    (program.script / "ge_proto_00004_Build.txt").write_text("graph { op {")
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert shown.returncode == 0
    assert shown.stderr.startswith("opdump: warning: ")
    assert "ge_proto_00004_Build.txt: line 1: " in shown.stderr
    assert _line(shown.stdout) == FOUND


def test_a_json_graph_is_enough(program: Program) -> None:
    _write_graphs(program.script).unlink()
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout) == FOUND.replace("Build.txt", "Build.txt.json")


def test_without_graph_files_it_says_where_it_looked(program: Program) -> None:
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert shown.returncode == 0
    said = _line(shown.stdout)
    assert said.startswith("not known; no ge_proto_*_Build.txt of the 2 models is in ")
    looked = said.partition(" is in ")[2].partition(";")[0].split(", ")
    assert looked[0] == str(program.dump)
    assert {str(program.dump / TIME), str(program.dump / TIME / "0"), str(program.script)} <= set(looked)
    assert said.endswith("--graph FILE names one")
    assert "(computational)" not in shown.stdout


def test_one_model_without_a_graph_needs_no_word(program: Program) -> None:
    shown = opdump("show", str(program.dump / OF_TRAINING), cwd=program.script)
    assert shown.returncode == 0
    assert "computational" not in shown.stdout


def test_graphs_without_an_iterator_are_told(program: Program) -> None:
    write_ge_graph(program.script, 1, [graph(START, "VarHandleOp")])
    write_ge_graph(program.script, 2, [graph(TRAIN, "Placeholder", "Conv2D")])
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout) == (
        "not known; the graph files of 2 of 2 models were read, and none has IteratorV2, Iterator or GetNext; --graph FILE names one"
    )


def test_several_are_listed_and_one_can_be_chosen(program: Program) -> None:
    _write_graphs(program.script)
    chosen = write_ge_graph(program.script, 1, [graph(START, "IteratorGetNext", "Mean")])
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout).startswith("one of 2; --graph FILE names one")
    assert f"  {FOUND}\n" in shown.stdout
    assert (
        f"  {START} (ge_proto_00001_Build.txt has IteratorGetNext); its operators are in {TIME}/0/{START}/1\n"
        in shown.stdout
    )
    shown = opdump("show", str(program.dump), "--graph", chosen.name, cwd=program.script)
    assert _line(shown.stdout).startswith(f"{START} (")
    assert f"{START}/1 (computational), {TRAIN}/2" in shown.stdout
    shown = opdump("show", str(program.dump), "--json", cwd=program.script)
    found = json.loads(shown.stdout)["computational_graph"]
    assert found["model_name"] is None
    assert sorted(each["model_name"] for each in found["candidates"]) == [START, TRAIN]


def test_a_graph_chosen_by_hand_needs_no_iterator(program: Program) -> None:
    chosen = write_ge_graph(program.script, 9, [graph(TRAIN, "Conv2D")])
    shown = opdump("show", str(program.dump), "--graph", str(chosen), cwd=program.script)
    assert (
        _line(shown.stdout) == f"{TRAIN} (ge_proto_00009_Build.txt named by hand); its operators are in {OF_TRAINING}"
    )


def test_a_graph_chosen_by_hand_must_be_of_the_dump(program: Program) -> None:
    other = write_ge_graph(program.script, 9, [graph("another", "Conv2D")])
    shown = opdump("show", str(program.dump), "--graph", str(other), cwd=program.script)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert f"its graph is called 'another', and {program.dump} holds {START}, {TRAIN}" in shown.stderr
    shown = opdump("show", str(program.dump), "--graph", "missing.txt", cwd=program.script)
    assert shown.returncode == 1
    assert "missing.txt: cannot be read" in shown.stderr


def test_json_has_the_computational_graph(program: Program) -> None:
    path = _write_graphs(program.script)
    shown = opdump("show", str(program.dump), "--json", cwd=program.script)
    found = json.loads(shown.stdout)["computational_graph"]
    own = {"model_name": TRAIN, "file": str(path), "rule": "IteratorV2", "directories": [OF_TRAINING]}
    assert {key: found[key] for key in own} == own
    assert found["candidates"] == [own]
    assert str(program.script) in found["looked_in"]


def test_a_second_run_has_a_graph_of_its_own(program: Program) -> None:
    _write_graphs(program.script)
    later = "20301120120000"
    name = "ge_default_20301120120000_1"
    add_dump_file(program.dump / later / "0" / name / "1" / "0", f"Conv2D.conv1.1.{STAMP + 100}", "conv1")
    write_ge_graph(program.script, 3, [graph(name, "IteratorV2")])
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout).startswith(f"{name} (ge_proto_00003_Build.txt has IteratorV2)")
    shown = opdump("show", str(program.dump), "--run", "1", cwd=program.script)
    assert _line(shown.stdout) == FOUND
    shown = opdump("show", str(program.dump), "--run", "all", cwd=program.script)
    assert _line(shown.stdout).startswith("one of 2")


def test_two_devices_share_a_name(program: Program) -> None:
    _write_graphs(program.script)
    add_dump_file(program.dump / TIME / "1" / TRAIN / "2" / "0", f"Conv2D.conv1.1.{STAMP}", "conv1")
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout) == f"{FOUND}, {TIME}/1/{TRAIN}/2"


def test_of_several_the_one_that_trains_is_chosen(program: Program) -> None:
    write_ge_graph(program.script, 1, [graph(START, "IteratorGetNext", "Mean")])
    write_ge_graph(program.script, 2, [graph(TRAIN, "IteratorGetNext", "ResourceApplyAdam")])
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert _line(shown.stdout).startswith(f"{TRAIN} (ge_proto_00002_Build.txt has IteratorGetNext)")
    assert _line(shown.stdout).endswith(". It trains (ResourceApplyAdam); another graph reads data too")
