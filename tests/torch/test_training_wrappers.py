"""A network and its wrapper are one network, no matter which of them the program calls first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from opdump.adapters.torch.training import TrainingObserver
from tests.torch.operator_places import Net, Places, batch

pytestmark = pytest.mark.torch


class Around(nn.Module):
    """Holds its base like an adapter's model: two levels, without parameters of its own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.base_model = nn.Sequential(network)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.base_model(x * 1.0)
        return result


@pytest.fixture
def _process_group() -> Iterator[None]:
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _compiled(network: nn.Module) -> nn.Module:
    return cast("nn.Module", torch.compile(network, backend="eager"))


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DistributedDataParallel": nn.parallel.DistributedDataParallel,
    "DataParallel": nn.DataParallel,
    "compiled": _compiled,
    "DistributedDataParallel of a compiled one": lambda network: nn.parallel.DistributedDataParallel(
        _compiled(network)
    ),
    "two levels": Around,
    "Sequential": nn.Sequential,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.usefixtures("_process_group")
def test_a_network_that_is_wrapped_after_an_evaluation_stays_the_same(wrap: Callable[[nn.Module], nn.Module]) -> None:
    network = Net()
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        network.eval()
        with torch.no_grad():
            network(batch())
        bare = list(places.scopes)
        wrapped = wrap(network)
        wrapped.train()
        wrapped(batch())
        wrapped.eval()
        with torch.no_grad():
            wrapped(batch())
            network(batch())
    assert observer.graphs == [("network-Net", False), ("network-Net", True)]
    assert set(places.scopes) == set(bare)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.usefixtures("_process_group")
def test_a_network_that_is_called_alone_after_its_wrapper_is_a_part_of_that(
    wrap: Callable[[nn.Module], nn.Module],
) -> None:
    network = Net()
    wrapped = wrap(network)
    with TrainingObserver() as observer:
        wrapped(batch())
        with Places(observer, "sin") as inside:
            wrapped(batch())
        with Places(observer, "sin") as alone:
            network(batch())
    assert len(observer.graphs) == 1
    assert alone.scopes == inside.scopes


def test_a_copy_and_a_network_with_more_parameters_are_different_networks() -> None:
    network = Net()
    copy = torch.optim.swa_utils.AveragedModel(network)
    larger = nn.Sequential(network, nn.Linear(3, 3))
    with TrainingObserver() as observer:
        for each in (network, copy, larger):
            each(batch())
    assert [name for name, _ in observer.graphs] == ["network-Net", "network-AveragedModel", "network-Sequential"]
