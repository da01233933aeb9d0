"""An observer of training from attach to detach changes nothing, leaves nothing behind, and keeps threads apart."""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from opdump.adapters.torch.training import TrainingListener, TrainingObserver
from opdump.errors import CaptureStateError
from tests.torch.training_journal import FailingOnce, Journal, Net, batch, plain, sgd


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal()
    with journal.observer:
        yield journal


def test_losses_gradients_and_parameters_are_the_same_with_an_observer() -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(network.parameters())
        seen = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(torch.randn(4, 3)), torch.tensor([0, 1, 1, 0]))
            loss.backward()
            seen += [
                loss.detach(),
                *(parameter.grad for parameter in network.parameters() if parameter.grad is not None),
            ]
            optimizer.step()
        return [*seen, *network.parameters(), torch.get_rng_state()]

    plain = train()
    with TrainingObserver():
        observed = train()
    assert all(torch.equal(first, second) for first, second in zip(plain, observed, strict=True))


def test_step_of_a_detached_observer_is_an_error() -> None:
    with pytest.raises(CaptureStateError, match="start"):
        TrainingObserver().manual_step()


def test_an_attached_observer_cannot_be_attached_again(journal: Journal) -> None:
    with pytest.raises(CaptureStateError, match="detach"):
        journal.observer.attach()


def test_iterations_can_start_elsewhere() -> None:
    journal = Journal(first_step=10)
    with journal.observer:
        plain(journal)
    assert journal.forwards == [(10, 0), (11, 0), (12, 0)]


def test_threads_have_their_own_scope_and_share_the_counter(journal: Journal) -> None:
    inside, go_on = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    class Waiting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert go_on.wait(20)
            seen.append((journal.observer.current().scope, journal.observer.current().graph_id))
            return x

    def serve() -> None:
        with torch.no_grad():
            Waiting().eval()(batch())

    thread = threading.Thread(target=serve)
    thread.start()
    assert inside.wait(20)
    assert journal.observer.current().scope == "Default"
    with torch.no_grad():
        Net().eval()(batch())
    go_on.set()
    thread.join()
    assert seen == [("Default/network-Waiting", 0)]
    assert journal.forwards == [(0, 0), (0, 1)]
    assert journal.observer.step == 2


def test_a_forked_process_does_not_notify_the_listener(journal: Journal) -> None:
    network = Net().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: the process has threads
        child = os.fork()
    if child == 0:
        with torch.no_grad():
            network(batch())
        os._exit(len(journal.forwards) + journal.observer.step)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_counted_while_suspended(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    with journal.observer.suspended():
        network(batch()).sum().backward()
        optimizer.step()
    assert (journal.forwards, journal.updates, journal.observer.step) == ([], [], 0)
    network(batch()).sum().backward()
    optimizer.step()
    assert (journal.forwards, journal.observer.step) == ([(0, 0)], 1)


def test_call_ids_grow_with_networks_and_optimizers_and_return_to_the_network(journal: Journal) -> None:
    network = Net()
    calls: list[int] = []

    class Recorded(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            calls.append(journal.observer.current().call_id)
            return super().step(closure)

    optimizer = Recorded(network.parameters(), lr=0.1)
    network.fc.register_forward_hook(lambda *_: calls.append(journal.observer.current().call_id))
    for _ in range(2):
        out = network(batch())
        loss = out.sum()
        calls.append(journal.observer.current().call_id)
        loss.backward()
        optimizer.step()
        calls.append(journal.observer.current().call_id)
    assert calls == [1, 1, 2, 1, 3, 3, 4, 3]


def _hooks() -> tuple[object, ...]:
    from torch.nn.modules import module
    from torch.optim import optimizer

    return (
        nn.Module.__call__,
        nn.Module._call_impl,
        torch.autograd.__dict__["_engine_run_backward"],
        torch.amp.GradScaler.update,
        torch.cuda.amp.GradScaler.__dict__.get("update"),
        torch.utils.checkpoint.__dict__["_checkpoint_without_reentrant_generator"],
        torch.utils.checkpoint.CheckpointFunction.__dict__.get("apply"),
        list(optimizer._global_optimizer_pre_hooks.values()),
        list(optimizer._global_optimizer_post_hooks.values()),
        {name: len(hooks) for name, hooks in vars(module).items() if re.fullmatch("_global_.*hooks", name)},
    )


class _Stop(Exception):  # noqa: N818 -- leaves a block, does not report an error
    pass


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails: bool) -> None:
    network = Net()
    optimizer = FailingOnce(network.parameters(), lr=0.1)
    before = _hooks()
    with pytest.raises(_Stop) if fails else nullcontext(), TrainingObserver() as observer:
        assert _hooks() != before
        network(batch()).sum().backward()
        with pytest.raises(FloatingPointError):
            optimizer.step()
        observer.detach() if not fails else None
        if fails:
            raise _Stop
    assert _hooks() == before


def test_an_observer_whose_listener_fails_at_once_is_not_left_attached() -> None:
    class Full(TrainingListener):
        def step_begins(self, step: int) -> None:
            raise OSError("disk full")

    before = _hooks()
    with pytest.raises(OSError, match="disk full"):
        TrainingObserver(Full()).attach()
    assert _hooks() == before


def test_a_failing_listener_reaches_the_program_and_leaves_the_scope() -> None:
    class Full(TrainingListener):
        def root_call_begins(self, *_: object) -> None:
            raise OSError("disk full")

    with TrainingObserver(Full()) as observer:
        with pytest.raises(OSError, match="disk full"):
            Net()(batch())
        assert observer.current().scope == "Default"
        assert observer.current().root is None


def test_detaching_inside_a_forward_is_safe() -> None:
    observer = TrainingObserver()

    class Detaching(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            observer.detach()
            return super().forward(x)

    before = _hooks()
    observer.attach()
    Detaching()(batch())
    assert _hooks() == before
    assert observer.current().scope == "Default"


def test_a_wrapper_of_another_tool_around_ours_does_nothing_after_detach(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)  # restores the original at the end
    with journal.observer:
        ours = nn.Module.__call__

        def theirs(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return ours(module, *args, **kwargs)

        nn.Module.__call__ = theirs  # type: ignore[method-assign]
    Net()(batch())
    assert journal.forwards == []


def test_observers_inside_each_other_both_see_everything() -> None:
    outer, inner = Journal(), Journal()
    with outer.observer, inner.observer:
        plain(outer)
    assert outer.forwards == inner.forwards == [(0, 0), (1, 0), (2, 0)]
