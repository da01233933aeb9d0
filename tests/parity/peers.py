"""The locations of the peers, and how to run them."""

from __future__ import annotations

import ast
import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
CHAPTERS = Path(__file__).parent / "programs"
MINDSPORE = ROOT / ".venv-mindspore" / "bin" / "python"
MINDINSIGHT = ROOT / ".venv-mindinsight" / "bin" / "python"
PROGRAMS = ROOT / ".venv-programs" / "bin" / "python"
MSPROBE = ROOT / ".venv-msprobe" / "bin" / "python"
JAX = ROOT / ".venv-jax" / "bin" / "python"
TENSORFLOW = ROOT / ".venv-tensorflow" / "bin" / "python"
TENSORFLOW215 = ROOT / ".venv-tensorflow215" / "bin" / "python"
PROTOBUF4 = ROOT / ".venv-protobuf4" / "bin" / "python"


def programs_of(chapter: str) -> list[str]:
    """The names of the programs in a chapter of tests/parity/programs: its public functions. Imports no package of theirs."""
    tree = ast.parse((CHAPTERS / f"{chapter}.py").read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def msaccucmp() -> Path:
    """The script msaccucmp.py of mindstudio-probe. Fails if it is missing."""
    found = list(MSPROBE.parents[1].glob("lib/python3.*/site-packages/msprobe/msaccucmp/msaccucmp.py"))
    assert len(found) == 1, f"{MSPROBE} is missing or has no msaccucmp: run tests/parity/run, which sets it up"
    return found[0]


@cache
def _scratch() -> Path:
    """The directory for files that peers write without a given path. It is removed after all tests."""
    place = Path(tempfile.mkdtemp(prefix="opdump-peers-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def run(python: Path, arguments: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """Run a peer and return its output. A missing or failing peer is an AssertionError, never a skip."""
    return completed(python, arguments, environment).stdout


def completed(
    python: Path, arguments: Sequence[str | Path], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a peer and return how it ended, with its output and messages. A missing or failing peer is an AssertionError, never a skip.

    It runs in a separate directory, which also receives its temporary files.
    """
    assert python.exists(), f"{python} is missing: run tests/parity/run, which sets it up"
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "LD_LIBRARY_PATH") if key in os.environ}
    place = tempfile.mkdtemp(dir=_scratch())
    result = subprocess.run(
        [str(python), *map(str, arguments)],
        env={**inherited, "TMPDIR": place, "OMP_NUM_THREADS": "1", **environment},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert result.returncode == 0, f"{python} {' '.join(map(str, arguments))}\n{result.stdout}\n{result.stderr}"
    return result
