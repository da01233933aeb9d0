"""What a step finds of earlier steps."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from opdump.comparison.integrity import Integrity, check_integrity, were_left_alike
from opdump.comparison.memory import read_step

pytestmark = pytest.mark.torch


def test_a_state_that_a_step_left_out_is_known_again(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    states = [torch.zeros(8), torch.zeros(8)]
    with opdump.capture(path=str(tmp_path), saved_data="full") as dump:
        for step in range(4):
            states[step % 2].mul_(0.9).add_(torch.randn(8))
            dump.step()
    catalog = opdump.open(tmp_path)
    before: Integrity | None = None
    ages = []
    for step in range(4):
        trace = read_step(catalog, step)
        found = check_integrity(trace, before)
        (node,) = (node for node in trace.nodes if node.bare_type == "mul")
        ages.append((found.came_earlier.get((node.index, 0)), (node.index, 0) in found.found_again))
        before = found
    assert ages == [(None, False), (None, False), (2, True), (2, True)]


def test_inputs_are_left_alike_where_both_are_as_old() -> None:
    at = (0, 0)
    older, old, fresh, none = (
        Integrity(came_earlier={at: 3}),
        Integrity(came_earlier={at: 2}),
        Integrity(came_from={at: frozenset({5})}),
        Integrity(),
    )
    assert were_left_alike(old, at, old, at, {})
    assert not were_left_alike(old, at, older, at, {})
    assert not were_left_alike(fresh, at, old, at, {5: 5})
    assert not were_left_alike(none, at, old, at, {})
    assert not were_left_alike(none, at, fresh, at, {})
    assert were_left_alike(fresh, at, fresh, at, {5: 5})
    other = Integrity(came_from={at: frozenset({7})})
    assert not were_left_alike(fresh, at, other, at, {5: 5, 6: 7})
