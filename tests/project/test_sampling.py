"""`pytest --sampled` runs a fixed sample of the cases of sampled tests, and reports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
from hypothesis import given, settings, strategies

@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(9))
def test_of_many(number):
    pass

@pytest.mark.sampled(3, each="kind")
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", ["a", "b"])
def test_of_kinds(kind, part):
    pass

@pytest.mark.parametrize("number", range(2))
def test_of_few(number):
    pass

@pytest.mark.parametrize("number", range(2))
@settings(max_examples=40)
@given(strategies.integers())
def test_of_examples(number, generated):
    with open(f"examples{number}", "a") as file:
        file.write(".")

@pytest.mark.long
@pytest.mark.parametrize("number", range(2))
def test_of_hours(number):
    pass
"""
CONFTEST = """
from tests.conftest import pytest_addoption, pytest_configure
"""


def _run(folder: Path, *options: str) -> tuple[set[str], str]:
    """The names of the tests that passed, and everything that was printed."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    sampled\n    long\n")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options, "test_some.py"]
    done = subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(root), "PATH": ""}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [word for line in done.stdout.splitlines() if "PASSED" in line for word in line.split() if "::" in word]
    return {name.partition("::")[2] for name in passed}, done.stdout


def test_a_share_of_the_cases_runs_and_one_of_each_kind(tmp_path: Path) -> None:
    whole, told = _run(tmp_path)
    assert len(whole) == 9 + 6 + 2 + 2 + 2
    assert "sampled" not in told
    found, told = _run(tmp_path, "--sampled")
    assert found < whole
    assert [sum(name.startswith(test) for name in found) for test in ("test_of_many", "test_of_kinds")] == [3, 2]
    assert {name[len("test_of_kinds[")] for name in found if "kinds" in name} == {"a", "b"}
    assert {"test_of_few[0]", "test_of_few[1]"} <= found
    assert not any(name.startswith("test_of_hours") for name in found)
    assert "0 of 2: test_some.py::test_of_hours" in told
    assert "3 of 9: test_some.py::test_of_many" in told
    assert "2 of 6: test_some.py::test_of_kinds" in told


def test_several_processes_run_the_same_selection_and_report_it_once(tmp_path: Path) -> None:
    found, _ = _run(tmp_path, "--sampled")
    shared, told = _run(tmp_path, "--sampled", "-n", "2")
    assert shared == found
    assert told.count("3 of 9: test_some.py::test_of_many") == 1


@pytest.mark.parametrize(("options", "examples"), [((), 40), (("--sampled",), 10)])
def test_a_quarter_of_the_generated_examples_runs(tmp_path: Path, options: tuple[str, ...], examples: int) -> None:
    _run(tmp_path, *options)
    assert [len((tmp_path / f"examples{number}").read_text()) for number in range(2)] == [examples, examples]
