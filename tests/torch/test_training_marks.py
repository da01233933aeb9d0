"""Marked modules: their content is identified, also when it is recomputed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from opdump.adapters.program_marks import MarkError
from opdump.adapters.torch.scopes import DumpSelection
from opdump.adapters.torch.training import TrainingObserver
from tests.torch.operator_places import Block, Net, Places, Saving, Sine, batch, sines


def marks_of(*targets: object) -> DumpSelection:
    marks = DumpSelection()
    for target in targets:
        marks.program.set(target, enabled=True)
    return marks


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
    assert sines(lambda: network(batch()), marks=marks_of(*choose(network))).marked == expected


def test_the_innermost_mark_decides_and_marks_can_change() -> None:
    network = Net()
    marks = marks_of(network)
    with TrainingObserver(marks=marks) as observer, Places(observer, "sin") as places:
        marks.program.set(Block, enabled=False)
        network(batch())
        marks.program.set(network.layers[0], enabled=True)
        network(batch())
    assert places.marked == [False, False, False, True, False, True, False, True]
    assert observer.current().enclosing is None


@pytest.mark.parametrize("target", ["model", 3, Optimizer, torch.relu, Net().named_modules()])
def test_only_modules_their_classes_and_functions_can_be_marked(target: object) -> None:
    with pytest.raises(MarkError, match="module"):
        marks_of(target)


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
    assert sines(lambda: network(batch()).sum().backward(), marks=marks_of(choose(network))).marked == expected
