"""The end state of a program without capture: its printed numbers, and in PyTorch every parameter, buffer, gradient and optimizer state."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?$")


def run_end(task: dict[str, Any]) -> str:
    """Run a script, write its end state as an npz, and return the path. Without PyTorch, the npz is empty."""
    from benchmarks.diagnosis.worker import apply

    apply(task["settings"])
    sys.path.insert(0, str(Path(task["script"]).parent))
    names = runpy.run_path(task["script"], run_name="__main__")
    np.savez(task["out"], **(_tensors_of(names) if "torch" in sys.modules else {}))
    return str(task["out"])


def _tensors_of(names: dict[str, Any]) -> dict[str, Any]:
    import torch

    kept: dict[str, Any] = {}
    for name, value in names.items():
        if isinstance(value, torch.nn.Module):
            kept.update({f"{name}.{key}": item for key, item in value.state_dict().items()})
            kept.update({f"{name}.{key}.grad": item.grad for key, item in value.named_parameters()})
        elif isinstance(value, torch.optim.Optimizer):
            for number, state in enumerate(value.state.values()):
                kept.update({f"{name}.{number}.{key}": item for key, item in state.items()})
        elif isinstance(value, torch.Tensor):
            kept[name] = value
        elif isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            kept.update({f"{name}.{number}": item for number, item in enumerate(items)})
    return {name: item.detach().float().numpy() for name, item in kept.items() if isinstance(item, torch.Tensor)}


def printed_numbers(log: Path) -> list[float]:
    """The numbers that a program printed, line by line."""
    return [float(word) for word in log.read_text().split() if _NUMBER.match(word)]


def greatest_difference(one: Path, other: Path) -> float:
    """The largest distance relative to the norm over all arrays that both have; infinite if only one has numbers."""
    with np.load(one) as a, np.load(other) as b:
        shared = [name for name in a.files if name in b.files and a[name].shape == b[name].shape]
        if len(shared) < max(len(a.files), len(b.files)):
            return float("inf")
        return max((relative(a[name], b[name]) for name in shared), default=0.0)


def relative(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """The L2 norm of the difference divided by the larger L2 norm."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if np.array_equal(a, b, equal_nan=True):
        return 0.0
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    whole = np.isfinite(a) & np.isfinite(b)
    size = max(np.linalg.norm(a[whole]), np.linalg.norm(b[whole]))
    return float(np.linalg.norm(a[whole] - b[whole]) / size) if size else 0.0
