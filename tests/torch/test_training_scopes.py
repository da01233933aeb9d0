"""The module, optimizer and phase that an operator belongs to, also in recomputations, marked modules, wrappers and compiled modules."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from opdump.adapters.program_marks import MarkError
from opdump.adapters.torch.scopes import DumpSelection
from opdump.adapters.torch.training import TrainingListener, TrainingObserver
from tests.torch.operator_places import Block, Net, Places, Saving, Sine, batch, sines

pytestmark = pytest.mark.torch


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


def marks_of(*targets: object) -> DumpSelection:
    marks = DumpSelection()
    for target in targets:
        marks.program.set(target, enabled=True)
    return marks


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda network: [], [False, False, False, False]),
        (lambda network: [network], [True, True, True, True]),
        (lambda network: [network.first], [True, False, False, False]),
        (lambda network: [network.layers[1].sine], [False, False, True, False]),
        (lambda network: [network.layers], [False, True, True, False]),
        (lambda network: [Block], [True, True, True, False]),
        (lambda network: [Sine, Net], [True, True, True, True]),
        (lambda network: [nn.Module], [True, True, True, True]),
    ],
)
def test_marks_hold_inside_the_marked_modules(choose: Callable[[Net], list[object]], expected: list[bool]) -> None:
    network = Net()
    assert sines(lambda: network(batch()), marks=marks_of(*choose(network))).marked == expected


def test_the_innermost_mark_decides_and_marks_can_change() -> None:
    network = Net()
    marks = marks_of(network)
    with TrainingObserver(marks=marks) as observer, Places(observer, "sin") as places:
        marks.program.set(Block, enabled=False)
        network(batch())
        marks.program.set(network.layers[0], enabled=True)
        network(batch())
    assert places.marked == [False, False, False, True, False, True, False, True]
    assert observer.current().enclosing is None


@pytest.mark.parametrize("target", ["model", 3, Optimizer, torch.relu, Net().named_modules()])
def test_only_modules_their_classes_and_functions_can_be_marked(target: object) -> None:
    with pytest.raises(MarkError, match="module"):
        marks_of(target)


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda network: network, [True, True, True, True]),
        (type, [True, True, True, True]),
        (lambda network: network.blocks, [True, True, True, True]),
        (lambda network: network.blocks[0], [True, False, False, True]),
    ],
)
def test_marks_hold_during_recomputation(choose: Callable[[Saving], object], expected: list[bool]) -> None:
    network = Saving(reentrant=False)
    assert sines(lambda: network(batch()).sum().backward(), marks=marks_of(choose(network))).marked == expected


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
