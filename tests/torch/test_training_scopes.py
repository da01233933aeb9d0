"""The module, optimizer and phase that an operator belongs to."""

from __future__ import annotations

import gc
import weakref
from threading import Thread

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from opdump.adapters.torch.training import TrainingObserver
from tests.torch.operator_places import Block, Net, Places, Sine, batch, sines


def test_a_scope_is_the_registered_path_with_class_names() -> None:
    network = Net()
    assert sines(lambda: network(batch())).scopes == [
        "Default/network-Net/first-Block/sine-Sine",
        "Default/network-Net/layers-ModuleList/0-Block/sine-Sine",
        "Default/network-Net/layers-ModuleList/1-Block/sine-Sine",
        "Default/network-Net",
    ]


def test_scopes_can_leave_class_names_out() -> None:
    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    with TrainingObserver(class_names=False) as observer:
        with Places(observer, "sin") as forward:
            network(batch()).sum().backward()
        with Places(observer, "add_") as update:
            optimizer.step()
    assert forward.scopes[0] == "Default/network/first/sine"
    assert forward.scopes[2] == "Default/network/layers/1/sine"
    assert set(update.scopes) == {"Default/optimizer"}
    assert observer.graphs == [("network", True)]


def test_a_module_registered_twice_has_its_first_path() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = Block()
            self.other = nn.ModuleDict({"again": self.one})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.other["again"](self.one(x))
            return out

    network = Twice()
    assert sines(lambda: network(batch())).scopes == ["Default/network-Twice/one-Block/sine-Sine"] * 2


def test_modules_made_on_the_fly_stand_below_their_caller() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Sine()(nn.Sequential(self.fc, Sine())(x))  # type: ignore[no-any-return]

    network = Careless()

    def twice() -> None:
        network(batch())
        network(batch())

    assert (
        sines(twice).scopes
        == [
            "Default/network-Careless/Sequential/1-Sine",
            "Default/network-Careless/Sine",
        ]
        * 2
    )


def test_an_unregistered_module_used_in_two_places_stands_below_each() -> None:
    activation = Sine()

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return activation(x)  # type: ignore[no-any-return]

    network = nn.Sequential(nn.Linear(3, 3), Inner(), Inner())
    assert sines(lambda: network(batch())).scopes == [
        "Default/network-Sequential/1-Inner/Sine",
        "Default/network-Sequential/2-Inner/Sine",
    ]


