"""Modes and tensor subclasses of the program see only calls of the program: the same calls, in the same order, with and without capture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import opdump
from opdump.plan import DumpPlan
from tests.torch.releases import COMPILES_UNDER_MODES_OF_THE_PROGRAM, no_default_device

OWN = str(Path(opdump.__file__).parent)
Program = Callable[[], list[Tensor]]


def plans(path: Path) -> dict[str, DumpPlan]:
    """A plan for each way to capture."""
    acl = partial(DumpPlan, layout="acl", path=path)
    return {
        "statistics": DumpPlan(path=path),
        "full": DumpPlan(path=path, saved_data="full", statistic_category=("max", "l2norm", "md5")),
        "sample": DumpPlan(path=path, saved_data="full", sample_num=3),
        "overflow": DumpPlan(path=path, captures="overflow"),
        "exception": DumpPlan(path=path, captures="exception"),
        "acl op": acl(dump_level="op"),
        "acl kernel": acl(dump_level="kernel"),
        "acl all": acl(dump_level="all", saved_data="full"),
        "acl overflow": acl(captures="overflow"),
        "marked": DumpPlan(path=path, selection="marked"),
    }


@contextmanager
def watching(path: Path) -> Iterator[None]:
    watched = torch.ones(3)
    with opdump.capture(path=path, watch={"watched": watched}):
        yield


def capture(way: str, path: Path) -> AbstractContextManager[Any]:
    if way == "watch":
        return watching(path)
    return opdump.capture(plans(path)[way])


WAYS = (*plans(Path("unused")), "watch")


class Calls(TorchFunctionMode):
    """Records every call, and fails at calls that opdump makes."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = sys._getframe(1).f_code
        name = f"{resolve_name(func) or func}"
        # Calls that opdump passes on: those of a module or of another mode of the program.
        if caller.co_name not in ("call", "module_call", "<lambda>", "__torch_function__"):
            assert not caller.co_filename.startswith(OWN), f"{caller} calls {name}"
        self.log.append(name)
        return func(*args, **(kwargs or {}))


class Logged(Tensor):
    """A subclass that records the calls on its tensors."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(f"{resolve_name(func) or func}")
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Wrapped(Tensor):
    """A subclass that wraps a tensor and dispatches its operators itself."""

    seen: ClassVar[list[str]] = []
    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:  # noqa: PYI034
        made: Wrapped = Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad
        )
        made.held = inner.detach()
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(str(func))

        def unwrapped(value: Any) -> Any:
            return value.held if isinstance(value, Wrapped) else value

        args, kwargs = torch.utils._pytree.tree_map(unwrapped, (args, kwargs or {}))
        result = func(*args, **kwargs)
        return torch.utils._pytree.tree_map(lambda value: cls(value) if isinstance(value, Tensor) else value, result)


class Operators(TorchDispatchMode):
    """Records every operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.log.append(str(func))
        return func(*args, **(kwargs or {}))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 3, padding=1)
        self.norm = nn.BatchNorm1d(3)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x, _ = self.lstm(x)
        x = checkpoint(lambda y: (y * 2).clamp(-1, 1).prod(1), x, use_reentrant=False)
        x = self.out(x)
        gates, others = x[:, :1], x[:, 1:]
        gates.sigmoid_()
        return torch.cat([gates, others.abs().max().expand_as(others)], 1) @ torch.ones(2, 2)


def train(**optimizer: Any) -> Program:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        network = Network()
        handles = [part.register_forward_hook(lambda m, given, result: None) for part in network.modules()]
        network.out.weight.register_hook(lambda gradient: gradient * 0.5)
        network.conv.weight.register_post_accumulate_grad_hook(lambda parameter: None)
        adam = torch.optim.Adam(network.parameters(), lr=0.01, **optimizer)
        data = [torch.randn(2, 4) for _ in range(4)]
        for batch in DataLoader(data, batch_size=2):  # type: ignore[arg-type]
            adam.zero_grad()
            loss = nn.functional.mse_loss(network(batch), torch.zeros(2, 2))
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            adam.step()
            loss.item()
        for handle in handles:
            handle.remove()
        with torch.no_grad():
            network.eval()(data[0][None])
        return list(network.parameters())

    return run


