"""Which iteration and which graph every part of a training program belongs to. The table of docs/steps.md, with real programs."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from opdump.adapters.torch.training import TrainingObserver
from opdump.adapters.torch.training_listener import SilentListener
from opdump.errors import CaptureStateError

Place = tuple[int, int]  # iteration, graph_id


class Journal(SilentListener):
    """Writes down where every forward of a network and every optimizer's step took place."""

    def __init__(self, **options: Any) -> None:
        self.forwards: list[Place] = []
        self.updates: list[Place] = []
        self.changes: list[str] = []
        self.observer = TrainingObserver(self, **options)

    def step_begins(self, step: int) -> None:
        assert self.observer.step == step
        self.changes.append(f"begin {step}")

    def step_ends(self, step: int, reopened: bool) -> None:
        assert self.observer.step == step
        self.changes.append(f"leave {step}" if reopened else f"end {step}")

    def root_call_begins(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], graph_id: int) -> None:
        assert graph_id == self.observer.graph_id
        self.forwards.append((self.observer.step, graph_id))

    def optimizer_ends(self, optimizer: Optimizer) -> None:
        self.updates.append((self.observer.step, self.observer.graph_id))


class Net(nn.Module):
    def __init__(self, inputs: int = 3, outputs: int = 2) -> None:
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)
        nn.init.constant_(self.fc.weight, 0.5)  # no dead unit: every gradient has a value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


class Encoder(Net):
    pass


class Decoder(Net):
    pass


