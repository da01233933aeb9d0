"""Trainings that sum in another order: rounding in gradients that are mathematically zero is no difference."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from tests.comparison import programs

TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)
network = NETWORK
optimizer = torch.optim.OPTIMIZER
random = torch.Generator().manual_seed(1)
for step in range(5):
    data, labels = torch.randn(64, 16, generator=random), torch.randint(0, 8, (64,), generator=random)
    rows = torch.arange(64)
    if step == 3:
        pass
    loss = nn.functional.cross_entropy(network(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NETWORKS = {
    "bias before batch norm": "nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))",
    "layer norm before batch norm": "nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 8))",
    "bias before group norm": """nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.GroupNorm(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 8)
    )""",
    "attention before batch norm": """nn.Sequential(
        nn.Unflatten(1, (2, 8)), nn.Linear(8, 32), nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), nn.Flatten(),
        nn.BatchNorm1d(64), nn.Linear(64, 8)
    )""",
}
OPTIMIZERS = {
    "Adam": "Adam(network.parameters(), lr=0.01)",
    "AdamW": "AdamW(network.parameters(), lr=0.01, foreach=True)",
    "RMSprop": "RMSprop(network.parameters(), lr=0.01)",
    "SGD": "SGD(network.parameters(), lr=0.01, momentum=0.9)",
    "Rprop": "Rprop(network.parameters(), lr=0.01)",
}


def training(network: str, optimizer: str) -> str:
    return TRAINING.replace("NETWORK", NETWORKS[network]).replace("OPTIMIZER", OPTIMIZERS[optimizer])


def with_rows_turned(program: str) -> str:
    """The same program with each batch reversed, so that sums over it round differently."""
    return program.replace("torch.arange(64)", "torch.arange(63, -1, -1)")


def compared(folder: Path, one: str, other: str) -> opdump.CompareResult:
    first = programs.dumped(folder, "one", one, "statistic")
    return opdump.compare(first, programs.dumped(folder, "other", other, "statistic"))


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        ("bias before batch norm", "Adam"),
        ("bias before batch norm", "AdamW"),
        ("bias before batch norm", "RMSprop"),
        ("layer norm before batch norm", "Adam"),
        ("layer norm before batch norm", "SGD"),
        ("bias before group norm", "RMSprop"),
        ("attention before batch norm", "Adam"),
        ("attention before batch norm", "Rprop"),
    ],
)
def test_trainings_that_are_rounded_otherwise_are_the_same(tmp_path: Path, network: str, optimizer: str) -> None:
    program = training(network, optimizer)
    result = compared(tmp_path, program, with_rows_turned(program))
    assert (result.verdict, list(result.introduced)) == ("benign", [])


@pytest.mark.parametrize(
    ("step", "fault"),
    [
        (0, "labels = labels.roll(1)"),
        (0, "rows = rows[:32]"),
        (3, "network[3].weight.detach().mul_(1.01)"),
    ],
)
def test_fault_is_found_in_trainings_that_are_rounded_otherwise(tmp_path: Path, step: int, fault: str) -> None:
    program = training("bias before batch norm", "Adam")
    faulty = program.replace("step == 3", f"step == {step}").replace("pass", fault)
    assert compared(tmp_path, program, with_rows_turned(faulty)).verdict == "divergent"


SINGLE, FUSED = "foreach=False", "fused=True"


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        ("bias before batch norm", "AdamW"),
        ("layer norm before batch norm", "Adam"),
        ("bias before group norm", "AdamW"),
        ("attention before batch norm", "AdamW"),
    ],
)
def test_a_fused_optimizer_is_the_same_as_one_of_several_operators(
    tmp_path: Path, network: str, optimizer: str
) -> None:
    program = training(network, "SGD").replace(
        OPTIMIZERS["SGD"], f"{optimizer}(network.parameters(), lr=0.01, {SINGLE})"
    )
    result = compared(tmp_path, program, program.replace(SINGLE, FUSED))
    assert (result.verdict, list(result.introduced)) == ("benign", [])


@pytest.mark.parametrize(
    ("old", "new", "phase"),
    [
        ("lr=0.01", "lr=0.011", "optimizer"),
        ("lr=0.01", "lr=0.01, weight_decay=0.5", "optimizer"),
        ("nn.ReLU()", "nn.LeakyReLU(0.1)", "forward"),
    ],
    ids=["rate", "decay", "activation"],
)
def test_a_fault_beside_a_fused_optimizer_is_named(tmp_path: Path, old: str, new: str, phase: str) -> None:
    program = training("bias before batch norm", "SGD").replace(
        OPTIMIZERS["SGD"], f"AdamW(network.parameters(), lr=0.01, {SINGLE})"
    )
    result = compared(tmp_path, program, program.replace(SINGLE, FUSED).replace(old, new))
    named = result.introduced[0].b or result.introduced[0].a
    assert result.verdict == "divergent"
    assert named is not None
    assert named.phase == phase
