"""What ends an iteration, reopens it, or leaves it unchanged: optimizers, closures, scalers, failures, data loaders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from tests.torch.training_journal import Decoder, Encoder, FailingOnce, Journal, Net, batch, sgd


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal()
    with journal.observer:
        yield journal


def test_step_right_after_the_optimizer_is_the_same_end(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for _ in range(3):
        network(batch()).sum().backward()
        optimizer.step()
        journal.observer.manual_step()
    assert journal.forwards == [(0, 0), (1, 0), (2, 0)]


def test_second_optimizer_opens_the_iteration_again(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4), Decoder(4, 3)
    first, second = sgd(encoder), sgd(decoder)
    decoder(encoder(batch())).sum().backward()
    first.step()
    assert journal.observer.counter.provisional
    second.step()
    assert journal.changes == ["begin 0", "end 0", "begin 1", "leave 1", "begin 0", "end 0", "begin 1"]
    encoder(batch())
    assert not journal.observer.counter.provisional


def test_graphs_are_named_and_ordered(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4), Decoder(4, 3)
    with torch.no_grad():
        decoder(encoder(batch()))
        encoder.eval()
        decoder(encoder(batch()))
        Encoder()(batch())
    assert journal.observer.graphs == [
        ("network-Encoder", True),
        ("network-Decoder", True),
        ("network-Encoder", False),
        ("network-Encoder", True),
    ]


def test_failing_forward_ends_nothing_and_the_next_goes_on(journal: Journal) -> None:
    network = Net().eval()
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            network(batch(columns=5))
        assert journal.observer.step == 0
        assert journal.observer.current().scope == "Default"
        network(batch())
    assert journal.forwards == [(0, 0), (0, 0)]
    assert journal.observer.step == 1


def test_interrupted_forward_leaves_the_scope(journal: Journal) -> None:
    class Interrupted(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nn.Sequential(Net(), Interrupted())(batch())
    assert journal.observer.current().scope == "Default"
    assert journal.observer.current().root is None


def test_failing_optimizer_ends_nothing_and_its_scope_is_left(journal: Journal) -> None:
    network = Net()
    optimizer = FailingOnce(network.parameters(), lr=0.1)
    network(batch()).sum().backward()
    with pytest.raises(FloatingPointError):
        optimizer.step()
    assert journal.observer.step == 0
    optimizer.step()
    assert journal.observer.step == 1
    network(batch()).sum().backward()
    assert journal.observer.current().scope == "Default"
    assert journal.observer.current().phase == "forward"
    assert journal.updates == [(0, 0)]


def test_optimizer_that_steps_another_is_one_step(journal: Journal) -> None:
    class Lookahead(Optimizer):
        def __init__(self, inner: Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Any = None) -> Any:
            self.inner.step()
            return self.inner.step()

    network = Net()
    optimizer = Lookahead(sgd(network))
    for _ in range(2):
        network(batch()).sum().backward()
        optimizer.step()
    assert journal.updates == [(0, 0), (1, 0)]
    assert journal.changes == ["begin 0", "end 0", "begin 1", "end 1", "begin 2"]


def test_closures_of_other_optimizers_count_every_call(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    phases = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        phases.append((journal.observer.current().phase, journal.observer.current().scope))
        loss: torch.Tensor = network(batch()).sum()
        loss.backward()
        return loss

    for closure_argument in ({"closure": closure}, {"closure": closure}):
        optimizer.step(**closure_argument)
    optimizer.step(closure)
    assert journal.forwards == [(0, 0), (1, 0), (2, 0)]
    assert journal.observer.step == 3
    assert phases == [("forward", "Default")] * 3


def test_scheduler_and_optimizer_made_before_the_observer_are_seen() -> None:
    network = Net()
    optimizer = sgd(network)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    journal = Journal()
    with journal.observer:
        network(batch()).sum().backward()
        optimizer.step()
        scheduler.step()
    assert journal.observer.step == 1


def test_disabled_scaler_counts_as_the_plain_loop(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.update()
    for _ in range(2):
        scaler.scale(network(batch()).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert journal.forwards == [(0, 0), (1, 0)]
    assert journal.observer.step == 2


def test_update_of_a_class_derived_from_the_scaler_is_seen() -> None:
    class Scaler(torch.amp.GradScaler):
        def update(self, new_scale: Any = None) -> None:
            super().update(new_scale)

    network = Net()
    optimizer = sgd(network)
    scaler = Scaler("cpu", init_scale=4.0)
    journal = Journal()
    with journal.observer:
        scaler.scale(network(batch()).sum() * float("inf")).backward()
        scaler.step(optimizer)
        scaler.update()
    assert (journal.updates, journal.observer.step) == ([], 1)


class Squares(Dataset[torch.Tensor]):
    """Runs a module in the process that loads the data, as transforms that are modules do."""

    def __init__(self) -> None:
        self.transform = nn.Sequential(nn.Identity(), nn.ReLU())

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        out: torch.Tensor = self.transform(torch.full((3,), float(index)))
        return out


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_move_nothing(journal: Journal, workers: int) -> None:
    network = Net().eval()
    with torch.no_grad():
        for data in DataLoader(Squares(), batch_size=2, num_workers=workers):
            network(data)
    assert journal.forwards == [(0, 0), (1, 0)]
    assert journal.observer.graphs == [("network-Net", False)]
