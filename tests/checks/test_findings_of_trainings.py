"""`opdump check` on real trainings: an ordinary one has no findings, a broken one yields the operator that broke it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opdump
from opdump.checks import Finding, Thresholds
from opdump.plan import DumpPlan, StepSet
from opdump.reports.findings import check_dump

pytestmark = pytest.mark.torch

Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "adamw over lists": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
}


class Perceptron(nn.Module):
    """Biases initialised to zero, an adapter whose second matrix starts as zeros, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(16, 3)
        for zeros in (self.first.bias, self.last.bias, self.up.weight, self.unused.bias):
            nn.init.zeros_(zeros)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x)).relu()
        result: torch.Tensor = self.last(x + self.up(self.down(x)))
        return result


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.1)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = (x[:, :6].abs() * 5).long().clamp(max=19)
        result: torch.Tensor = self.last(self.lstm(self.embedding(tokens))[0][:, -1])
        return result


class Attending(nn.Module):
    """Masks of three kinds: -Inf made in the step, the lowest number as a buffer, `1 - mask` of ones."""

    lowest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.register_buffer("lowest", torch.full((8, 8), torch.finfo(torch.float32).min).triu(1))
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.into(x.unsqueeze(-1))
        hidden = self.layer(hidden, src_mask=torch.full((8, 8), -math.inf).triu(1))
        nothing_padded = (1.0 - torch.ones(8, 8, dtype=torch.long).float()) * torch.finfo(torch.float32).min
        scores = hidden @ hidden.transpose(1, 2) + self.lowest + nothing_padded
        result: torch.Tensor = self.last((scores.softmax(-1) @ hidden).mean(1))
        return result


def train(
    directory: Path,
    network: nn.Module,
    optimizer: Optimizer = OPTIMIZERS["momentum"],
    *,
    count: int = 3,
    before_step: Callable[[int, nn.Module], object] | None = None,
    **options: Any,
) -> list[Finding]:
    """Dump some steps of a training, and check the dump."""
    generator = torch.Generator().manual_seed(1)
    stepping = optimizer(network.parameters())
    plan = DumpPlan(**{"path": directory, "saved_data": "statistic", **options})
    with opdump.capture(plan):
        for step in range(count):
            if before_step is not None:
                before_step(step, network)
            x = torch.randn(6, 8, generator=generator)
            target = torch.randint(0, 3, (6,), generator=generator)
            stepping.zero_grad()
            nn.functional.cross_entropy(network(x), target).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            stepping.step()
    return check_dump(opdump.open(directory), Thresholds()).findings


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def brief(findings: list[Finding]) -> list[str]:
    return [f"{each.check} {each.op_name} {each.io}:{each.slot} step {each.step}" for each in findings]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_ordinary_training_has_no_findings(optimizer: Optimizer, tmp_path: Path) -> None:
    assert brief(train(tmp_path, Perceptron(), optimizer)) == []


def test_an_ordinary_recurrent_training_has_no_findings(tmp_path: Path) -> None:
    assert brief(train(tmp_path, Recurrent(), OPTIMIZERS["adam"])) == []


@pytest.mark.parametrize(
    "options",
    [
        {"saved_data": "full"},
        {"saved_data": "tensor"},
        {"statistic_category": ("max", "min", "l2norm")},
        {"statistic_category": ("l2norm",)},
        {"steps": StepSet.parse("1-2")},
        {"layout": "acl", "dump_level": "op"},
        {"layout": "acl", "dump_level": "all"},
        {"layout": "acl", "dump_level": "kernel"},
    ],
    ids=str,
)
@pytest.mark.parametrize("network", [Perceptron, Attending])
def test_an_ordinary_training_has_no_findings_with_other_dump_settings(
    network: type[nn.Module], options: dict[str, Any], tmp_path: Path
) -> None:
    found = sorted(brief(train(tmp_path, network(), OPTIMIZERS["adam"], **options)))
    if options.get("dump_level") in ("op", "all"):
        # Inputs of a call have no sources, except parameters. So it is unknown that the added zeros follow from the
        # weight of `up`, which starts as zeros, and that `1 - mask` contains no values of the data.
        expected = {
            Perceptron: ["all zero Default/network-Perceptron/add-call5 input:1 step 0"],
            Attending: [f"all zero Default/network-Attending/rsub-call9 output:0 step {step}" for step in range(3)],
        }
        assert found == expected[network]
    else:
        assert found == []


def test_a_dead_activation_is_one_finding_in_each_step(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(network.get_parameter("0.bias"), -100.0)
    found = train(tmp_path, network, OPTIMIZERS["adam"])
    assert [(each.check, each.op_type, each.step) for each in found] == [
        ("all zero", "relu", step) for step in range(3)
    ]


def test_a_layer_of_zeros_that_never_learns_is_named(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    for parameter in network[:1].parameters():
        nn.init.zeros_(parameter)
    found = train(tmp_path, network)
    assert [(each.check, each.op_name, each.step) for each in found] == [
        ("all zero", "0.weight", step) for step in range(3)
    ]


def test_a_product_with_the_number_zero_is_named(tmp_path: Path) -> None:
    class Off(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(self.first(x) * 0.0)
            return result

    found = train(tmp_path, Off(), count=1)
    assert found[0].op_type == "mul"
    assert {each.op_type for each in found} == {"mul"}  # of the forward and of its gradient


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_the_program_writes_into_a_parameter_is_named_by_its_first_reader(
    value: float, tmp_path: Path
) -> None:
    def poison(step: int, network: nn.Module) -> None:
        if step == 1:
            with torch.no_grad():
                network.get_parameter("first.weight")[0, 0] = value

    found = train(tmp_path, Perceptron(), before_step=poison)
    first = found[0]
    assert (first.step, first.check) == (1, "nan" if math.isnan(value) else "inf")
    assert first.op_type in ("fill_", "addmm", "copy_")
    assert all(each.step >= 1 for each in found if each.step is not None)
    assert not first.inherited
    read_later = [each for each in found if each.step == 2 and each.io == "input" and each.check == "nan"]
    assert {each.argument for each in read_later if each.inherited} == {"self", "mat2", "weight", "bias"}
    assert {each.argument for each in read_later if not each.inherited} == {
        "running_mean",
        "running_var",
    }  # buffers are data


def test_an_attention_whose_rows_are_all_masked_is_the_origin_of_its_nan(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = x + torch.full((8,), -math.inf)
            result: torch.Tensor = self.last(scores.softmax(-1))
            return result

    found = train(tmp_path, Masked(), count=1)
    assert (found[0].check, found[0].op_type, found[0].origin) == ("nan", "_softmax", True)


def test_an_infinity_of_a_division_is_the_origin(tmp_path: Path) -> None:
    class Divides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(x / (x - x.detach()).abs())
            return result

    found = train(tmp_path, Divides(), count=1)
    told = [(each.check, each.op_type, each.origin) for each in found]
    assert told[0] == ("all zero", "sub", False)
    assert told[1] == ("inf", "div", True)


def test_a_batch_of_zeros_is_reported(tmp_path: Path) -> None:
    network, some, none = nn.Linear(4, 2), torch.randn(3, 4), torch.zeros(3, 4)
    with opdump.capture(path=tmp_path, saved_data="statistic"), torch.no_grad():
        network(some)
        network(none)
    found = check_dump(opdump.open(tmp_path), Thresholds()).findings
    assert [(each.check, each.step) for each in found if each.op_name == "inputs0"] == [("all zero", 1)]
