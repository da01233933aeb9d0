"""Gradients that one run lacks are named where and when they stop flowing; so are parameters that were swapped."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump
from tests.comparison.programs import dumped

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
first, norm, other, second = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3)
parameters = [*first.parameters(), *norm.parameters(), *other.parameters(), *second.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
data = torch.randn(4, 6)
for step in range(2):
    x = first(data)
    y = norm(x)
    y = torch.tanh(other(y))
    x = x + y
    loss = second(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    return tmp_path_factory.mktemp("gradients")


@pytest.fixture(scope="module")
def original(folder: Path) -> Path:
    return dumped(folder, "original", PROGRAM)


@pytest.mark.parametrize(
    ("name", "old", "new", "missing", "nearest"),
    [
        # The norm still has gradients of its parameters, but returns none for its input.
        (
            "input",
            "norm(x)",
            "norm(x.detach())",
            ("native_layer_norm_backward", 12),
            ("native_layer_norm_backward", 12),
        ),
        ("linear_input", "other(y)", "other(y.detach())", ("mm", 13), ("addmm", 13)),
        # A sum has no operator in the backward pass: its input is the last tensor with a gradient.
        ("summand", "x + y", "x + y.detach()", ("tanh_backward", 13), ("add", 14)),
        ("stream", "x + y", "x.detach() + y", ("add", 12), None),
        ("frozen", "data = ", "other.bias.requires_grad_(False); data = ", ("sum", 13), ("addmm", 13)),
    ],
)
def test_the_cut_is_named(
    folder: Path,
    original: Path,
    name: str,
    old: str,
    new: str,
    missing: tuple[str, int],
    nearest: tuple[str, int] | None,
) -> None:
    assert PROGRAM.count(old) == 1
    result = opdump.compare(original, dumped(folder, name, PROGRAM.replace(old, new)))
    found = result.introduced[0]
    assert (result.verdict, found.kind) == ("divergent", "missing")
    assert found.a is not None
    assert (found.a.op_type, found.a.step) == (missing[0], 0), "parameters are created in the same step"
    assert found.a.stack[0].line == missing[1]
    if nearest is not None:
        assert found.b is not None
        assert (found.b.op_type, found.b.stack[0].line) == nearest


def test_a_gradient_that_nothing_needs_is_no_difference(folder: Path, original: Path) -> None:
    result = opdump.compare(
        original, dumped(folder, "of_data", PROGRAM.replace("torch.randn(4, 6)", "torch.randn(4, 6).requires_grad_()"))
    )
    assert result.verdict in ("identical", "benign")
    swapped = opdump.compare(folder / "of_data", original)
    assert swapped.verdict in ("identical", "benign")


EXCHANGED = """
import torch
from torch import nn

torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        one, two = self.left(x), self.right(x)
        return torch.tanh(one) * two

net, data = Net(), torch.randn(4, 6)
for step in range(2):
    net(data).mean().backward()
"""


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("exchanged", "self.right(x), self.left(x)"),
        # The second one's value exists in the first run, but the product does not read it.
        ("twice", "self.right(x), self.right(x)"),
    ],
)
def test_other_parameters_are_named_where_they_are_read(folder: Path, name: str, read: str) -> None:
    before = folder / "in_order"
    if not before.exists():
        dumped(folder, "in_order", EXCHANGED)
    after = dumped(folder, name, EXCHANGED.replace("self.left(x), self.right(x)", read))
    found = opdump.compare(before, after).introduced[0]
    assert found.kind == "input"
    assert found.b is not None
    assert (found.b.op_type, found.b.phase, found.b.stack[0].line) == ("addmm", "forward", 12)
