"""What a comparison shows beyond its verdict: the table of pairs, the window, the files, several ranks, executors."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.metrics import METRICS
from tests.cli.programs import opdump as run_opdump
from tests.comparison.programs import dumped
from tests.comparison.test_compare_programs import PROGRAM


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two programs: GELU and its approximation."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("result")
    changed = PROGRAM.replace("F.gelu(x)", "F.gelu(x, approximate='tanh')")
    return dumped(folder, "before", PROGRAM), dumped(folder, "after", changed)


def test_each_pair_has_a_row_with_its_state(dumps: tuple[Path, Path]) -> None:
    result = opdump.compare(*dumps)
    gelu = next(pair for pair in result.pairs if pair.state == "introduced")
    assert gelu.b.op_type == "gelu"
    found, a, b = gelu.measured, gelu.outputs.a.numpy(), gelu.outputs.b.numpy()
    assert found.max_absolute == np.abs(a.astype(float) - b).max()
    assert found.relative_l2 == pytest.approx(np.linalg.norm(a.astype(float) - b) / np.linalg.norm(a))
    assert found.roundings == pytest.approx(float(found.relative_l2 or 0) * 2**23)
    assert found.out_of_tolerance == np.count_nonzero(~np.isclose(b, a, rtol=1.3e-6, atol=1e-5))
    states = [pair.state for pair in result.pairs]
    assert set(states[: states.index("introduced")]) == {"identical"}
    assert states.count("inherited") >= result.inherited > 5
    rows = result.rows()
    assert len(rows) == len(result.pairs)
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same columns"
    assert {row["matched_by"] for row in rows} <= {"name", "sequence", "data flow"}


def test_the_same_program_has_identical_pairs_alone(dumps: tuple[Path, Path]) -> None:
    result = opdump.compare(dumps[0], dumps[0])
    assert {pair.state for pair in result.pairs} == {"identical"}
    assert result.window == ()


def test_statistics_alone_have_rows_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    changed = PROGRAM.replace("F.gelu(x)", "F.gelu(x, approximate='tanh')")
    result = opdump.compare(
        dumped(tmp_path, "before", PROGRAM, "statistic"), dumped(tmp_path, "after", changed, "statistic")
    )
    distances = [pair.measured.by_statistics for pair in result.pairs]
    assert distances[0] == 0
    assert max(distances, key=lambda each: each or 0)
    assert all(pair.measured.relative_l2 is None for pair in result.pairs)


def test_the_window_shows_both_runs_around_the_divergence(dumps: tuple[Path, Path]) -> None:
    window = opdump.compare(*dumps).window
    assert [line.is_source for line in window] == [False] * 3 + [True] + [False] * 3
    assert window[3].cells()[0] == "!"
    assert window[2].cells()[-1] == "same bits"


def test_operators_that_one_run_has_are_marked_as_in_a_diff(tmp_path: Path, dumps: tuple[Path, Path]) -> None:
    extra = dumped(tmp_path, "extra", PROGRAM.replace("x = second(x)", "x = second(x * 1.01)"))
    marks = [line.cells()[0] for line in opdump.compare(dumps[0], extra).window]
    assert marks.count("!+") == 1
    assert [line.cells()[0] for line in opdump.compare(extra, dumps[0]).window].count("!-") == 1
    together = dumped(tmp_path, "together", PROGRAM.replace("F.gelu(x)", "F.silu(F.tanh(F.sigmoid(x)) + x.sin())"))
    window = opdump.compare(dumps[0], together).window
    marks = [line.cells()[0] for line in window]
    assert sum(line.is_source for line in window) >= 1
    assert marks.index("!-" if "!-" in marks else "-") < marks.index("!+")


def test_files_are_written_whole(tmp_path: Path, dumps: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(main, ["compare", *map(str, dumps), "-o", str(tmp_path / "out")])
    assert done.exit_code == 1, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("compare.json", "compare.csv", "compare.html", "compare.txt")
    }
    assert (tmp_path / "out" / "compare.txt").read_text() == done.output
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert found["verdict"] == "divergent"
    with (tmp_path / "out" / "compare.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [row["op_type"] for row in rows if row["state"] == "introduced"] == ["gelu", "gelu_backward"]
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "FIRST DIVERGENCE" in page
    assert "color-scheme" in page


def test_texts_of_programs_are_escaped_in_html(dumps: tuple[Path, Path]) -> None:
    html = opdump.compare(*dumps)._repr_html_()
    assert "<table>" in html
    assert "approximate: None in A, tanh in B" in html
    assert "<script" not in html


def test_metrics_of_packages_are_columns_and_broken_ones_are_named(
    dumps: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_a: Any, _b: Any) -> float:
        raise ArithmeticError("no such number")

    monkeypatch.setattr(METRICS, "added", lambda: {"largest": lambda a, b: b.max(), "broken": broken})
    result = opdump.compare(*dumps)
    assert result.missing_metrics == {"broken": "ArithmeticError: no such number"}
    assert result.rows()[0]["largest"] == pytest.approx(result.pairs[0].outputs.b.numpy().max())
    assert result.to_json()["window"][0]["metrics"].keys() == {"largest"}
    assert result.to_json()["missing_metrics"] == result.missing_metrics


def test_any_executor_gives_the_same(dumps: tuple[Path, Path]) -> None:
    with ThreadPoolExecutor(2) as executor:
        given = opdump.compare(*dumps, executor=executor)
    assert given.to_json() == opdump.compare(*dumps).to_json()


@pytest.fixture(scope="module")
def ranks(dumps: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two dumps of ranks 0 and 1, of which the second differs."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {"RANK": "1", "WORLD_SIZE": "2"}
    for name, second in (("before", dumps[0]), ("after", dumps[1])):
        shutil.copytree(dumps[0], folder / name)
        done = run_opdump("run", "--full", "--path", str(folder / name), f"{second}.py", cwd=Path.cwd(), **environment)
        assert done.returncode == 0, done.stderr
    return folder / "before", folder / "after"


def test_every_rank_is_compared_and_the_suspect_tells_its_own(ranks: tuple[Path, Path]) -> None:
    result = opdump.compare(*ranks)
    assert list(result.ranks) == [0, 1]
    assert result.to_json()["introduced"][0]["b"]["rank"] == 1
    assert "on rank 1" in result.headline
    assert opdump.compare(*ranks, rank=0).verdict == "identical"


def test_jobs_give_the_same_for_ranks(ranks: tuple[Path, Path]) -> None:
    runner = CliRunner()
    plain = runner.invoke(main, ["compare", *map(str, ranks), "--json"])
    shared = runner.invoke(main, ["compare", *map(str, ranks), "--json", "--jobs", "2"])
    assert (shared.exit_code, shared.stdout) == (plain.exit_code, plain.stdout)


def test_an_interrupt_ends_with_a_line_and_leaves_no_part_of_a_file(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    program = f"""
import opdump.comparison.compare as module
from opdump.commands import main
def wait(*_, **__):
    print("begun", flush=True)
    import time; time.sleep(60)
module.judge = wait
main(["compare", {str(dumps[0])!r}, {str(dumps[1])!r}, "-o", {str(tmp_path / "out")!r}])
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert said == "opdump: interrupted: no verdict was reached, and nothing was written\n"
    assert not (tmp_path / "out").exists()
