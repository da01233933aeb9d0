"""Programs that tests run under `opdump run`, and helpers to run them."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.warm import TRAINING_MODULES, Run, Warm

TRAIN = """\
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(5, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.6f}")
print("arguments:", sys.argv[1:])
"""


def write_config(folder: Path, **settings: Any) -> Path:
    """A data_dump.json in `folder` that dumps everything into `folder/dump`."""
    common = {
        "dump_mode": 0,
        "path": str(folder / "dump"),
        "net_name": "Net",
        "iteration": "all",
        "saved_data": "full",
        "input_output": 0,
        "kernels": [],
        "support_device": [0],
        **settings,
    }
    path = folder / "data_dump.json"
    path.write_text(json.dumps({"common_dump_settings": common, "e2e_dump_settings": {"enable": True}}))
    return path


def opdump(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m opdump ARGUMENTS` and return what it printed. `opdump run` is forked from a process that has imported
    PyTorch; the tests of how a process starts use `opdump_anew`.
    """
    whole = {**os.environ, **environ}
    if arguments[:1] != ("run",) or _read_at_import(whole) != _read_at_import(_warm().environ):
        return opdump_anew(*arguments, cwd=cwd, **environ)
    cleared = dict.fromkeys(_warm().environ)
    ended = _warm().run(Run(arguments=arguments, environ={**cleared, **whole}, cwd=cwd))
    return subprocess.CompletedProcess(arguments, ended.codes[0], ended.out[0], ended.err[0])


def opdump_anew(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own from its start."""
    return subprocess.run(
        [sys.executable, "-m", "opdump", *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run plain Python, for comparison."""
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)


@cache
def _warm() -> Warm:
    folder = tempfile.TemporaryDirectory(prefix="opdump-tests-")
    warm = Warm(Path(folder.name), modules=TRAINING_MODULES)
    atexit.register(folder.cleanup)
    atexit.register(warm.close)
    return warm


def _read_at_import(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python and PyTorch read before a program begins: a fork would not see another value."""
    return {name: text for name, text in environ.items() if name.startswith(("PYTHON", "TORCH", "OMP_", "MKL_", "LD_"))}