def test_a_teacher_hidden_in_a_list_keeps_its_own_paths_and_no_graph() -> None:
    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()
            self.teacher = [Net()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(x) - self.teacher[0](x)  # type: ignore[no-any-return]

    network = Student()
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        network(batch())
    assert places.scopes == [
        "Default/network-Student/block-Block/sine-Sine",
        "Default/network-Student/Net/first-Block/sine-Sine",
        "Default/network-Student/Net/layers-ModuleList/0-Block/sine-Sine",
        "Default/network-Student/Net/layers-ModuleList/1-Block/sine-Sine",
        "Default/network-Student/Net",
    ]
    assert observer.graphs == [("network-Student", True)]


def test_a_module_added_later_is_found() -> None:
    network = nn.Sequential(nn.Linear(3, 3))

    def grow() -> None:
        network(batch())
        network.append(Block())
        network(batch())

    assert sines(grow).scopes == ["Default/network-Sequential/1-Block/sine-Sine"]


def test_a_replaced_module_never_leaves_its_name_to_a_stranger() -> None:
    class Host(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.part: nn.Module | None = Sine()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            part = self.part if self.part is not None else Sine()
            return part(self.fc(x))  # type: ignore[no-any-return]

    network = Host()

    def replace() -> None:
        network(batch())
        network.part = None
        for _ in range(20):  # Python gives the memory of the dead module to a new one sooner or later.
            network(batch())

    assert sines(replace).scopes == ["Default/network-Host/part-Sine"] + ["Default/network-Host/Sine"] * 20


def test_a_slash_in_a_name_makes_no_level() -> None:
    network = nn.Sequential(nn.Linear(3, 3))
    network.add_module("a/b", Sine())
    assert sines(lambda: network(batch())).scopes == ["Default/network-Sequential/a_b-Sine"]


def test_parametrised_modules_are_found() -> None:
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Sine())
    assert sines(lambda: layer(batch())).scopes == [
        "Default/network-ParametrizedLinear/parametrizations-ModuleDict/weight-ParametrizationList/0-Sine"
    ]


def test_a_loss_is_no_graph_and_belongs_to_the_network_before_it() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(Sine())
            self.register_buffer("weight", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sum()  # type: ignore[no-any-return]

    network, loss = nn.Linear(3, 3), Loss()
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        loss(network(batch()))
        loss(network.eval()(batch()))
    assert places.scopes == ["Default/Loss/inner-Sequential/0-Sine"] * 2
    assert places.graphs == [0, 1]
    assert observer.graphs == [("network-Linear", True), ("network-Linear", False)]


def test_a_network_inside_a_module_without_parameters_is_a_network() -> None:
    class Trainer(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.hidden = [network]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.hidden[0](x).sin()  # type: ignore[no-any-return]

    trainer = Trainer(Block())
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        trainer(batch())
    assert places.scopes == ["Default/network-Block/sine-Sine", "Default/Trainer"]
    assert observer.graphs == [("network-Block", True)]


def test_a_part_called_alone_is_a_network_of_its_own() -> None:
    network = Net()
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        network(batch())
        network.first(batch())
    assert places.scopes[-1] == "Default/network-Block/sine-Sine"
    assert observer.graphs == [("network-Net", True), ("network-Block", True)]


class Task(nn.Module):
    """A trainer calls its methods; the module itself is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Block(), Net()
        self.loss = nn.Sequential(Sine())

    def training_step(self) -> torch.Tensor:
        out: torch.Tensor = self.loss(self.one(batch()) + self.other.first(batch()))
        return out

    def shared_step(self) -> torch.Tensor:
        gone = batch()
        self.seen = weakref.ref(gone)
        out: torch.Tensor = self.other(gone)
        del gone
        assert self.seen() is None
        return out

    def validation_step(self) -> torch.Tensor:
        return self.shared_step()


class Trainer:
    def __init__(self, task: Task) -> None:
        self.task = task

    def fit(self) -> None:
        self.task.eval().validation_step()
        self.task.train().training_step()
        self.task.training_step()


def test_parts_that_a_method_of_their_module_calls_belong_to_that_module() -> None:
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        Trainer(Task()).fit()
    of_net = ["first-Block/sine-Sine", "layers-ModuleList/0-Block/sine-Sine", "layers-ModuleList/1-Block/sine-Sine"]
    step = ["one-Block/sine-Sine", "other-Net/first-Block/sine-Sine", "loss-Sequential/0-Sine"]
    assert places.scopes == [
        *(f"Default/network-Task/other-Net/{name}" for name in of_net),
        "Default/network-Task/other-Net",
        *(f"Default/network-Task/{name}" for name in step * 2),
    ]
    assert places.graphs == [0] * 4 + [1] * 6
    assert observer.graphs == [("network-Task", False), ("network-Task", True)]


def test_a_task_within_another_module_and_a_compiled_part_of_it_belong_to_the_outermost() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.task = Task()
            self.task.one = torch.compile(self.task.one, backend="eager")  # type: ignore[assignment]

        def fit(self) -> None:
            self.task.training_step()

    with TrainingObserver() as observer:
        Outer().fit()
    assert observer.graphs == [("network-Outer", True)]


def test_what_a_wrapper_wraps_is_no_other_network_when_it_is_called_alone() -> None:
    inner = Block()
    network = nn.DataParallel(inner)
    with TrainingObserver() as observer, Places(observer, "sin") as places:
        network(batch())
        inner.eval()(batch())
    assert places.scopes == ["Default/network-DataParallel/module-Block/sine-Sine"] * 2
    assert observer.graphs == [("network-DataParallel", True), ("network-DataParallel", False)]


def test_the_search_for_the_enclosing_module_keeps_nothing_alive_and_leaves_locals_unchanged() -> None:
    class Saving(Task):
        def training_step(self) -> torch.Tensor:
            kept = locals()
            kept["note"] = "mine"
            out: torch.Tensor = self.one(batch())
            assert kept["note"] == "mine"
            assert kept["self"] is self
            return out

    task = Saving()
    with TrainingObserver() as observer:
        task.validation_step()  # asserts that what it released is gone
        task.training_step()
    assert observer.graphs == [("network-Saving", True)]


def test_operators_outside_have_the_graph_of_the_network_before_them() -> None:
    one, two = Block(), Net()

    def run() -> None:
        batch().sin()
        one(batch())
        two(batch())
        batch().sin()
        one(batch())
        batch().sin()

    places = sines(run)
    outside = [graph for scope, graph in zip(places.scopes, places.graphs, strict=True) if scope == "Default"]
    assert outside == [0, 1, 0]


def test_the_optimizer_has_its_own_scope_and_phase() -> None:
    network = Net()
    optimizer = torch.optim.AdamW(network.parameters(), foreach=True)
    with TrainingObserver() as observer, Places(observer, "_foreach_addcdiv_") as places:
        network(batch()).sum().backward()
        optimizer.step()
    assert set(places.scopes) == {"Default/optimizer-AdamW"}
    assert set(places.phases) == {"optimizer"}
    assert (observer.current().scope, observer.current().phase) == ("Default", "forward")


def test_what_a_closure_runs_is_forward() -> None:
    network = Block()
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = network(batch()).sin().sum()
        loss.backward()
        return loss

    places = sines(lambda: optimizer.step(closure))
    assert places.scopes == ["Default/network-Block/sine-Sine", "Default"]
    assert places.phases == ["forward", "forward"]
    assert places.calls[0] == places.calls[1]


def _replicate(module: nn.Module) -> nn.Module:
    """What `torch.nn.parallel.replicate` does, without a device to copy to."""
    replica: nn.Module = module._replicate_for_data_parallel()
    for name, child in module.named_children():
        setattr(replica, name, _replicate(child))
    for name, parameter in module.named_parameters(recurse=False):
        setattr(replica, name, parameter.detach())
    return replica


def test_replicas_in_threads_stand_below_the_module_that_made_them() -> None:
    network = nn.DataParallel(Net())
    replica = _replicate(network.module)
    with TrainingObserver() as observer, torch.no_grad():
        network(batch())
        scopes: list[str] = []
        replica.get_submodule("first.sine").register_forward_pre_hook(
            lambda *_: scopes.append(observer.current().scope)
        )
        thread = Thread(target=lambda: replica(batch()))
        thread.start()
        thread.join()
    assert observer.graphs == [("network-DataParallel", True)]
    assert scopes == ["Default/network-DataParallel/module-Net/first-Block/sine-Sine"]


def test_networks_are_listed_and_not_kept_alive() -> None:
    kept, lost = Net(), Net()
    with TrainingObserver() as observer:
        kept(batch())
        lost(batch())
        assert [(type(module).__name__, scopes.scope) for module, scopes in observer.networks] == [
            ("Net", "Default/network-Net"),
            ("Net", "Default/network-Net"),
        ]
        gone = weakref.ref(lost)
        del lost
        gc.collect()
        assert gone() is None
        assert [module for module, _ in observer.networks] == [kept]
        assert [name for name, _ in observer.graphs] == ["network-Net", "network-Net"]


def test_what_runs_before_the_first_network_is_in_graph_zero() -> None:
    with TrainingObserver() as observer:
        assert (observer.current().graph_id, observer.current().scope, observer.current().call_id) == (0, "Default", 0)
        assert observer.graphs == []


def test_functional_losses_are_outside() -> None:
    network = Block()
    with TrainingObserver() as observer, Places(observer, "mse_loss") as places:
        functional.mse_loss(network(batch()), batch())
    assert places.scopes == ["Default"]
    assert places.calls == [1]