def sgd(*networks: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD([parameter for network in networks for parameter in network.parameters()], lr=0.1)


def batch(columns: int = 3) -> torch.Tensor:
    return torch.ones(2, columns)


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal()
    with journal.observer:
        yield journal


def plain(journal: Journal) -> None:
    network, loss = Net(), nn.MSELoss()
    optimizer = sgd(network)
    for _ in range(3):
        optimizer.zero_grad()
        loss(network(batch()), torch.zeros(2, 2)).backward()
        optimizer.step()


def accumulation(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for micro_batch in range(8):
        network(batch()).sum().backward()
        if micro_batch % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def gan(journal: Journal) -> None:
    generator, discriminator = Encoder(3, 3), Decoder(3, 1)
    for_generator, for_discriminator = sgd(generator), sgd(discriminator)
    for _ in range(2):
        for_discriminator.zero_grad()
        discriminator(batch()).mean().backward()
        made = generator(batch())
        discriminator(made.detach()).mean().backward()
        for_discriminator.step()
        for_generator.zero_grad()
        discriminator(made).mean().backward()
        for_generator.step()


def gan_by_hand(journal: Journal) -> None:
    gan_loop = iter(_gan_loops())
    for _ in range(2):
        next(gan_loop)
        journal.observer.manual_step()


def _gan_loops() -> Iterator[None]:
    generator, discriminator = Encoder(3, 3), Decoder(3, 1)
    for_generator, for_discriminator = sgd(generator), sgd(discriminator)
    while True:
        made = generator(batch())
        discriminator(made.detach()).mean().backward()
        for_discriminator.step()
        discriminator(made).mean().backward()
        for_generator.step()
        yield


def lbfgs(journal: Journal) -> None:
    network = Net()
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=2, max_eval=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (network(batch()) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


def skipped_amp_step(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        out = network(batch()).sum()
        scaler.scale(out * float("inf") if step == 1 else out).backward()
        scaler.step(optimizer)
        scaler.update()


def validation_between(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for _ in range(2):
        network.train()
        network(batch()).sum().backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            network(batch())
            network(batch())


def validation_that_records_gradients(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for _ in range(2):
        network.train()
        network(batch()).sum().backward()
        optimizer.step()
        network.eval()
        network(batch())


def validation_first(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    network.eval()
    with torch.no_grad():
        network(batch())
        network(batch())
    network.train()
    for _ in range(2):
        network(batch()).sum().backward()
        optimizer.step()


def inference(journal: Journal) -> None:
    network = Net().eval()
    with torch.inference_mode():
        for _ in range(3):
            network(batch()).argmax()


def inference_that_records_gradients(journal: Journal) -> None:
    network = Net().eval()
    for _ in range(3):
        network(batch()).argmax()


def inference_in_training_mode(journal: Journal) -> None:
    network = Net()
    with torch.no_grad():
        for _ in range(3):
            network(batch())


def inference_of_gradients(journal: Journal) -> None:
    class Forces(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            place = x.detach().requires_grad_()
            return torch.autograd.grad(super().forward(place).sum(), place)[0]

    network = Forces().eval()
    for _ in range(3):
        network(batch())


def two_models(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4), Decoder(4, 3)
    optimizer = sgd(encoder, decoder)
    for _ in range(2):
        decoder(encoder(batch())).sum().backward()
        optimizer.step()


def two_models_inference(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4).eval(), Decoder(4, 3).eval()
    with torch.no_grad():
        for _ in range(2):
            decoder(encoder(batch()))


def frozen_teacher(journal: Journal) -> None:
    teacher, student = Encoder().eval(), Decoder()
    optimizer = sgd(student)
    for _ in range(2):
        with torch.no_grad():
            target = teacher(batch())
        functional.mse_loss(student(batch()), target).backward()
        optimizer.step()


def two_optimizers_in_a_row(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4), Decoder(4, 3)
    optimizers = [sgd(encoder), sgd(decoder)]
    for _ in range(2):
        decoder(encoder(batch())).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def two_losses_of_one_forward(journal: Journal) -> None:
    encoder, decoder = Encoder(), Decoder(2)
    first, second = sgd(encoder), sgd(decoder)
    for _ in range(2):
        hidden = encoder(batch())
        out = decoder(hidden.detach())
        hidden.sum().backward()
        first.step()
        out.sum().backward()
        second.step()


def manual_from_the_start(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for _ in range(2):
        for _ in range(2):
            network(batch()).sum().backward()
            optimizer.step()
        journal.observer.manual_step()


def manual_inference(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4).eval(), Decoder(4, 3).eval()
    with torch.no_grad():
        for _ in range(2):
            decoder(encoder(batch()))
            journal.observer.manual_step()


def no_modules(journal: Journal) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()


def no_modules_two_optimizers(journal: Journal) -> None:
    weight, bias = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([bias])]
    for _ in range(2):
        (weight * bias).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def gradients_by_hand(journal: Journal) -> None:
    weight = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.grad = weight.clone()
        optimizer.step()


def update_by_hand(journal: Journal) -> None:
    network = Net()
    for _ in range(3):
        for _ in range(2):
            network(batch()).sum().backward()
        with torch.no_grad():
            for parameter in network.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None


def dummy_optimizer_step(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    optimizer.step()  # as one does before torch.optim.lr_scheduler, to keep it quiet
    network(batch()).sum().backward()
    optimizer.step()


def learning_rate_scheduler(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        network(batch()).sum().backward()
        optimizer.step()
        scheduler.step()


def optimizer_in_backward(journal: Journal) -> None:
    network = Net()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in network.parameters()}
    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: optimizers[parameter].step())
    for _ in range(2):
        network(batch()).sum().backward()


def validation_in_training_mode(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for _ in range(2):
        network(batch()).sum().backward()
        optimizer.step()
        with torch.no_grad():
            network(batch())  # the same graph, the next iteration


# fmt: off
TABLE: dict[Callable[[Journal], None], tuple[list[Place], list[Place], int]] = {
    # the program                       where its forwards take place              where its optimizers do  iteration at the end
    plain:                             ([(0, 0), (1, 0), (2, 0)],                  [(0, 0), (1, 0), (2, 0)], 3),
    accumulation:                      ([(0, 0)] * 4 + [(1, 0)] * 4,               [(0, 0), (1, 0)], 2),
    gan:                               ([(0, 0), (0, 1), (0, 0), (1, 0), (2, 0), (2, 1), (2, 0), (3, 0)],
                                                                                   [(0, 0), (1, 0), (2, 0), (3, 0)], 4),
    gan_by_hand:                       ([(0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (2, 1)],
                                                                                   [(0, 1), (1, 1), (2, 1), (2, 1)], 3),
    lbfgs:                             ([(0, 0), (0, 0), (1, 0), (1, 0)],          [(0, 0), (1, 0)], 2),
    skipped_amp_step:                  ([(0, 0), (1, 0), (2, 0)],                  [(0, 0), (2, 0)], 3),
    validation_between:                ([(0, 0), (1, 1), (1, 1), (1, 0), (2, 1), (2, 1)],
                                                                                   [(0, 0), (1, 0)], 2),
    validation_that_records_gradients: ([(0, 0), (1, 1), (1, 0), (2, 1)],          [(0, 0), (1, 0)], 2),
    validation_first:                  ([(0, 0), (1, 0), (0, 1), (1, 1)],          [(0, 1), (1, 1)], 2),
    validation_in_training_mode:       ([(0, 0), (1, 0), (1, 0), (2, 0)],          [(0, 0), (1, 0)], 2),
    inference:                         ([(0, 0), (1, 0), (2, 0)],                  [], 3),
    inference_that_records_gradients:  ([(0, 0), (1, 0), (2, 0)],                  [], 2),
    inference_in_training_mode:        ([(0, 0), (1, 0), (2, 0)],                  [], 3),
    inference_of_gradients:            ([(0, 0), (1, 0), (2, 0)],                  [], 2),
    two_models:                        ([(0, 0), (0, 1), (1, 0), (1, 1)],          [(0, 1), (1, 1)], 2),
    two_models_inference:              ([(0, 0), (1, 1), (2, 0), (3, 1)],          [], 4),
    frozen_teacher:                    ([(0, 0), (0, 1), (1, 0), (1, 1)],          [(0, 1), (1, 1)], 2),
    two_optimizers_in_a_row:           ([(0, 0), (0, 1), (1, 0), (1, 1)],          [(0, 1), (0, 1), (1, 1), (1, 1)], 2),
    two_losses_of_one_forward:         ([(0, 0), (0, 1), (1, 0), (1, 1)],          [(0, 1), (0, 1), (1, 1), (1, 1)], 2),
    manual_inference:                  ([(0, 0), (1, 1), (2, 0), (2, 1)],          [], 3),
    no_modules:                        ([],                                        [(0, 0), (1, 0), (2, 0)], 3),
    no_modules_two_optimizers:         ([],                                        [(0, 0), (0, 0), (1, 0), (1, 0)], 2),
    gradients_by_hand:                 ([],                                        [(0, 0), (1, 0), (2, 0)], 3),
    update_by_hand:                    ([(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0)], [], 2),
    dummy_optimizer_step:              ([(0, 0)],                                  [(0, 0), (0, 0)], 1),
    learning_rate_scheduler:           ([(0, 0), (1, 0)],                          [(0, 0), (1, 0)], 2),
    optimizer_in_backward:             ([(0, 0), (1, 0)],                          [(0, 0), (0, 0), (1, 0), (1, 0)], 2),
}
# fmt: on


@pytest.mark.parametrize("program", TABLE, ids=lambda program: program.__name__)
def test_iterations_and_graphs_are_counted_as_the_table_says(program: Callable[[Journal], None]) -> None:
    forwards, updates, last = TABLE[program]
    journal = Journal()
    with journal.observer:
        program(journal)
    assert (journal.forwards, journal.updates, journal.observer.step) == (forwards, updates, last)


@pytest.mark.parametrize("program", TABLE, ids=lambda program: program.__name__)
def test_every_iteration_that_is_left_was_begun(program: Callable[[Journal], None]) -> None:
    journal = Journal()
    with journal.observer:
        program(journal)
    begins, leaves = journal.changes[::2], journal.changes[1::2]
    assert all(change.startswith("begin ") for change in begins)
    assert [change.split()[1] for change in leaves] == [change.split()[1] for change in begins[:-1]]


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


def test_manual_steps_from_the_start_count_nothing_else() -> None:
    journal = Journal(steps="manual")
    with journal.observer:
        manual_from_the_start(journal)
    assert journal.forwards == [(0, 0), (0, 0), (1, 0), (1, 0)]
    assert journal.observer.step == 2
    assert journal.changes == ["begin 0", "end 0", "begin 1", "end 1", "begin 2"]


def test_gan_counts_one_iteration_per_loop_with_manual_steps() -> None:
    journal = Journal(steps="manual")
    with journal.observer:
        gan_by_hand(journal)
    assert [step for step, _ in journal.forwards] == [0, 0, 0, 1, 1, 1]


def test_step_right_after_the_optimizer_is_the_same_end(journal: Journal) -> None:
    network = Net()
    optimizer = sgd(network)
    for _ in range(3):
        network(batch()).sum().backward()
        optimizer.step()
        journal.observer.manual_step()
    assert journal.forwards == [(0, 0), (1, 0), (2, 0)]


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


def test_second_optimizer_opens_the_iteration_again(journal: Journal) -> None:
    encoder, decoder = Encoder(3, 4), Decoder(4, 3)
    first, second = sgd(encoder), sgd(decoder)
    decoder(encoder(batch())).sum().backward()
    first.step()
    assert journal.observer.provisional
    second.step()
    assert journal.changes == ["begin 0", "end 0", "begin 1", "leave 1", "begin 0", "end 0", "begin 1"]
    encoder(batch())
    assert not journal.observer.provisional


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
        assert journal.observer.scope == "Default"
        network(batch())
    assert journal.forwards == [(0, 0), (0, 0)]
    assert journal.observer.step == 1


def test_interrupted_forward_leaves_the_scope(journal: Journal) -> None:
    class Interrupted(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        nn.Sequential(Net(), Interrupted())(batch())
    assert journal.observer.scope == "Default"
    assert journal.observer.current().root is None


class FailingOnce(torch.optim.SGD):
    failures = 1

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        if self.failures:
            self.failures -= 1
            raise FloatingPointError("as if a check of the user failed")


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
    assert journal.observer.scope == "Default"
    assert journal.observer.phase == "forward"
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
        phases.append((journal.observer.phase, journal.observer.scope))
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
    """Runs a module in whatever loads it, as transforms that are modules do."""

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


def test_threads_have_their_own_scope_and_share_the_counter(journal: Journal) -> None:
    inside, go_on = threading.Event(), threading.Event()
    seen: list[tuple[str, int]] = []

    class Waiting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert go_on.wait(20)
            seen.append((journal.observer.scope, journal.observer.graph_id))
            return x

    def serve() -> None:
        with torch.no_grad():
            Waiting().eval()(batch())

    thread = threading.Thread(target=serve)
    thread.start()
    assert inside.wait(20)
    assert journal.observer.scope == "Default"
    with torch.no_grad():
        Net().eval()(batch())
    go_on.set()
    thread.join()
    assert seen == [("Default/network-Waiting", 0)]
    assert journal.forwards == [(0, 0), (0, 1)]
    assert journal.observer.step == 2


def test_a_forked_process_tells_the_listener_nothing(journal: Journal) -> None:
    network = Net().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: the process has threads, as a loader's has
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
            calls.append(journal.observer.call_id)
            return super().step(closure)

    optimizer = Recorded(network.parameters(), lr=0.1)
    network.fc.register_forward_hook(lambda *_: calls.append(journal.observer.call_id))
    for _ in range(2):
        out = network(batch())
        loss = out.sum()
        calls.append(journal.observer.call_id)
        loss.backward()
        optimizer.step()
        calls.append(journal.observer.call_id)
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
        module._has_any_global_hook(),
    )


class _Stop(Exception):  # noqa: N818 -- leaves a block, reports nothing
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
    class Full(SilentListener):
        def step_begins(self, step: int) -> None:
            raise OSError("disk full")

    before = _hooks()
    with pytest.raises(OSError, match="disk full"):
        TrainingObserver(Full()).attach()
    assert _hooks() == before


def test_a_failing_listener_reaches_the_program_and_leaves_the_scope() -> None:
    class Full(SilentListener):
        def root_call_begins(self, *_: object) -> None:
            raise OSError("disk full")

    with TrainingObserver(Full()) as observer:
        with pytest.raises(OSError, match="disk full"):
            Net()(batch())
        assert observer.scope == "Default"
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
    assert observer.scope == "Default"


def test_a_wrapper_that_somebody_put_around_ours_does_nothing_after_detach(monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal()
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)  # puts the original back at the end
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
