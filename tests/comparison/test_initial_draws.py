"""Parameters that were drawn differently (another seed, or more draws before), and draws that nothing reads."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from tests.comparison.programs import dumped

pytestmark = pytest.mark.torch

PROGRAM = """
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(6, 8)
# loaded
data = torch.linspace(-1, 1, 24).reshape(4, 6)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(2):
    loss = layer(data).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOAD = "layer.load_state_dict({'weight': torch.ones(8, 6) / 3, 'bias': torch.arange(8.0)})"
LOADED = PROGRAM.replace("# loaded", LOAD)
IN_PARTS = PROGRAM.replace(
    "# loaded",
    "with torch.no_grad():\n    layer.weight[:3].copy_(torch.ones(3, 6)); layer.weight[3:].fill_(0.5); layer.bias.zero_()",
)


@pytest.mark.parametrize(
    ("old", "new"),
    [("manual_seed(0)", "manual_seed(1)"), ("layer = ", "torch.rand(1).item()\nlayer = ")],
    ids=["seed", "draw before"],
)
def test_other_parameters_are_named_where_they_are_drawn(tmp_path: Path, old: str, new: str) -> None:
    one, other = dumped(tmp_path, "one", PROGRAM), dumped(tmp_path, "other", PROGRAM.replace(old, new))
    for result in (opdump.compare(one, other), opdump.compare(other, one)):
        assert [(each.kind, each.op.op_type) for each in result.introduced] == [("random", "uniform_")] * 2
        assert "the seed or the number of earlier draws differs" in result.introduced[0].evidence
        assert [line.cells()[3] for line in result.window if line.is_source] == ["uniform_"]


@pytest.mark.parametrize("program", [LOADED, IN_PARTS], ids=["as a whole", "in parts"])
def test_draws_that_are_overwritten_do_not_count(tmp_path: Path, program: str) -> None:
    one = dumped(tmp_path, "one", program)
    other = dumped(tmp_path, "other", program.replace("manual_seed(0)", "manual_seed(1)"))
    result = opdump.compare(one, other)
    assert result.verdict == "benign", result.headline


def test_what_is_written_over_in_part_is_read_all_the_same(tmp_path: Path) -> None:
    program = PROGRAM.replace("# loaded", "with torch.no_grad():\n    layer.weight[:7].fill_(0.5); layer.bias.zero_()")
    one = dumped(tmp_path, "one", program)
    other = dumped(tmp_path, "other", program.replace("manual_seed(0)", "manual_seed(1)"))
    result = opdump.compare(one, other)
    assert [(each.kind, each.op.op_type) for each in result.introduced] == [("random", "uniform_")]


def test_what_is_made_of_a_draw_in_place_is_the_draw(tmp_path: Path) -> None:
    change = "with torch.no_grad():\n    layer.weight.uniform_(-0.9, 0.9).erfinv_().mul_(0.1); layer.bias.zero_()"
    program = PROGRAM.replace("# loaded", change)
    other = program.replace("manual_seed(0)", "manual_seed(1)")
    result = opdump.compare(dumped(tmp_path, "one", program), dumped(tmp_path, "other", other))
    assert [(each.kind, each.op.op_type) for each in result.introduced] == [("random", "uniform_")]
    loaded = [
        dumped(tmp_path, name, each.replace("data = ", f"{LOAD}\ndata = "))
        for name, each in (("one loaded", program), ("other loaded", other))
    ]
    assert opdump.compare(*loaded).verdict == "benign"
