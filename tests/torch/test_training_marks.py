"""Marks of modules: what is inside them is told apart, also when it is computed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from opdump.adapters.torch.training import TrainingObserver
from opdump.errors import CaptureStateError
from tests.torch.operator_places import Block, Net, Places, Saving, Sine, batch, sines


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda network: [], [False, False, False, False]),
        (lambda network: [network], [True, True, True, True]),
        (lambda network: [network.first], [True, False, False, False]),
        (lambda network: [network.layers[1].sine], [False, False, True, False]),
        (lambda network: [network.layers], [False, True, True, False]),
        (lambda network: [Block], [True, True, True, False]),
        (lambda network: [Sine, Net], [True, True, True, True]),
        (lambda network: [nn.Module], [True, True, True, True]),
    ],
)
def test_marks_hold_inside_the_marked_modules(choose: Callable[[Net], list[object]], expected: list[bool]) -> None:
    network = Net()
    assert sines(lambda: network(batch()), marked=choose(network)).marked == expected


def test_the_innermost_mark_decides_and_marks_can_change() -> None:
    network = Net()
    with TrainingObserver(marked=[network]) as observer, Places(observer, "sin") as places:
        observer.mark(Block, enabled=False)
        network(batch())
        observer.mark(network.layers[0], enabled=True)
        network(batch())
    assert places.marked == [False, False, False, True, False, True, False, True]
    assert observer.current().marked is False


@pytest.mark.parametrize("target", ["model", 3, Optimizer, torch.relu])
def test_only_modules_and_their_classes_can_be_marked(target: object) -> None:
    with pytest.raises(CaptureStateError, match="module"):
        TrainingObserver(marked=[target])


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda network: network, [True, True, True, True]),
        (type, [True, True, True, True]),
        (lambda network: network.blocks, [True, True, True, True]),
        (lambda network: network.blocks[0], [True, False, False, True]),
    ],
)
def test_marks_hold_during_recomputation(choose: Callable[[Saving], object], expected: list[bool]) -> None:
    network = Saving(reentrant=False)
    assert sines(lambda: network(batch()).sum().backward(), marked=[choose(network)]).marked == expected
