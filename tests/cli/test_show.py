"""`opdump show` on dumps of an adapter without a framework, of Ascend devices, and of several models."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from opdump.adapters.base import Settings
from opdump.index.writer import RunFacts, own_version
from opdump.layouts.graph_files.ge import COMPUTE_GRAPH, note_graph, write_ge_graph
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from opdump.reports.table import Column, Printer
from tests.adapters.fake_adapter import FakeAdapter
from tests.cli.programs import opdump
from tests.ge_graph.graphs import graph
from tests.layouts.filing import STAMP, TIME, add_dump_file, tensor


def write_dump(root: Path, *, ranks: int = 1, **settings: Any) -> Path:
    """Two steps of a matrix product, an addition in place that overflows in step 1, and a view."""
    plan = DumpPlan(path=root, **{"net_name": "Fake", "saved_data": "full", **settings})
    for rank in range(ranks):
        fake = FakeAdapter()
        facts = ("CPU", "fake", "1", own_version(), ("fake.py", "--lr"), plan.to_json())
        writer = SyncWriter(plan, RunFacts(rank, *facts))
        recorder = Recorder(plan, writer, fake.reader(plan))
        with fake.attach(recorder, Settings(rank_id=rank)) as clock:
            for step in range(2):
                a = np.arange(6, dtype=np.float32).reshape(2, 3) + step
                c = fake.run("MatMul", np.matmul, a, a.T, scope="Default/network-Net/fc1-Dense", arguments={"t": True})
                fake.run("Reshape", np.ravel, c, scope="Default", skip="view")
                with np.errstate(over="ignore"):
                    fake.run("AssignAdd", np.add, c, c * np.float32(3e38 * step), into=c, scope="Default")
                clock.manual_step()
        writer.close({"executed": recorder.tally.executed, "captured": recorder.tally.captured})
    return root


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dump(tmp_path_factory.mktemp("show") / "dump", ranks=2)


def show(path: Path | str, *arguments: str) -> str:
    done = opdump("show", str(path), *arguments, cwd=Path.cwd())
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def refused(path: Path | str, *arguments: str) -> tuple[int, str]:
    done = opdump("show", str(path), *arguments, cwd=Path.cwd())
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_the_overview_shows_runs_steps_and_operators(dump: Path) -> None:
    runs, steps, operators = show(dump).strip().split("\n\n")
    assert [line.split()[:2] for line in runs.splitlines()] == [["rank", "run"], ["0", "1"], ["1", "1"]]
    assert runs.count("fake.py --lr") == 2
    heading, *rows = [re.split(r"\s{2,}", line.strip()) for line in steps.splitlines()]
    assert heading == ["rank", "step", "graphs", "operators", "tensors", "nan/inf", "first with nan/inf", "left out"]
    assert rows[0] == ["0", "0", "Fake/0", "2", "6", "1 view"]
    assert rows[1] == ["0", "1", "Fake/0", "2", "6", "2", "Default/AssignAdd-op0", "1 view"]
    assert "MatMul-op0" in operators
    assert "Reshape" not in operators


def test_operators_carry_their_statistics(dump: Path) -> None:
    lines = show(dump, "--step", "0", "--rank", "0").strip().split("\n\n")[-1].splitlines()
    (row,) = [line for line in lines if "MatMul-op0" in line]
    product = np.arange(6, dtype=np.float64).reshape(2, 3)
    product = product @ product.T
    expected = [f"{value:g}" for value in (product.max(), product.min(), product.mean(), np.linalg.norm(product))]
    assert row.split()[-5:] == [*expected, "0"]


def test_skipped_operators_are_shown_with_their_reason_when_asked_for(dump: Path) -> None:
    shown = show(dump, "--skipped", "--step", "0", "--rank", "1")
    assert re.search(r"^Reshape-op0 +Default .* view$", shown, re.MULTILINE)


@pytest.mark.parametrize("name", ["MatMul-op0", "fc1-Dense/MatMul-op0", "matmul", "name-regex(.*fc1.*)"])
def test_an_operator_is_found_by_name_by_end_of_name_by_type_and_by_pattern(dump: Path, name: str) -> None:
    shown = show(dump, "--op", name, "--step", "0", "--rank", "0")
    assert shown.startswith("Default/network-Net/fc1-Dense/MatMul-op0\n")
    assert "t=True" in shown
    files = re.findall(r"^  (/.*\.npy)$", shown, re.MULTILINE)
    assert [re.sub(r"\d{16}", "T", Path(file).name) for file in files] == [
        "MatMul.MatMul-op0.0.0.T.input.0.DefaultFormat.npy",
        "MatMul.MatMul-op0.0.0.T.input.1.DefaultFormat.npy",
        "MatMul.MatMul-op0.0.0.T.output.0.DefaultFormat.npy",
    ]
    assert np.load(files[0]).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_json_holds_what_the_tables_show_and_is_valid(dump: Path) -> None:
    shown = json.loads(show(dump, "--json", "--limit", "0"), parse_constant=pytest.fail)
    assert (shown["ranks"], shown["steps"], shown["graphs"]) == ([0, 1], [0, 1], [0])
    assert [run["command"] for run in shown["runs"]] == [["fake.py", "--lr"]] * 2
    assert len(shown["operators"]) == 8
    overflowed = shown["operators"][3]
    assert (overflowed["op_name"], overflowed["step"]) == ("Default/AssignAdd-op0", 1)
    (output,) = [tensor for tensor in overflowed["tensors"] if tensor["io"] == "output"]
    assert output["statistics"]["max"] == "inf"
    assert np.isinf(np.load(output["file"])).sum() == output["statistics"]["positive inf count"]


def test_the_limit_cuts_and_says_so(dump: Path) -> None:
    shown = show(dump, "--limit", "1", "--step", "0")
    assert shown.count("-op0") == 1
    assert "--limit 0 shows all" in shown
    assert "limit" not in show(dump, "--limit", "0")


def test_a_dump_of_only_elements_shows_statistics_of_its_files(tmp_path: Path) -> None:
    tensors = write_dump(tmp_path / "tensor", saved_data="tensor")
    for file in tensors.rglob("index.sqlite"):
        file.unlink()
    (row,) = [line for line in show(tensors, "--step", "0").splitlines() if line.startswith("MatMul-op0")]
    assert row.split()[-5:-1] == ["50", "5", "20.75", f"{np.sqrt(5**2 + 14**2 * 2 + 50**2):g}"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--op", "MatMull-op0"), "the nearest are Default/network-Net/fc1-Dense/MatMul-op0"),
        (("--source", "train.py:7"), "no operator came from train.py:7; the dump holds no source lines"),
        (("--step", "7"), "holds no step 7; it holds 0, 1"),
        (("--rank", "7"), "holds no rank 7; it holds 0, 1"),
    ],
)
def test_what_the_dump_does_not_hold_is_reported(dump: Path, arguments: tuple[str, ...], said: str) -> None:
    code, errors = refused(dump, *arguments)
    assert (code, errors.count("\n")) == (1, 1)
    assert said in errors


def test_a_folder_without_a_dump_is_refused_with_one_line(tmp_path: Path) -> None:
    code, errors = refused(tmp_path)
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith("opdump: error: ")
    assert refused(tmp_path / "absent")[0] == 1


def test_a_damaged_file_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "dump", saved_data="tensor")
    for file in path.rglob("index.sqlite"):
        file.unlink()
    damaged = min(path.rglob("MatMul*output*.npy"))
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:100])
    done = opdump("show", str(path), cwd=tmp_path)
    assert done.returncode == 1
    assert damaged.name in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_ended_is_not_called_cut_off_for_want_of_its_index(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "dump")
    assert "not known" not in show(path)
    (index,) = path.rglob("index.sqlite")
    index.chmod(0o600)
    index.write_bytes(b"no database, " * 1000)
    unreadable = opdump("show", str(path), cwd=tmp_path)
    assert "not known: the index cannot be read" in unreadable.stdout
    assert index.name in unreadable.stderr
    index.unlink()
    assert "not known: there is no index" in show(path)
    assert "interrupted" not in unreadable.stdout + show(path)


def test_a_wrong_command_line_ends_with_2(dump: Path) -> None:
    assert refused(dump, "--run", "first")[0] == 2
    assert refused(dump, "--limit", "-1")[0] == 2


def test_a_pipe_that_closes_early_is_no_error(dump: Path, tmp_path: Path) -> None:
    command = f"{sys.executable} -m opdump show {dump} --json --limit 0 | head -1"
    (tmp_path / "pipe.sh").write_text(command)
    done = subprocess.run(["/bin/bash", str(tmp_path / "pipe.sh")], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{\n", "")


def _printed(width: int | None, rows: list[list[str]]) -> list[str]:
    stream = io.StringIO()
    columns = (Column("name"), Column("scope", gives_way=True), Column("max", right=True), Column("skip"))
    Printer(stream, width=width).table(columns, rows)
    return stream.getvalue().splitlines()


def test_a_table_fits_the_width_by_cutting_beginnings_of_the_column_that_gives_way() -> None:
    rows = [
        ["conv-op1", "Default/network-Net/layer1-Sequential/conv1-Conv2d", "1.5", ""],
        ["add-op2", "Default", "-10", ""],
    ]
    assert _printed(None, rows) == [
        "name      scope                                               max",
        "conv-op1  Default/network-Net/layer1-Sequential/conv1-Conv2d  1.5",
        "add-op2   Default                                             -10",
    ]
    assert all(len(line) <= 40 for line in _printed(40, rows))
    assert _printed(40, rows)[1].split()[1].startswith("…")
    assert _printed(40, rows)[1].split()[1].endswith("/conv1-Conv2d")


def test_long_texts_of_other_columns_are_cut_where_nothing_else_does() -> None:
    rows = [["_scaled_dot_product_flash_attention_for_cpu-op45", "Default/network-Net/1-Attention", "1.24620", ""]]
    (line,) = _printed(40, rows)[1:]
    assert len(line) == 40
    assert re.fullmatch(r"…\S+_cpu-op45  …\S+-Attention +1\.24620", line)


def test_markup_in_names_is_printed_as_it_is() -> None:
    assert _printed(None, [["a[bold]b", "[red]", ":smile:", ""]])[1] == "a[bold]b  [red]  :smile:"


@pytest.fixture
def device_dump(tmp_path: Path) -> Path:
    """Two steps of a model on one device, with an overflow, and a single operator on another."""
    root = tmp_path / "dump"
    for step in range(2):
        place = root / TIME / "0" / "resnet50" / "11" / str(step)
        add_dump_file(
            place,
            f"Conv2D.net_conv1.1.5.{STAMP + 10 * step}",
            "net/conv1",
            inputs=(tensor("input", 0, np.ones((1, 1, 2, 2, 16), "float16"), layout="NC1HWC0"),),
            outputs=(tensor("output", 0, np.array([1, np.inf, 3], "float32")),),
        )
        add_dump_file(place, f"Opdebug.Node_OpDebug.59.5.{STAMP + 10 * step + 1}", "Node_OpDebug")
    add_dump_file(root / TIME / "1", f"net_fc.MatMulV2.3.5.{STAMP}", "net/fc")
    return root


def test_it_prints_runs_steps_and_operators(device_dump: Path) -> None:
    shown = opdump("show", str(device_dump), cwd=device_dump)
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["rank", "run", "started", "framework"] in lines
    assert ["0", "1", "2024-11-20", "12:00:00", "Ascend"] in lines
    assert ["rank", "step", "graphs", "operators", "tensors"] in lines
    assert ["0", "1", "resnet50/11", "2", "2"] in lines
    assert ["1", "0", "0", "1", "1"] in lines
    assert [
        "0",
        "0",
        "11",
        "conv1",
        "net",
        "forward",
        "output.0",
        "float32",
        "(3)",
        "ND",
        "inf",
        "1",
        "inf",
        "inf",
        "1",
    ] in lines
    assert ["0", "0", "11", "Node_OpDebug", "forward"] in lines
    assert [
        "1",
        "0",
        "0",
        "fc",
        "net",
        "forward",
        "output.0",
        "float32",
        "(3)",
        "ND",
        "2",
        "0",
        "1",
        "2.23607",
        "0",
    ] in lines


def test_it_prints_the_tensors_and_the_file_of_an_operator(device_dump: Path) -> None:
    shown = opdump("show", str(device_dump), "--op", "conv1", "--step", "1", cwd=device_dump)
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["input.0", "float16", "(1,1,2,2,16)", "NC1HWC0", "1", "1", "1", "8", "0"] in lines
    path = device_dump / TIME / "0" / "resnet50" / "11" / "1" / f"Conv2D.net_conv1.1.5.{STAMP + 10}"
    assert [line for line in lines if line and line[0].startswith("/")] == [[str(path)]]


def test_it_prints_where_the_file_of_an_overflow_is(device_dump: Path) -> None:
    shown = opdump("show", str(device_dump), "--op", "Node_OpDebug", "--step", "0", cwd=device_dump)
    assert shown.returncode == 0
    assert f"file='{TIME}/0/resnet50/11/0/Opdebug.Node_OpDebug.59.5.{STAMP + 1}'" in shown.stdout


def test_one_directory_of_the_dump_can_be_shown(device_dump: Path) -> None:
    shown = opdump("show", str(device_dump / TIME / "0" / "resnet50" / "11" / "1"), "--json", cwd=device_dump)
    assert shown.returncode == 0
    value = json.loads(shown.stdout)
    assert (value["ranks"], value["steps"], value["graphs"]) == ([0], [1], [11])
    (run,) = value["runs"]
    assert run["device_target"] == "Ascend"
    conv, overflow = value["operators"]
    assert (conv["op_type"], conv["op_name"], conv["task_id"], conv["stream_id"]) == ("Conv2D", "net/conv1", 1, 5)
    first, second = conv["tensors"]
    assert (first["dtype"], first["shape"], first["format"]) == ("float16", [1, 1, 2, 2, 16], "NC1HWC0")
    assert second["statistics"]["max"] == "inf"
    assert second["file"].endswith(f"Conv2D.net_conv1.1.5.{STAMP + 10}")
    assert overflow["tensors"] == []


def test_a_tensor_that_cannot_be_decoded_ends_with_1_after_the_others(device_dump: Path) -> None:
    whole = np.ones(4, "float32")
    add_dump_file(
        device_dump / TIME / "1",
        f"Relu.r.3.5.{STAMP}",
        "r",
        outputs=(tensor("output", 0, whole, short=3), tensor("output", 1, whole)),
    )
    shown = opdump("show", str(device_dump), "--op", "r", cwd=device_dump)
    assert shown.returncode == 1
    assert "output.0  float32  (4)    ND\n" in shown.stdout
    assert "output.1  float32  (4)    ND        1    1    1       2        0" in shown.stdout
    assert shown.stderr.startswith("opdump: problem: ")
    assert "output:0 holds 13 bytes" in shown.stderr


def test_a_zero_byte_file_ends_with_1_after_the_others(device_dump: Path) -> None:
    (device_dump / TIME / "1" / f"Relu.r.3.5.{STAMP}").touch()
    shown = opdump("show", str(device_dump), "--rank", "1", cwd=device_dump)
    assert shown.returncode == 1
    assert "fc " in shown.stdout
    assert "holds 0 bytes" in shown.stderr


def test_an_operator_that_does_not_exist_ends_with_1(device_dump: Path) -> None:
    shown = opdump("show", str(device_dump), "--op", "nothing", cwd=device_dump)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert "holds no operator 'nothing'" in shown.stderr


def test_a_directory_without_a_dump_says_what_either_layout_needs(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    shown = opdump("show", str(tmp_path), cwd=tmp_path)
    assert shown.returncode == 1
    assert "rank_0/" in shown.stderr
    assert "{device_id}" in shown.stderr


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


def test_damaged_notes_are_reported_and_files_looked_for(program: Program) -> None:
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


def test_graphs_of_other_programs_are_ignored(program: Program) -> None:
    _write_graphs(program.script)
    write_ge_graph(program.script, 3, [graph("ge_default_20260101000000_1", "IteratorV2")])
    (program.script / "ge_proto_00004_Build.txt").write_text('graph {\n  name: "ge_default_20260101000000_2"\n  op {')
    shown = opdump("show", str(program.dump), cwd=program.script)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert _line(shown.stdout) == FOUND


def test_a_damaged_graph_is_reported_and_the_others_serve(program: Program) -> None:
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


def test_graphs_without_an_iterator_are_reported(program: Program) -> None:
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
