"""A program has the same steps in every mode and layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import opdump
from opdump.plan import DumpPlan, StepSet

pytestmark = pytest.mark.torch


def _training(count: int) -> tuple[nn.Module, torch.Tensor]:
    network = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        loss = network(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
    return network, loss.detach()


def ends_with_numbers() -> None:
    """A number that is read after the last optimizer step belongs to that step."""
    _, loss = _training(3)
    str(float(loss * 2))


def ends_with_an_evaluation() -> None:
    """A network that runs after the last optimizer step is in a new step."""
    network, _ = _training(3)
    with torch.no_grad():
        network(torch.ones(2, 4))


def ends_with_a_forward() -> None:
    network, loss = _training(2)
    (network(torch.ones(2, 4)).sum() + loss).backward()


def evaluates_alone() -> None:
    network = nn.Linear(4, 3)
    with torch.no_grad():
        for _ in range(3):
            float(network(torch.ones(2, 4)).sum() * 2)


PROGRAMS: dict[Callable[[], None], tuple[int, ...]] = {
    ends_with_numbers: (0, 1, 2),
    ends_with_an_evaluation: (0, 1, 2, 3),
    ends_with_a_forward: (0, 1, 2),
    evaluates_alone: (0, 1, 2),
}
MODES: list[dict[str, Any]] = [
    {"saved_data": "full"},
    {"saved_data": "statistic"},
    {"captures": "exception"},
    {"captures": "overflow"},
    {"layout": "acl"},
    {"layout": "acl", "dump_level": "op"},
    {"layout": "acl", "dump_level": "all"},
    {"layout": "acl", "captures": "exception"},
    {"layout": "acl", "captures": "overflow"},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_the_same_steps_in_every_mode(
    program: Callable[[], None], mode: dict[str, Any], tmp_path: Path
) -> None:
    with opdump.capture(DumpPlan(path=tmp_path, **mode)) as dump:
        program()
    assert dump.report is not None
    assert dump.report.steps == PROGRAMS[program]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_selected_last_step_has_what_ran_after_its_optimizer(mode: dict[str, Any], tmp_path: Path) -> None:
    with opdump.capture(DumpPlan(path=tmp_path, steps=StepSet.of(2), **mode)) as dump:
        ends_with_numbers()
    assert dump.report is not None
    assert dump.report.steps == (2,)
