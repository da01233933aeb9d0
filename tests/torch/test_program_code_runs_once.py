"""Python code of the program runs equally often with and without capture: custom operators, autograd functions, hooks, checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import opdump

_COUNTS: Counter[str] = Counter()


@pytest.fixture(scope="module")
def custom() -> Iterator[Any]:
    library = torch.library.Library("opdump_counted", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.define("add_one_(Tensor(a!) x) -> ()")

    def double(x: torch.Tensor) -> torch.Tensor:
        _COUNTS["custom operator"] += 1
        return x * 2

    def add_one(x: torch.Tensor) -> None:
        _COUNTS["custom operator that writes"] += 1
        x.add_(1)

    library.impl("double", double, "CompositeExplicitAutograd")
    library.impl("add_one_", add_one, "CompositeExplicitAutograd")
    yield torch.ops.opdump_counted
    library._destroy()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _COUNTS["forward"] += 1
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _COUNTS["backward"] += 1
        return gradients[0] * 2 + 0 * ctx.saved_tensors[0]


def _counted(name: str, result: Any = None) -> Any:
    def hook(*_: Any) -> Any:
        _COUNTS[name] += 1
        return result

    return hook


def _kept(name: str) -> Any:
    def hook(x: torch.Tensor) -> torch.Tensor:
        _COUNTS[name] += 1
        return x

    return hook


def _step(model: nn.Sequential, optimizer: torch.optim.Optimizer, custom: Any) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    custom.add_one_(x)
    with torch.autograd.graph.saved_tensors_hooks(_kept("packed"), _kept("unpacked")):
        hidden = checkpoint(model, custom.double(x), use_reentrant=False)
        loss = Doubled.apply(hidden).square().mean()  # type: ignore[no-untyped-call]
    hidden.register_hook(_counted("tensor hook"))
    loss.grad_fn.register_hook(_counted("node hook"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    found: torch.Tensor = loss.detach()
    return found


def _trained(custom: Any, **capture: Any) -> tuple[Counter[str], list[torch.Tensor]]:
    torch.manual_seed(3)
    _COUNTS.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model.register_forward_hook(_counted("module hook"))
    model[3].register_full_backward_hook(_counted("backward hook"))
    weight = next(model[3].parameters())
    weight.register_hook(_counted("gradient hook"))
    weight.register_post_accumulate_grad_hook(_counted("accumulated"))
    optimizer.register_step_post_hook(_counted("optimizer hook"))
    if capture:
        with opdump.capture(**capture) as dump:
            losses = [_step(model, optimizer, custom) for _ in range(3)]
        assert dump.report is not None
        assert dump.report.executed > 0
    else:
        losses = [_step(model, optimizer, custom) for _ in range(3)]
    return Counter(_COUNTS), [*losses, *(each.detach() for each in model.parameters())]


@pytest.mark.parametrize(
    "mode",
    [
        {"saved_data": "statistic"},
        {"saved_data": "full"},
        {"saved_data": "full", "iteration": "1"},
        {"overflow": True},
        {"on_exception": True},
        {"watch": ["no operator"]},
    ],
    ids=lambda mode: "-".join(map(str, mode.values())),
)
def test_python_of_the_program_runs_as_often_as_without_capture(
    tmp_path: Path, custom: Any, mode: dict[str, Any]
) -> None:
    plain, values = _trained(custom)
    assert len(plain) == 13, plain
    counts, captured = _trained(custom, path=tmp_path, **mode)
    assert counts == plain
    for one, other in zip(values, captured, strict=True):
        assert torch.equal(one, other)
