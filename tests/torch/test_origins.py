"""Reports name the operator that made the NaN of a step, not an operator that read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.commands import main


def typed(*words: str) -> str:
    return CliRunner().invoke(main, list(words)).output


def train(path: Path, steps: int = 3, **settings: Any) -> None:
    """A training whose second step divides by zero: the gradients, then the parameters, become NaN or infinite."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with opdump.capture(path=path, saved_data="full", statistic_category=["max", "min", "l2norm"], **settings):
        for step in range(steps):
            optimizer.zero_grad()
            loss = net(torch.ones(2, 4)).sum()
            if step == 1:
                loss = loss / 0
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("settings", [{}, {"input_output": 2}], ids=["both sides", "outputs alone"])
def test_the_maker_is_named_in_its_step_and_in_the_next(settings: dict[str, Any], tmp_path: Path) -> None:
    train(tmp_path, **settings)
    output = typed("show", str(tmp_path), "--limit", "3")
    table = output[output.index("first with nan/inf") :].splitlines()[1:4]
    assert "div" not in table[0]
    assert "div-op" in table[1]
    assert "in step" not in table[1]
    assert "div-op" in table[2]
    assert "(in step 1)" in table[2]
    found = json.loads(typed("check", str(tmp_path), "--json"))["findings"]
    assert [(each["step"], each["op_type"]) for each in found if each["origin"]] == [(1, "div")]


def test_a_recorded_reader_names_the_maker_of_its_input_that_was_not_recorded(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", kernels=["mul"]):
        (torch.ones(2) / 0).mul(2.0)
    output = typed("show", str(tmp_path))
    assert "div-op" in output[output.index("first with nan/inf") :].splitlines()[1]


def test_biases_initialised_to_zero_are_no_findings(tmp_path: Path) -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    )
    for name, parameter in net.named_parameters():
        if name.endswith("bias") or name == "3.weight":
            torch.nn.init.zeros_(parameter)
    optimizer = torch.optim.Adam(net.parameters())
    with opdump.capture(path=tmp_path, saved_data="full"):
        for _ in range(2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(torch.randn(4, 1, 4, 4)), torch.tensor([0, 1, 2, 0])).backward()
            optimizer.step()
    found = json.loads(typed("check", str(tmp_path), "--json"))["findings"]
    zeros = [each for each in found if each["check"] == "all zero"]
    assert not [each for each in zeros if "bias" in each["op_name"] or each["argument"] in ("bias", "weight")], zeros
