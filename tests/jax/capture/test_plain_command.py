"""`OPDUMP_START=1 python train.py` waits for the import of JAX, and captures the processes that a program starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOOK = 'import os; (os.environ.get("OPDUMP_START") or os.environ.get("OPDUMP_FAMILY")) and __import__("opdump.startup").startup.begin()\n'
"""The file that an installation adds as `opdump_start.pth`."""
TRAIN = """
import subprocess, sys
import jax, jax.numpy as jnp

def step(x):
    return jnp.sin(x) * 2

print(float(jax.jit(step)(jnp.ones(3)).sum()), flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, "train.py"], check=True)
"""


def run(place: Path, *command: str, **environ: str) -> tuple[str, dict[str, Any]]:
    """What the program prints, and the report of opdump."""
    (place / "train.py").write_text(TRAIN)
    (place / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(place), *(each for each in sys.path if each)])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(done.stderr.splitlines()[-1])


@pytest.mark.parametrize("imports", ["import jax", "import flax_like"])
def test_the_plain_command_waits_for_jax(tmp_path: Path, imports: str) -> None:
    (tmp_path / "flax_like.py").write_text("import jax\n")
    (tmp_path / "first.py").write_text(f"{imports}\n{TRAIN}")
    printed, report = run(tmp_path, "first.py", OPDUMP_START="--json --path dump")
    assert printed == "5.048825740814209\n"
    assert report["captured"] == 6


@pytest.mark.parametrize("variable", [True, False])
def test_processes_that_the_program_starts_are_captured(tmp_path: Path, variable: bool) -> None:
    if variable:
        printed, report = run(tmp_path, "train.py", "child", OPDUMP_START="--json --path dump")
    else:
        printed, report = run(tmp_path, "-m", "opdump", "run", "--json", "--path", "dump", "train.py", "child")
    assert printed == "5.048825740814209\n" * 2
    (child,) = report["children"]
    assert (child["end"], child["captured"], report["captured"]) == ("ended", 6, 6)


def test_forked_processes_are_counted_and_reported(tmp_path: Path) -> None:
    fork = """
if (process := os.fork()) == 0:
    os._exit(0)
os.waitpid(process, 0)
"""
    (tmp_path / "forks.py").write_text(f"import os\n{TRAIN}{fork}")
    _, report = run(tmp_path, "forks.py", OPDUMP_START="--json --path dump")
    assert report["captured"] == 6
    assert report["warnings"] == [
        "1 child process not captured: they were forked, and JAX does not run in forked processes"
    ]
