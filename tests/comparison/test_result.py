"""What a comparison shows beyond its verdict: the table of pairs, the window, the files, several ranks, executors."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.comparison.differences import find_layout
from opdump.comparison.pairs import Outputs, units
from opdump.errors import ConfigError
from opdump.metrics import METRICS
from opdump.records import OpRecord, TensorRecord
from tests.cli.programs import opdump as run_opdump
from tests.comparison.networks import dump_onnx, dump_torch, network
from tests.comparison.programs import dumped
from tests.comparison.test_across_frameworks import scaled_epsilon
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


def test_every_rank_is_compared_and_the_suspect_names_its_rank(ranks: tuple[Path, Path]) -> None:
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


MATCHED = """
import torch
from torch.nn import functional as F

torch.manual_seed(0)
data = torch.randn(4, 6)
left, right = data * 2, data * 3
both = F.gelu(left) + right
for _ in range(2):
    both = both.cos()
"""


@pytest.fixture(scope="module")
def matched_dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("matches")
    changed = MATCHED.replace("F.gelu(left)", "F.silu(left)")
    return dumped(folder, "before", MATCHED), dumped(folder, "after", changed)


def compare(matched_dumps: tuple[Path, Path], *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, (*matched_dumps, *arguments))])


def test_file_says_which_operator_is_which(matched_dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    assert compare(matched_dumps, "--save-match", file).exit_code == 1
    found = yaml.safe_load(file.read_text())
    assert (found["a"], found["b"]) == tuple(map(str, matched_dumps))
    (step,) = found["steps"]
    assert (step["rank"], step["step"]) == (0, 0)
    assert {pair["kind"] for pair in step["pairs"]} <= {"name", "sequence", "data flow", "memory", "likeness"}
    assert all(0 <= pair["score"] <= 1 for pair in step["pairs"])
    (gelu,), (silu,) = step["unmatched"]["a"], step["unmatched"]["b"]
    assert ("gelu" in gelu, "silu" in silu) == (True, True)
    (cosine, again) = (pair for pair in step["pairs"] if "cos" in pair["a"])
    assert again["a"] != cosine["a"]


def test_what_was_written_changes_nothing_when_it_is_read(matched_dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    first = opdump.compare(*matched_dumps)
    first.save_matches(file)
    second = opdump.compare(*matched_dumps, match=file)
    assert second.to_json() == first.to_json()
    assert {pair.kind for step in second.matches for pair in step.pairs} == {"by hand"}


def test_pairs_by_hand_override(matched_dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    names = [[op.op_name for op in opdump.open(dump).ops() if op.op_type == "mul"] for dump in matched_dumps]
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: {names[0][0]}, b: {names[1][1]}}}\n")
    (step,) = opdump.compare(*matched_dumps, match=file).matches
    (pair,) = (pair for pair in step.pairs if pair.a == names[0][0])
    assert (pair.b, pair.kind) == (names[1][1], "by hand")
    assert all(other.kind != "by hand" for other in step.pairs if other is not pair)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("steps:\n- step: 0\n  pairs:\n  - {a: Default/mull-op1, b: x}", 4, "A has no operator 'Default/mull-op1'"),
        ("steps:\n- step: 0\n  pairs:\n  - {a: Default/nothing}", 4, "expected the name of an operator"),
        ("steps:\n- step: 0\n  pears: []", 3, "unknown key 'pears'; known are rank, step"),
        ("steps:\n- step: one", 2, "expected step and rank as numbers"),
        ("steps: 3", 1, "expected a list"),
        ("- step", 1, "expected keys a, b, steps"),
        ("steps:\n- step: 0\n  ? [pairs]\n  : []", 3, "unknown key that is not a scalar"),
        ("steps:\n- step: 0\n  pairs:\n  - {a: &again [*again], b: x}", 4, "expected the name of an operator"),
        ("steps:\n- step: 9\n  pairs:\n  - {a: x, b: x}", 4, "the dumps do not both have rank 0, step 9"),
        ("steps:\n- step: 0\n  step of b: 9\n  pairs:\n  - {a: x, b: x}", 5, "rank 0, step 0, of B 9"),
        ("steps:\n- rank: 3\n  step: 0\n  pairs:\n  - {a: x, b: x}", 5, "the dumps do not both have rank 3"),
        ("steps: [", 1, "is not valid YAML"),
    ],
)
def test_mistakes_are_reported_with_their_line(
    matched_dumps: tuple[Path, Path], tmp_path: Path, text: str, line: int, why: str
) -> None:
    file = tmp_path / "match.yaml"
    file.write_text(text)
    done = compare(matched_dumps, "--match", file)
    assert done.exit_code == 2
    assert why in done.stderr
    assert f"{file}:{line}:" in done.stderr or why == "is not valid YAML"


def test_nearest_names_are_reported(matched_dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    name = next(op.op_name for op in opdump.open(matched_dumps[0]).ops() if op.op_type == "gelu")
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: {name}, b: {name}}}\n")
    with pytest.raises(ConfigError, match=r"B has no operator .* the nearest are Default/"):
        opdump.compare(*matched_dumps, match=file)


def test_operator_in_two_pairs_is_reported(matched_dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    one, other = (op.op_name for op in opdump.open(matched_dumps[0]).ops() if op.op_type == "mul")
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: {one}, b: {one}}}\n  - {{a: {other}, b: {one}}}\n")
    with pytest.raises(ConfigError, match=f":5: {one} is already in another pair"):
        opdump.compare(*matched_dumps, match=file)


def test_missing_file_is_reported(matched_dumps: tuple[Path, Path], tmp_path: Path) -> None:
    done = compare(matched_dumps, "--match", tmp_path / "none.yaml")
    assert done.exit_code == 2
    assert "none.yaml: cannot be read: No such file" in done.stderr


pytest.importorskip("torch")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def benign(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("benign")
    model, given = network("resnet")
    return dump_torch(model, given, folder / "torch"), dump_onnx(model, given, folder / "onnx", "folded")


@pytest.fixture(scope="module")
def divergent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("divergent")
    model, given = network("resnet")
    original = dump_torch(model, given, folder / "torch")
    scaled_epsilon(model)
    return original, dump_onnx(model, given, folder / "onnx", "folded")


def test_rows_list_the_operators_that_make_a_value_together(benign: tuple[Path, Path]) -> None:
    rows = opdump.compare(*benign).rows()
    (first,) = (row for row in rows if row["order_b"] == min(each["order_b"] for each in rows))
    assert (first["op_type"], first["matched_by"], first["match_score"], first["with_b"]) == ("Conv", "value", 1.0, [])
    assert [name.rsplit("/")[-1].split("-")[0] for name in (*first["with_a"], first["name_a"])] == [
        "convolution",
        "native_batch_norm",
    ]
    (last,) = (row for row in rows if row["op_type"] == "Gemm")
    assert (last["with_a"], last["with_b"]) == ([], ["node_view"])
    assert {row["state"] for row in rows} <= {"noise", "identical"}
    assert all(row["roundings"] < 100 and row["cosine"] > 1 - 1e-9 for row in rows)


def test_rows_in_the_other_order_are_the_same_pairs(benign: tuple[Path, Path]) -> None:
    one, other = (opdump.compare(*dumps).rows() for dumps in (benign, benign[::-1]))
    assert {(row["name_a"], row["name_b"], *row["with_a"]) for row in one} == {
        (row["name_b"], row["name_a"], *row["with_b"]) for row in other
    }


def test_files_and_window_show_where_the_difference_began(divergent: tuple[Path, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["compare", *map(str, divergent), "-o", str(tmp_path), "--wide"])
    assert done.exit_code == 1
    with (tmp_path / "compare.csv").open() as file:
        rows = list(csv.DictReader(file))
    introduced = [row for row in rows if row["state"] == "introduced"]
    assert [(row["op_type"], "layers-Sequential/1-Block" in row["name_a"]) for row in introduced] == [("Conv", True)]
    place = rows.index(introduced[0])
    assert {row["state"] for row in rows[:place]} <= {"noise", "identical"}
    assert rows[-1]["state"] == "inherited"
    result = opdump.compare(*divergent)
    assert result.inherited == sum(row["state"] == "inherited" for row in rows)
    (source,) = (line for line in result.window if line.is_source)
    assert source.b is not None
    assert source.b.op_name == introduced[0]["name_b"]
    assert source.worst is not None
    assert source.worst.roundings == pytest.approx(float(introduced[0]["roundings"]))


@pytest.mark.parametrize("name", ["benign", "divergent"])
@pytest.mark.parametrize("order", [1, -1])
def test_a_match_file_of_two_frameworks_changes_nothing_when_it_is_read(
    name: str, order: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dumps = request.getfixturevalue(name)[::order]
    file = tmp_path / "match.yaml"
    first = opdump.compare(*dumps)
    first.save_matches(file)
    second = opdump.compare(*dumps, match=file)
    assert second.to_json() == first.to_json()
    assert {pair.kind for step in second.matches for pair in step.pairs} == {"by hand"}
    (step,) = yaml.safe_load(file.read_text())["steps"]
    assert {pair["kind"] for pair in step["pairs"]} == {"value"}
    assert {type(pair["ab"[order < 0]]) for pair in step["pairs"]} == {str, list}


def test_pairs_by_hand_override_what_values_say(benign: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    mine = next(op.op_name for op in opdump.open(benign[0]).ops() if op.op_type == "relu")
    wrong = next(op.op_name for op in opdump.open(benign[1]).ops() if op.op_type == "Conv")
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: [{mine}], b: [{wrong}]}}\n")
    result = opdump.compare(*benign, match=file)
    rows = result.rows()
    (row,) = (row for row in rows if row["name_a"] == mine)
    assert (row["name_b"], row["matched_by"], row["state"]) == (wrong, "by hand", "introduced")
    assert result.verdict == "divergent"
    assert {each["matched_by"] for each in rows if each is not row} == {"value"}


def test_layouts_are_turned_for_the_other_order() -> None:
    one = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    other = one.transpose(0, 2, 3, 1).copy()
    found = find_layout(one, other, within=0.0)
    assert found is not None
    assert (found[0].apply(other) == one).all()
    assert (found[0].turned(other.shape).apply(one) == other).all()


def _pairs(rank: int, step: int, count: int, size: int = 3) -> list[Outputs]:
    ops = [OpRecord("Add", f"Default/add-op{number}", number, rank_id=rank, step=step) for number in range(count)]
    records = [TensorRecord(op, "output", 0, "float32", (size,)) for op in ops]
    return [Outputs(record, record) for record in records]


def _places(unit: Sequence[Outputs]) -> set[tuple[int, int]]:
    return {(pair.b.op.rank_id, pair.b.op.step) for pair in unit}


def test_a_unit_is_a_range_of_one_step_of_one_rank() -> None:
    pairs = [*_pairs(0, 0, 700), *_pairs(0, 1, 3), *_pairs(1, 0, 5), *_pairs(1, 1, 2)]
    cut = list(units(pairs))
    assert list(chain.from_iterable(cut)) == pairs
    assert [_places(unit) for unit in cut] == [{(0, 0)}, {(0, 0)}, {(0, 1)}, {(1, 0)}, {(1, 1)}]
    assert [len(unit) for unit in cut[2:]] == [3, 5, 2]


def test_few_large_tensors_are_a_unit() -> None:
    assert [len(unit) for unit in units(_pairs(0, 0, 5, size=1 << 25))] == [2, 2, 1]


TRAINING = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(8, 4)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        if step == 2:
            loss = loss * 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three steps; in the last one the second program computes a different loss."""
    folder = tmp_path_factory.mktemp("trainings")
    return dumped(folder, "before", TRAINING), dumped(folder, "after", TRAINING.replace("loss * 1", "loss * 1.01"))


