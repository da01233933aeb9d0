"""One LeNet with the same weights and batches, dumped by MindSpore and by opdump under one data_dump.json."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from tests.parity import peers

STEPS = 3
SHAPES = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120), "fc3": (10, 84)}
PARAMETERS = tuple(f"{layer}.{kind}" for layer in SHAPES for kind in ("weight", "bias"))
CONFIG = {
    "common_dump_settings": {
        "dump_mode": 0,
        "path": "",  # set by MS_DIAGNOSTIC_DATA_PATH, so that both frameworks get the same file
        "net_name": "LeNet",
        "iteration": "all",
        "saved_data": "tensor",
        "input_output": 0,
        "kernels": [],
        "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
        "op_debug_mode": 0,
    },
    "e2e_dump_settings": {"enable": True, "trans_flag": True},
}


@dataclass(frozen=True, slots=True)
class Dumps:
    """Directories that contain `rank_0`, and the losses that each framework printed."""

    mindspore: Path
    torch: Path
    mindspore_losses: tuple[float, ...]
    torch_losses: tuple[float, ...]


def make_dumps(directory: Path) -> Dumps:
    """Train both networks for three steps."""
    config = directory / "data_dump.json"
    config.write_text(json.dumps(CONFIG))
    data = directory / "lenet.npz"
    np.savez(data, allow_pickle=False, **training_data())
    common = {"MINDSPORE_DUMP_CONFIG": str(config)}
    printed: list[tuple[float, ...]] = []
    runs: tuple[tuple[str, Path, list[str | Path]], ...] = (
        ("mindspore", peers.MINDSPORE, [peers.SCRIPTS / "lenet_mindspore.py", data]),
        ("torch", Path(sys.executable), ["-m", "opdump", "run", peers.SCRIPTS / "lenet_torch.py", data]),
    )
    for name, python, arguments in runs:
        environment = {**common, "MS_DIAGNOSTIC_DATA_PATH": str(directory / name)}
        printed.append(_losses(peers.run(python, arguments, environment)))
    return Dumps(directory / "mindspore" / "debug_dump", directory / "torch" / "debug_dump", *printed)


def training_data() -> dict[str, npt.NDArray[Any]]:
    """Three batches of 16 digits, enlarged from 8x8 to 32x32, and weights from the distribution that both frameworks use by default."""
    generator = np.random.default_rng(7)
    digits = load_digits()
    count = 16 * STEPS
    images = np.kron(digits.images[:count].astype(np.float32) / 16, np.ones((1, 4, 4), np.float32))
    data = {
        "images": images.reshape(STEPS, 16, 1, 32, 32),
        "labels": digits.target[:count].reshape(STEPS, 16),
        "learning_rate": np.array(0.05),
        "momentum": np.array(0.9),
    }
    for layer, shape in SHAPES.items():
        limit = 1 / math.sqrt(math.prod(shape[1:]))
        data[f"{layer}.weight"] = generator.uniform(-limit, limit, shape).astype(np.float32)
        data[f"{layer}.bias"] = generator.uniform(-limit, limit, shape[:1]).astype(np.float32)
    return data


def _losses(printed: str) -> tuple[float, ...]:
    return tuple(float(line.split()[1]) for line in printed.splitlines() if line.startswith("loss "))
