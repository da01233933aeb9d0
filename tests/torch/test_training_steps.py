"""The iteration and the graph of every part of a training program, and what ends an iteration. Tests the table of docs/steps.md with real programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

import opdump
from opdump.plan import DumpPlan, StepSet
from tests.torch.training_journal import Decoder, Encoder, FailingOnce, Journal, Net, Place, batch, plain, sgd

pytestmark = pytest.mark.torch


@pytest.fixture
def journal() -> Iterator[Journal]:
    journal = Journal()
    with journal.observer:
        yield journal


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


def validation_first_that_records_gradients(journal: Journal) -> None:
    network = Net().eval()
    optimizer = sgd(network)
    network(batch())
    network(batch())
    network.train()
    for _ in range(2):
        network(batch()).sum().backward()
        optimizer.step()


class Task(torch.nn.Module):
    """A module with a method for each task of a trainer, like a LightningModule; the module itself is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(3, 4), Decoder(4, 3)
        self.loss = torch.nn.MSELoss()

    def training_step(self) -> torch.Tensor:
        loss: torch.Tensor = self.loss(self.decoder(self.encoder(batch())), torch.zeros(2, 3))
        return loss

    def validation_step(self) -> torch.Tensor:
        answer: torch.Tensor = self.encoder(batch())
        return answer


def trainer_of_a_module(journal: Journal) -> None:
    task = Task()
    optimizer = sgd(task)
    for epoch in range(3):
        task.eval()
        with torch.no_grad():
            task.validation_step()
        task.train()
        if epoch > 0:
            task.training_step().backward()
            optimizer.step()


def rollouts_before_updates(journal: Journal) -> None:
    policy, target = Encoder(), Decoder()
    optimizer = sgd(policy)
    for _ in range(2):
        with torch.no_grad():
            for _ in range(2):
                policy(batch())
            wanted = target(batch())
        functional.mse_loss(policy(batch()), wanted).backward()
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
    optimizer.step()  # before torch.optim.lr_scheduler, to avoid its warning
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
    # the program                       its forwards                               its optimizer steps      iteration at the end
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
    validation_first:                  ([(0, 0), (1, 0), (2, 1), (3, 1)],          [(2, 1), (3, 1)], 4),
    validation_first_that_records_gradients:
                                       ([(0, 0), (1, 0), (2, 1), (3, 1)],          [(2, 1), (3, 1)], 4),
    trainer_of_a_module:               ([(0, 0), (1, 0), (2, 1), (2, 1), (3, 0), (3, 1), (3, 1)],
                                                                                   [(2, 1), (3, 1)], 4),
    rollouts_before_updates:           ([(0, 0), (1, 0), (2, 1), (2, 0), (3, 0), (3, 0), (3, 1), (3, 0)],
                                                                                   [(2, 0), (3, 0)], 4),
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


def _training(count: int) -> tuple[nn.Module, torch.Tensor]:
    network = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        loss = network(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
    return network, loss.detach()


def ends_with_numbers() -> None:
    """A number that is read after the last optimizer step belongs to that step."""
    _, loss = _training(3)
    str(float(loss * 2))


def ends_with_an_evaluation() -> None:
    """A network that runs after the last optimizer step is in a new step."""
    network, _ = _training(3)
    with torch.no_grad():
        network(torch.ones(2, 4))


def ends_with_a_forward() -> None:
    network, loss = _training(2)
    (network(torch.ones(2, 4)).sum() + loss).backward()


def evaluates_alone() -> None:
    network = nn.Linear(4, 3)
    with torch.no_grad():
        for _ in range(3):
            float(network(torch.ones(2, 4)).sum() * 2)


PROGRAMS: dict[Callable[[], None], tuple[int, ...]] = {
    ends_with_numbers: (0, 1, 2),
    ends_with_an_evaluation: (0, 1, 2, 3),
    ends_with_a_forward: (0, 1, 2),
    evaluates_alone: (0, 1, 2),
}
MODES: list[dict[str, Any]] = [
    {"saved_data": "full"},
    {"saved_data": "statistic"},
    {"captures": "exception"},
    {"captures": "overflow"},
    {"layout": "acl"},
    {"layout": "acl", "dump_level": "op"},
    {"layout": "acl", "dump_level": "all"},
    {"layout": "acl", "captures": "exception"},
    {"layout": "acl", "captures": "overflow"},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_has_the_same_steps_in_every_mode(
    program: Callable[[], None], mode: dict[str, Any], tmp_path: Path
) -> None:
    with opdump.capture(DumpPlan(path=tmp_path, **mode)) as dump:
        program()
    assert dump.report is not None
    assert dump.report.steps == PROGRAMS[program]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_selected_last_step_has_what_ran_after_its_optimizer(mode: dict[str, Any], tmp_path: Path) -> None:
    with opdump.capture(DumpPlan(path=tmp_path, steps=StepSet.of(2), **mode)) as dump:
        ends_with_numbers()
    assert dump.report is not None
    assert dump.report.steps == (2,)