class Watched(ThreadPoolExecutor):
    """An executor that keeps the arguments of its work."""

    def __init__(self) -> None:
        super().__init__(2)
        self.given: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given += args
        return super().submit(fn, *args, **kwargs)


def test_an_executor_is_given_the_steps_one_by_one_and_gives_what_one_process_does(
    trainings: tuple[Path, Path],
) -> None:
    with Watched() as executor:
        shared = opdump.compare(*trainings, executor=executor)
    assert [_places(unit) for unit in executor.given] == [{(0, 0)}, {(0, 1)}, {(0, 2)}]
    alone = opdump.compare(*trainings)
    assert shared.to_json() == alone.to_json()
    np.testing.assert_equal(shared.rows(), alone.rows())
    assert (alone.verdict, alone.to_json()["introduced"][0]["b"]["step"]) == ("divergent", 2)


def test_jobs_give_the_same_for_the_steps_of_one_rank(trainings: tuple[Path, Path], tmp_path: Path) -> None:
    runner = CliRunner()
    told = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        done = runner.invoke(main, ["compare", *map(str, trainings), "--json", "--jobs", jobs, "-o", str(out)])
        told.append((done.exit_code, done.output, (out / "compare.csv").read_text()))
    assert told[0][0] == 1
    assert told[0] == told[1]
