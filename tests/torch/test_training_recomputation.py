"""Modules and functions that a backward recomputes keep their original scope."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from opdump.adapters.torch.training import TrainingListener, TrainingObserver
from tests.torch.operator_places import Block, Places, Saving, Sine, batch, sines


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_modules_keep_their_scope_and_move_no_step(reentrant: bool) -> None:
    network = Saving(reentrant)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    other = Block()
    roots: list[str] = []

    class Roots(TrainingListener):
        def root_call_begins(self, module: nn.Module, *_: object) -> None:
            roots.append(type(module).__name__)

    with TrainingObserver(Roots()) as observer, Places(observer, "sin") as places:
        for step in range(2):
            assert observer.step == step
            out = network(batch().requires_grad_())
            with torch.no_grad():
                other(batch())
            out.sum().backward()
            assert observer.step == step
            optimizer.step()
    first, second = (f"Default/network-Saving/blocks-ModuleList/{index}-Block/sine-Sine" for index in (0, 1))
    assert places.scopes == [first, second, "Default/network-Block/sine-Sine", second, first] * 2
    assert places.recomputed == [False, False, False, True, True] * 2
    assert places.graphs == [0, 0, 1, 0, 0] * 2
    assert places.phases == ["forward"] * 10
    assert roots == ["Saving", "Block"] * 2
    assert len(set(places.calls[2:5])) == 3
    assert observer.current().recomputing is False


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_functions_keep_the_scope_that_they_had(reentrant: bool) -> None:
    helper = Sine()

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def body(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(helper(x.sin()))  # type: ignore[no-any-return]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(self.body, x, use_reentrant=reentrant)
            return out

    network = nn.Sequential(Inner(), Inner())
    places = sines(lambda: network(batch().requires_grad_()).sum().backward())
    first = ["Default/network-Sequential/0-Inner", "Default/network-Sequential/0-Inner/Sine"]
    second = ["Default/network-Sequential/1-Inner", "Default/network-Sequential/1-Inner/Sine"]
    assert places.scopes == first + second + second + first
    assert places.recomputed == [False] * 4 + [True] * 4


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside_checkpoints_keep_their_scopes(reentrant: bool) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Saving(reentrant)
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checkpoint(lambda y: self.fc(self.inner(y).sin()), x, use_reentrant=reentrant)
            return out

    network = Outer()
    observer = TrainingObserver()
    places = Places(observer, "sin")
    with observer, places:
        network(batch().requires_grad_()).sum().backward()
        assert observer.current().scope == "Default"
    blocks = [f"Default/network-Outer/inner-Saving/blocks-ModuleList/{index}-Block/sine-Sine" for index in (0, 1)]
    forward = [*blocks, "Default/network-Outer"]
    assert places.scopes[:6] == forward * 2
    assert sorted(places.scopes[6:]) == blocks
    assert places.recomputed == [False] * 3 + [True] * (len(places.scopes) - 3)
    assert observer.step == 0
    assert observer.graphs == [("network-Outer", True)]


@pytest.mark.parametrize(
    ("head", "alone"),
    [
        pytest.param(nn.Linear(3, 3), "network-Block", id="a part is a network of its own"),
        pytest.param(nn.Identity(), "network-Reversible/block-Block", id="all but what is wrapped around it"),
    ],
)
def test_a_recomputation_by_another_library_is_found_by_the_path_of_its_module(head: nn.Module, alone: str) -> None:
    class Theirs(torch.autograd.Function):
        """Runs a module again in backward, as reversible networks do."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
            ctx.module = module
            ctx.save_for_backward(x)
            with torch.no_grad():
                return module(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None]:
            (saved,) = ctx.saved_tensors
            with torch.enable_grad():
                x = saved.detach().requires_grad_()
                torch.autograd.backward(ctx.module(x), gradient)
            return x.grad, None

    class Reversible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.head = head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(Theirs.apply(x, self.block))  # type: ignore[no-untyped-call]
            return out

    network = Reversible()

    def run() -> None:
        network(batch().requires_grad_()).sum().backward()
        network.block(batch())

    places = sines(run)
    path = "Default/network-Reversible/block-Block/sine-Sine"
    assert places.scopes == [path, path, f"Default/{alone}/sine-Sine"]
    assert places.recomputed == [False, True, False]
