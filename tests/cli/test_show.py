"""`opdump show` on a dump from an adapter without a framework, so that these tests run without any framework."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.adapters.base import Settings
from opdump.index.writer import RunFacts, own_version
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.recorder import Recorder
from opdump.reports.table import Column, Printer
from tests.adapters.fake_adapter import FakeAdapter
from tests.cli.programs import opdump


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
    assert "--limit 0 all" in shown
    assert "limit" not in show(dump, "--limit", "0")


def test_a_dump_of_elements_alone_shows_statistics_of_its_files(tmp_path: Path) -> None:
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
def test_what_the_dump_does_not_hold_is_said_so(dump: Path, arguments: tuple[str, ...], said: str) -> None:
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
