"""Numbers that a program counts and puts into a tensor differ only because something before them does."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from tests.comparison.programs import dumped

pytestmark = pytest.mark.torch

COUNTS = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 3)
data = torch.randn(8, 4)
counts = torch.zeros(3)
scores = net(data)
for index in range(3):
    rows, = torch.where(scores.argmax(1) == index)
    counts[index] = rows.numel()
(scores * counts).sum().backward()
"""


def test_what_was_counted_is_named_after_what_made_it_differ(tmp_path: Path) -> None:
    flipped = COUNTS.replace("net(data)", "torch.nn.functional.linear(data, net.weight.flip(0), net.bias)")
    one, other = dumped(tmp_path, "one", COUNTS), dumped(tmp_path, "other", flipped)
    for result in (opdump.compare(one, other), opdump.compare(other, one)):
        first, *others = result.introduced
        assert first.op.op_type in ("flip", "addmm"), first.headline
        assert {each.kind for each in others} <= {"data", "missing", "extra", "operator", "input"}
        assert any(each.kind == "data" for each in others)


def test_a_number_that_differs_by_itself_is_named(tmp_path: Path) -> None:
    other = COUNTS.replace("counts[index] = rows.numel()", "counts[index] = rows.numel() + 1")
    result = opdump.compare(dumped(tmp_path, "one", COUNTS), dumped(tmp_path, "other", other))
    assert [(each.kind, each.op.op_type) for each in result.introduced] == [("data", "copy_")] * 3
