"""Programs that tests run under `opdump run`, and helpers to run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    """Run `python -m opdump ARGUMENTS` and return what it printed."""
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
