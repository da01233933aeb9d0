"""Runs the programs of `opdump replay --emit` without opdump, and checks the distances that they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_LINE = re.compile(r"output \d+ (?:recorded|now), (\w+): (\S+) from (float64|float32), its largest element is (\S+)")
_ROUNDINGS = 64


def check_scripts(scripts: Sequence[Path]) -> None:
    """Run programs in one process: each has to print that its outputs, recorded and new, are those of the wider type within rounding."""
    run = "import runpy, sys; [(print('#', each), runpy.run_path(each)) for each in sys.argv[1:]]"
    command = [sys.executable, "-c", run, *map(str, scripts)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert len(lines) >= 2 * len(scripts)
    for line in lines:
        found = _LINE.fullmatch(line)
        assert found is not None, line
        epsilon = 2**-8 if found[1] == "bfloat16" else 2**-23
        assert float(found[2]) <= _ROUNDINGS * epsilon * float(found[4]), done.stdout
