"""What a comparison of two frameworks reports besides its verdict: the table of pairs, and match.yaml."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.comparison.differences import find_layout

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from tests.comparison.networks import dump_onnx, dump_torch, network
from tests.comparison.test_across_frameworks import scaled_epsilon


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


def test_rows_tell_which_operators_give_a_value_together(benign: tuple[Path, Path]) -> None:
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
def test_what_was_written_changes_nothing_when_it_is_read(
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