def operators() -> list[Tensor]:
    """Operators that run outside the mode, operators whose tensors are read in a special way, and an operator that fails."""
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    found = [torch.linalg.svdvals(x), torch.linalg.matrix_rank(x).float(), x.to_sparse().to_dense()]
    found.append(torch.view_as_real(torch.fft.fft(x).conj().resolve_conj()))
    found.append(torch.randn(2, 1, 3) @ torch.randn(1, 3, 3))
    found.append(x.to(torch.float8_e4m3fn).to(torch.float32))
    torch._foreach_mul_(found[:1], 2.0)
    leaf = x.clone().requires_grad_()
    (leaf.cumprod(0).sum() + leaf.max() + leaf.masked_fill(x > 0, leaf[0, 0]).median()).backward()
    assert leaf.grad is not None
    with torch.inference_mode():
        found.append((x @ x).cumsum(0))
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError:
        found.append(leaf.grad)
    return [each.clone() for each in found]


PROGRAMS: dict[str, Program] = {
    "training": train(),
    "training foreach": train(foreach=True),
    "operators": operators,
}


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    with torch._C.DisableTorchFunction():
        return all(torch.equal(left, right) for left, right in zip(one, other, strict=True))


@pytest.mark.sampled(3, each="program")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_a_function_mode_of_the_program_sees_only_the_program(way: str, program: str, tmp_path: Path) -> None:
    run = PROGRAMS[program]
    run()  # what PyTorch does only the first time
    with Calls() as plain:
        expected = run()
    with capture(way, tmp_path / "inside"), Calls() as inside:
        captured = run()
    assert inside.log == plain.log
    assert same(captured, expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_function_mode_around_the_capture_sees_only_the_program(way: str, tmp_path: Path) -> None:
    run = PROGRAMS["training"]
    run()
    with Calls() as plain:
        if way == "watch":
            torch.ones(3)  # `capture` makes this tensor as a part of the program
        run()
    with Calls() as around, capture(way, tmp_path):
        run()
    assert around.log == plain.log


@pytest.mark.parametrize("way", WAYS)
def test_a_default_device_of_the_program_does_not_apply_to_opdump(way: str, tmp_path: Path) -> None:
    def run() -> list[Tensor]:
        with torch.device("meta"):
            shapes = torch.empty(3) + 1
        with torch.device("cpu"):
            return [*PROGRAMS["training"](), torch.zeros(shapes.shape)]

    expected = run()
    torch.set_default_device("cpu")
    try:
        with capture(way, tmp_path):
            captured = run()
    finally:
        no_default_device()
    assert same(captured, expected)


def test_tensors_of_opdump_are_not_made_on_the_default_device_of_the_program(tmp_path: Path) -> None:
    """To read sparse tensors and dtypes that numpy lacks, opdump makes dense copies."""

    def run() -> Tensor:
        x = torch.arange(6, dtype=torch.float32, device="cpu")
        with torch.device("meta"):
            return (x.to(torch.float8_e4m3fn).to(torch.float32) * 2).to_sparse()

    expected = run()
    with opdump.capture(path=tmp_path, saved_data="full"):
        captured = run()
    assert torch.equal(captured.to_dense(), expected.to_dense())
    tensors = [tensor for each in opdump.open(tmp_path).executions() for tensor in each.outputs.values()]
    assert "float8_e4m3fn" in {tensor.dtype for tensor in tensors}
    assert all(tensor.payload is not None for tensor in tensors), [tensor.name for tensor in tensors]


@pytest.mark.parametrize("way", WAYS)
def test_a_subclass_of_the_program_sees_only_the_program(way: str, tmp_path: Path) -> None:
    def run() -> list[str]:
        torch.manual_seed(0)
        Logged.seen.clear()
        first = nn.Linear(4, 4)
        first.weight = nn.Parameter(first.weight.detach().as_subclass(Logged))
        network = nn.Sequential(first, nn.BatchNorm1d(4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            x = torch.randn(3, 4).as_subclass(Logged).requires_grad_()
            loss = network(x).square().prod()
            loss.backward()
            torch.linalg.svdvals(x.detach())
            (x.detach()[None] @ torch.ones(1, 4, 4)).sum()
            optimizer.step()
            optimizer.zero_grad()
        return list(Logged.seen)

    run()
    plain = run()
    assert plain
    with capture(way, tmp_path):
        captured = run()
    assert captured == plain


@pytest.mark.parametrize("way", WAYS)
def test_a_wrapper_of_the_program_sees_only_the_program(way: str, tmp_path: Path) -> None:
    def run() -> list[str]:
        torch.manual_seed(0)
        Wrapped.seen.clear()
        linear = nn.Linear(4, 2)
        linear.weight = nn.Parameter(Wrapped(linear.weight.detach()))
        linear.bias = nn.Parameter(Wrapped(linear.bias.detach()))
        optimizer = torch.optim.SGD(linear.parameters(), lr=0.1, foreach=False)
        for _ in range(2):
            loss = linear(Wrapped(torch.randn(3, 4))).square().sum()
            loss.backward()
            torch.linalg.svdvals(Wrapped(torch.randn(3, 3)))
            optimizer.step()
            optimizer.zero_grad()
        return list(Wrapped.seen)

    run()
    plain = run()
    assert plain
    with capture(way, tmp_path):
        captured = run()
    assert captured == plain


@pytest.mark.xfail(reason="only the program can compute the shape of such a tensor", strict=True)
def test_a_wrapper_that_answers_for_its_sizes_is_not_asked_for_them(tmp_path: Path) -> None:
    class Sized(Wrapped):
        @staticmethod
        def __new__(cls, inner: Tensor) -> Sized:  # noqa: PYI034
            made: Sized = Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, dispatch_sizes_strides_policy="sizes"
            )
            made.held = inner.detach()
            return made

    def run() -> list[str]:
        Wrapped.seen.clear()
        linear = nn.Linear(4, 2)
        linear.weight = nn.Parameter(Sized(linear.weight.detach()))
        linear(torch.ones(3, 4))
        return list(Wrapped.seen)

    plain = run()
    with opdump.capture(path=tmp_path):
        assert run() == plain


@pytest.mark.sampled(3, each="program")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_a_dispatch_mode_of_the_program_sees_only_the_program(way: str, program: str, tmp_path: Path) -> None:
    run = PROGRAMS[program]
    run()
    with Operators() as plain:
        expected = run()
    with capture(way, tmp_path), Operators() as inside:
        captured = run()
    assert inside.log == plain.log
    assert same(captured, expected)


@pytest.mark.parametrize("way", WAYS)
def test_a_dispatch_mode_around_the_capture_sees_only_the_program(way: str, tmp_path: Path) -> None:
    run = PROGRAMS["training"]
    run()
    with Operators() as plain:
        if way == "watch":
            torch.ones(3)
        run()
    with Operators() as around, capture(way, tmp_path):
        run()
    assert around.log == plain.log


def test_flops_are_counted_as_without_capture(tmp_path: Path) -> None:
    def run() -> Any:
        with FlopCounterMode(display=False) as counter:
            PROGRAMS["training"]()
        return counter.get_flop_counts()

    plain = run()
    with opdump.capture(path=tmp_path):
        assert run() == plain


def test_a_function_mode_around_a_module_keeps_its_place(tmp_path: Path) -> None:
    """If the program opens and closes a mode around modules, the end of the mode removes that mode."""
    linear = nn.Linear(2, 2)

    class Plain(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def stack() -> list[str]:
        return [type(mode).__name__ for mode in torch.overrides._get_current_function_mode_stack()]

    with opdump.capture(plans(tmp_path)["acl op"]):
        before = stack()
        with Plain():
            linear(torch.ones(1, 2))
            assert stack() == [*before, "Plain"]
        assert stack() == before
    assert "Plain" not in stack()


@COMPILES_UNDER_MODES_OF_THE_PROGRAM
def test_a_function_mode_sees_the_same_of_a_compiled_program(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    class Names(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.append(str(func))
            return func(*args, **(kwargs or {}))

    compiled = torch.compile(network, backend="aot_eager")

    def run() -> list[str]:
        log.clear()
        with Names():
            compiled(torch.ones(3, 4)).sum().backward()
        return list(log)

    log: list[str] = []
    compiled(torch.ones(3, 4)).sum().backward()
    plain = run()
    with opdump.capture(path=tmp_path):
        assert run() == plain
