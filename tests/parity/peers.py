"""Where the peers are and how they are run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
MINDSPORE = ROOT / ".venv-mindspore" / "bin" / "python"
MINDINSIGHT = ROOT / ".venv-mindinsight" / "bin" / "python"
MSPROBE = ROOT / ".venv-msprobe" / "bin" / "python"
TENSORFLOW = ROOT / ".venv-tensorflow" / "bin" / "python"
TENSORFLOW215 = ROOT / ".venv-tensorflow215" / "bin" / "python"
PROTOBUF4 = ROOT / ".venv-protobuf4" / "bin" / "python"


def msaccucmp() -> Path:
    """The script msaccucmp.py of mindstudio-probe. AssertionError where it is not there."""
    found = list(MSPROBE.parents[1].glob("lib/python3.*/site-packages/msprobe/msaccucmp/msaccucmp.py"))
    assert len(found) == 1, f"{MSPROBE} is missing or has no msaccucmp: run tests/parity/run, which sets it up"
    return found[0]


def run(python: Path, arguments: Sequence[str | Path], environment: Mapping[str, str]) -> str:
    """What the peer printed. A peer that is missing or that fails is an AssertionError, never a skip."""
    assert python.exists(), f"{python} is missing: run tests/parity/run, which sets it up"
    inherited = {key: os.environ[key] for key in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ}
    result = subprocess.run(
        [str(python), *map(str, arguments)],
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, f"{python} {' '.join(map(str, arguments))}\n{result.stdout}\n{result.stderr}"
    return result.stdout
