"""examples/lenet in four frameworks, under one data_dump.json: the same layout and the same numbers, and comparisons find no difference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from tests.parity import peers

EXAMPLE: Final = peers.ROOT / "examples" / "lenet"
PYTHONS: Final = {
    "torch": Path(sys.executable),
    "jax": peers.JAX,
    "tensorflow": peers.TENSORFLOW,
    "mindspore": peers.MINDSPORE,
}
PAIRS: Final = [
    ("torch", "jax"),
    ("torch", "tensorflow"),
    ("torch", "mindspore"),
    ("jax", "torch"),
    ("jax", "mindspore"),
    ("tensorflow", "jax"),
    ("tensorflow", "torch"),
    ("tensorflow", "mindspore"),
    ("mindspore", "torch"),
    ("mindspore", "tensorflow"),
]
PLANTED: Final = {
    "jax, another activation": (
        "jax",
        'jax.nn.relu(dense("fc2"',
        'jax.nn.leaky_relu(dense("fc2"',
        ("torch", "mindspore"),
    ),
    "jax, another rate": ("jax", "lenet_data.LEARNING_RATE", "0.06", ("torch", "mindspore")),
    "jax, another momentum": ("jax", "momentum=lenet_data.MOMENTUM", "momentum=0.8", ("torch", "mindspore")),
    "tensorflow, another pooling": (
        "tensorflow",
        "layers.MaxPooling2D(2)",
        "layers.AveragePooling2D(2)",
        ("torch", "jax"),
    ),
    "mindspore, another loss": ("mindspore", 'reduction="mean"', 'reduction="sum"', ("torch", "tensorflow")),
}
"""The program, the text to replace, its replacement, and the dumps to compare with."""


def dumped(framework: str, dump: Path, script: Path) -> str:
    """Run one of the programs in the environment of its framework, and return its output."""
    environment = {
        "PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}:{script.parent}:{EXAMPLE}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
    }
    arguments: list[str | Path] = ["-m", "opdump", "run", "-c", EXAMPLE / "data_dump.json", "--path", dump, script]
    return peers.run(PYTHONS[framework], arguments, environment)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lenet")
    losses = {each: dumped(each, folder / each, EXAMPLE / f"lenet_{each}.py").split() for each in PYTHONS}
    assert [len(each) for each in losses.values()] == [4, 4, 4, 4]
    assert {each[0] for each in losses.values()} == {"loss"}
    for each in losses.values():
        assert [float(number) for number in each[1::2]] == pytest.approx([2.316279, 2.308383], rel=1e-5)
    return folder


def held_together(folder: Path) -> tuple[int, list[str]]:
    """The exit code of the script that compares the trees, and its output lines."""
    command = [sys.executable, str(EXAMPLE / "hold_together.py"), str(folder)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_have_one_layout_and_the_same_numbers(trees: Path) -> None:
    code, lines = held_together(trees)
    print("\n".join(lines))
    assert (code, lines[-1]) == (0, "all agree to 0.0001")
    # Five layers: outputs in two steps, both gradients in two steps, both updated parameters once.
    assert len(lines) == 1 + 5 * (2 + 4 + 2) + 1


@pytest.mark.parametrize("framework", PYTHONS)
def test_show_reads_each(trees: Path, framework: str) -> None:
    done = CliRunner().invoke(main, ["show", str(trees / framework), "--limit", "0"])
    assert done.exit_code == 0, done.output
    dump = opdump.open(trees / framework)
    assert (dump.ranks, dump.steps, dump.problems) == ((0,), (0, 1), ())
    assert [run.framework for run in dump.runs] == [framework]
    assert f"lenet_{framework}.py:" in done.stdout
    for layer in ("conv1", "conv2", "fc1", "fc2", "fc3"):
        assert layer in done.stdout
    assert all("l2norm" in record.statistics for record in dump.tensors() if record.dtype == "float32")


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_comparison_of_two_finds_no_difference(trees: Path, one: str, other: str) -> None:
    result = opdump.compare(trees / one, trees / other)
    print(result.matched, "matched,", result.unmatched, "without a counterpart;", *result.notes, sep="\n  ")
    assert (result.verdict, list(result.introduced)) == ("benign", [])
    assert result.matched > 80


def test_a_different_update_is_reported(trees: Path, tmp_path: Path) -> None:
    changed = planted(tmp_path, "jax, another rate")
    for framework in PYTHONS:
        (tmp_path / framework).symlink_to(changed if framework == "jax" else trees / framework)
    code, lines = held_together(tmp_path)
    assert code == 1
    told = lines[lines.index("not as in the others:") + 1 :]
    assert "jax: step 1, conv1 weight updated" in told
    assert all(each.startswith("jax: step 1, ") for each in told)


@pytest.mark.parametrize("what", PLANTED)
def test_a_difference_is_found_and_placed(trees: Path, tmp_path: Path, what: str) -> None:
    dump = planted(tmp_path, what)
    for other in PLANTED[what][3]:
        result = opdump.compare(trees / other, dump)
        print(other, result.headline)
        assert result.verdict == "divergent"
        found = result.introduced[0]
        assert found.b is not None
        # MindSpore's own cells call the loss, so no line of the program leads to it.
        assert found.b.line.startswith("loss.py:" if "loss" in what else "changed.py:")


@pytest.mark.long
def test_twelve_steps_that_differ_by_rounding_are_benign_and_one_changed_rate_is_found(tmp_path: Path) -> None:
    data = (EXAMPLE / "lenet_data.py").read_text()
    assert "STEPS, BATCH = 2, 16" in data
    scripts = tmp_path / "scripts"  # a folder "jax" next to a script would be imported
    scripts.mkdir()
    (scripts / "lenet_data.py").write_text(data.replace("STEPS, BATCH = 2, 16", "STEPS, BATCH = 12, 16"))
    for framework in PYTHONS:
        script = scripts / f"lenet_{framework}.py"
        script.write_text((EXAMPLE / script.name).read_text())
        dumped(framework, tmp_path / framework, script)
    for other in ("jax", "tensorflow", "mindspore"):
        result = opdump.compare(tmp_path / "torch", tmp_path / other)
        print(other, result.headline)
        assert (result.verdict, list(result.steps)) == ("benign", list(range(12)))

    script = scripts / "changed.py"
    rate = "lambda n: jnp.where(n == 6, 1.01, 1) * lenet_data.LEARNING_RATE"
    script.write_text((scripts / "lenet_jax.py").read_text().replace("lenet_data.LEARNING_RATE", rate))
    dumped("jax", tmp_path / "changed", script)
    (first, *_) = opdump.compare(tmp_path / "torch", tmp_path / "changed").introduced
    assert first.b is not None
    assert (first.b.step, first.b.line.partition(":")[0]) == (6, "changed.py")


def planted(folder: Path, what: str) -> Path:
    """The dump of a program with a change."""
    framework, old, new, _ = PLANTED[what]
    script = (EXAMPLE / f"lenet_{framework}.py").read_text()
    assert old in script
    (folder / "changed.py").write_text(script.replace(old, new))
    dumped(framework, folder / "changed", folder / "changed.py")
    return folder / "changed"
