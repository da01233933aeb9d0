"""match.yaml: written by a comparison, edited by a person, read by the next comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.errors import ConfigError
from tests.comparison.programs import dumped

PROGRAM = """
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
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("matches")
    changed = PROGRAM.replace("F.gelu(left)", "F.silu(left)")
    return dumped(folder, "before", PROGRAM), dumped(folder, "after", changed)


def compare(dumps: tuple[Path, Path], *arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, (*dumps, *arguments))])


def test_file_says_which_operator_is_which(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    assert compare(dumps, "--save-match", file).exit_code == 1
    found = yaml.safe_load(file.read_text())
    assert (found["a"], found["b"]) == tuple(map(str, dumps))
    (step,) = found["steps"]
    assert (step["rank"], step["step"]) == (0, 0)
    assert {pair["kind"] for pair in step["pairs"]} <= {"name", "sequence", "data flow", "memory", "likeness"}
    assert all(0 <= pair["score"] <= 1 for pair in step["pairs"])
    (gelu,), (silu,) = step["unmatched"]["a"], step["unmatched"]["b"]
    assert ("gelu" in gelu, "silu" in silu) == (True, True)
    (cosine, again) = (pair for pair in step["pairs"] if "cos" in pair["a"])
    assert again["a"] != cosine["a"]


def test_what_was_written_changes_nothing_when_it_is_read(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    first = opdump.compare(*dumps)
    first.save_matches(file)
    second = opdump.compare(*dumps, match=file)
    assert second.to_json() == first.to_json()
    assert {pair.kind for step in second.matches for pair in step.pairs} == {"by hand"}


def test_pairs_by_hand_override(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    names = [[op.op_name for op in opdump.open(dump).ops() if op.op_type == "mul"] for dump in dumps]
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: {names[0][0]}, b: {names[1][1]}}}\n")
    (step,) = opdump.compare(*dumps, match=file).matches
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
def test_mistakes_are_told_with_their_line(
    dumps: tuple[Path, Path], tmp_path: Path, text: str, line: int, why: str
) -> None:
    file = tmp_path / "match.yaml"
    file.write_text(text)
    done = compare(dumps, "--match", file)
    assert done.exit_code == 2
    assert why in done.stderr
    assert f"{file}:{line}:" in done.stderr or why == "is not valid YAML"


def test_nearest_names_are_told(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    name = next(op.op_name for op in opdump.open(dumps[0]).ops() if op.op_type == "gelu")
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: {name}, b: {name}}}\n")
    with pytest.raises(ConfigError, match=r"B has no operator .* the nearest are Default/"):
        opdump.compare(*dumps, match=file)


def test_operator_in_two_pairs_is_told(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "match.yaml"
    one, other = (op.op_name for op in opdump.open(dumps[0]).ops() if op.op_type == "mul")
    file.write_text(f"steps:\n- step: 0\n  pairs:\n  - {{a: {one}, b: {one}}}\n  - {{a: {other}, b: {one}}}\n")
    with pytest.raises(ConfigError, match=f":5: {one} is already in another pair"):
        opdump.compare(*dumps, match=file)


def test_missing_file_is_told(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    done = compare(dumps, "--match", tmp_path / "none.yaml")
    assert done.exit_code == 2
    assert "none.yaml: cannot be read: No such file" in done.stderr
