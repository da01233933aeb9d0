"""Compiled, traced and scripted modules, as an observer of training sees them."""

from __future__ import annotations

import pytest
import torch

from opdump.adapters.torch.training import TrainingObserver
from tests.torch.operator_places import Block, Net, Places, batch


def test_modules_reached_through_a_compiled_wrapper_keep_their_names() -> None:
    network = Net()
    compiled = torch.compile(network, backend="eager")
    with TrainingObserver() as observer, Places(observer, "sin") as places, torch.no_grad():
        network(batch())
        compiled(batch())  # under a dispatch mode PyTorch runs the original code
    assert places.scopes[:4] == places.scopes[4:]
    assert observer.graphs == [("network-Net", True)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules_stay_whole_and_are_one_call(backend: str) -> None:
    torch._dynamo.reset()
    network = Net()
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    plain = network(batch())
    with TrainingObserver() as observer:
        for step in range(2):
            assert observer.step == step
            out = compiled(batch())
            if step == 0:
                assert torch.equal(out, plain)
            out.sum().backward()
            optimizer.step()
    assert observer.graphs == [("network-Net", True)]
    assert observer.current().call_id == 3


def test_compiled_functions_are_not_broken_by_the_observer() -> None:
    torch._dynamo.reset()
    network = Net()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return network(x).sum()  # type: ignore[no-any-return]

    with TrainingObserver():
        explanation = torch._dynamo.explain(loss)(batch())
    assert (explanation.graph_count, explanation.graph_break_count) == (1, 0)


def test_modules_compiled_in_place_are_one_call() -> None:
    torch._dynamo.reset()
    network = Net()
    network.compile(backend="eager", fullgraph=True)
    with TrainingObserver() as observer, torch.no_grad():
        assert torch.equal(network(batch()), network(batch()))
    assert observer.graphs == [("network-Net", True)]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_an_update_by_a_compiled_optimizer_ends_the_step_at_the_next_forward() -> None:
    torch._dynamo.reset()
    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, foreach=True)
    steps: list[int] = []

    @torch.compile(backend="eager")
    def update() -> None:
        optimizer.step()

    with TrainingObserver() as observer:
        for _ in range(3):
            out = network(batch())
            steps.append(observer.step)
            out.sum().backward()
            update()
    assert steps == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_tracing_and_scripting_see_no_observer() -> None:
    network = Net().eval()
    with TrainingObserver() as observer, torch.no_grad():
        with observer.suspended():
            traced = torch.jit.trace(network, batch())
            exported = torch.export.export(network, (batch(),))
            symbolic = torch.fx.symbolic_trace(network)
        assert observer.graphs == []
        assert torch.equal(traced(batch()), network(batch()))
        assert torch.equal(exported.module()(batch()), symbolic(batch()))
    assert observer.graphs[0] == ("network-Net", False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_scripted_modules_have_the_name_of_their_class() -> None:
    scripted = torch.jit.script(Block())
    with TrainingObserver() as observer, torch.no_grad():
        scripted(batch())
    assert observer.graphs == [("network-Block", True)]
