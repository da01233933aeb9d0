"""Programs that draw or count other numbers, and casts to a narrower type: what is named first."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Literal

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


CASTING = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.manual_seed(0)

    class Descent(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(parameter.grad * 0.1)

    first, second = nn.Linear(4, 6), nn.Linear(6, 3)
    descent = Descent([*first.parameters(), *second.parameters()])
    data, labels = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    for step in range(2):
        shares = F.softmax(first(data), 1)
        loss = F.cross_entropy(second(shares), labels)
        descent.zero_grad()
        loss.backward()
        descent.step()
"""


@pytest.mark.parametrize(
    ("old", "new", "phase"),
    [
        ("F.softmax(first(data), 1)", "F.softmax(first(data).half(), 1).float()", "forward"),
        ("F.softmax(first(data), 1)", "F.softmax(first(data).bfloat16().float(), 1)", "forward"),
        ("parameter.grad * 0.1", "parameter.grad.bfloat16().float() * 0.1", "optimizer"),
    ],
    ids=["all_of_a_kind", "rounded", "optimizer"],
)
def test_a_planted_cast_is_named(tmp_path: Path, old: str, new: str, phase: str) -> None:
    assert CASTING.count(old) == 1
    result = opdump.compare(dumped(tmp_path, "a", CASTING), dumped(tmp_path, "b", CASTING.replace(old, new)))
    found = result.introduced[0]
    assert found.kind == "precision"
    assert found.b is not None
    assert (found.b.op_type, found.b.phase) == ("_to_copy", phase)


def test_a_network_in_a_narrower_type_is_a_choice(tmp_path: Path) -> None:
    narrow = CASTING.replace(
        "    for step in range(2):\n", "    for step in range(2):\n      with torch.autocast('cpu', torch.bfloat16):\n"
    )
    result = opdump.compare(dumped(tmp_path, "a", CASTING), dumped(tmp_path, "b", narrow))
    assert "precision" not in {each.kind for each in result.introduced}


def test_a_factor_in_a_network_of_a_narrower_type_is_found(tmp_path: Path) -> None:
    narrow = CASTING.replace(
        "nn.Linear(4, 6), nn.Linear(6, 3)", "nn.Linear(4, 6).bfloat16(), nn.Linear(6, 3).bfloat16()"
    )
    narrow = narrow.replace("torch.randn(8, 4)", "torch.randn(8, 4).bfloat16()")
    other = narrow.replace("second(shares)", "second(shares * 1.03)")
    result = opdump.compare(dumped(tmp_path, "a", narrow), dumped(tmp_path, "b", other))
    found = result.introduced[0]
    assert (result.verdict, found.kind) == ("divergent", "extra")
    assert found.b is not None
    assert found.b.op_type == "mul"


NETWORKS = {
    "layer_norm_whose_gradient_sums_in_bfloat16": """
        network = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 5))
        data = torch.randn(16, 20)
    """,
    "attention_that_casts_before_it_copies": """
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        network = nn.Sequential(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Flatten(), nn.Linear(64, 5))
        data = torch.randn(16, 4, 16)
    """,
}
TRAINING = """
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.001)
    labels = torch.randint(0, 5, (16,))
    for step in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled={}):
            loss = F.cross_entropy(network(data), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_under_autocast_is_benign_and_its_precision_is_noted(
    tmp_path: Path, name: str, saved: Literal["full", "statistic"]
) -> None:
    head = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\ntorch.manual_seed(0)\n"
    program = head + dedent(NETWORKS[name]) + dedent(TRAINING)
    wide, narrow = (dumped(tmp_path, each, program.format(each == "b"), saved) for each in "ab")
    for before, after, types in (
        (wide, narrow, "float32 in A, bfloat16 in B"),
        (narrow, wide, "bfloat16 in A, float32 in B"),
    ):
        result = opdump.compare(before, after)
        assert (result.verdict, result.introduced) == ("benign", ())
        assert f"most matrix products are {types}; differences within this precision are accepted" in result.notes


def test_a_cast_of_one_product_behind_a_copy_is_named(tmp_path: Path) -> None:
    program = """
        import torch
        torch.manual_seed(0)
        data, first, second, third = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8)
        made = data * 2.0
        print((made.t().contiguous().t() @ first @ second @ third).sum().item())
    """
    narrow = program.replace(
        "made.t().contiguous().t() @ first", "(made.bfloat16().t().contiguous().t() @ first.bfloat16()).float()"
    )
    result = opdump.compare(dumped(tmp_path, "a", program), dumped(tmp_path, "b", narrow))
    found = result.introduced[0]
    assert found.kind == "precision"
    assert found.b is not None
    assert found.b.op_type == "_to_copy"
    assert "although most operators of its kind do not" in found.evidence
