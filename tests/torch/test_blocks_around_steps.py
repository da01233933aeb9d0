"""Steps that begin or end inside a block that sets a state of the thread: inference mode, a device, a mode of the program."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import opdump


class Onlooker(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


BLOCKS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "inference mode": torch.inference_mode,
    "no inference mode": lambda: torch.inference_mode(mode=False),
    "guard of inference mode": lambda: torch._C._InferenceMode(True),
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("cpu"),
    "function mode": Onlooker,
    "dispatch mode": lambda: FlopCounterMode(display=False),
    "saved tensors": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
}


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Any:
    yield
    assert _keys() == (0, False, False)


def _keys() -> tuple[int, bool, bool]:
    included = torch._C._dispatch_tls_is_dispatch_key_included
    return torch._C._len_torch_dispatch_stack(), included("Python"), included("PythonTLSSnapshot")


def run(block: AbstractContextManager[Any], step: Callable[[], None]) -> list[Tensor]:
    """Three steps; the block contains the end of the first, the second, and the beginning of the third."""
    x = torch.linspace(-1, 1, 9).reshape(3, 3)
    found = [x.exp()]
    with block:
        found.append(x @ x)
        step()
        found.append(x.cos())
        step()
        found.append(x.sin())
    found.append(x.tanh())
    step()
    return [each.float().clone() for each in found]


@pytest.mark.parametrize("iteration", ["0", "1", "2", "0-1", "all"])
@pytest.mark.parametrize("name", BLOCKS)
def test_steps_begin_and_end_inside_a_block(name: str, iteration: str, tmp_path: Path) -> None:
    expected = run(BLOCKS[name](), lambda: None)
    with opdump.capture(path=tmp_path, iteration=iteration, saved_data="statistic") as dump:
        captured = run(BLOCKS[name](), dump.step)
    assert all(map(torch.equal, captured, expected))
    ran = [op for op in opdump.open(tmp_path).ops() if op.op_type in {"exp", "cos", "sin", "tanh"}]
    inside = {0: ["exp"], 1: ["cos"], 2: ["sin", "tanh"]}
    numbers = {"0-1": [0, 1], "all": [0, 1, 2]}.get(iteration) or [int(iteration)]
    assert [(op.step, op.op_type) for op in ran] == [(number, kind) for number in numbers for kind in inside[number]]


def test_a_capture_ends_inside_a_block_that_began_in_it(tmp_path: Path) -> None:
    x = torch.ones(3)
    with ExitStack() as block:
        with opdump.capture(path=tmp_path):
            block.enter_context(torch.inference_mode())
            x.exp()
        x.exp()
    assert x.exp().requires_grad is False


def test_a_capture_begins_inside_a_block_and_goes_on_behind_it(tmp_path: Path) -> None:
    x = torch.ones(3)
    with ExitStack() as capture:
        with torch.inference_mode():
            capture.enter_context(opdump.capture(path=tmp_path))
            x.exp()
        x.cos()
    assert [op.op_type for op in opdump.open(tmp_path).ops()] == ["exp", "cos"]


@pytest.mark.parametrize("iteration", ["0", "1"])
def test_a_function_is_decorated(iteration: str, tmp_path: Path) -> None:
    network = nn.Linear(3, 3)

    @torch.inference_mode()
    def answered(step: Callable[[], None]) -> list[Tensor]:
        return [_stepped(network(torch.ones(3)) * number, step) for number in range(2)]

    expected = answered(lambda: None)
    with opdump.capture(path=tmp_path, iteration=iteration) as dump:
        captured = answered(dump.step)
        assert network(torch.ones(3)).requires_grad
    assert all(map(torch.equal, captured, expected))


def test_a_block_of_another_thread_is_that_threads(tmp_path: Path) -> None:
    x = torch.ones(3)
    seen: list[tuple[int, bool, bool]] = []

    def work() -> None:
        with torch.inference_mode():
            x.exp()
        x.cos()
        seen.append(_keys())

    with opdump.capture(path=tmp_path, iteration="0") as dump:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        dump.step()
        late = threading.Thread(target=work)
        late.start()
        late.join()
    assert [op.op_type for op in opdump.open(tmp_path).ops()] == ["exp", "cos"]
    assert all(depth > 0 or not any(keys) for depth, *keys in seen)


def test_a_compiled_function_with_a_block_inside_is_not_compiled_again(tmp_path: Path) -> None:
    def function(x: Tensor) -> Tensor:
        with torch.inference_mode():
            inside = x.exp()
            torch._dynamo.graph_break()
            inside = inside * 2
        return inside + x

    compiled = torch.compile(function, backend="eager")
    expected = compiled(torch.ones(3))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with opdump.capture(path=tmp_path, iteration="1") as dump:
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(3)), expected)
            dump.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def _stepped(value: Tensor, step: Callable[[], None]) -> Tensor:
    step()
    return value


class Tan(nn.Module):
    """A network: operators in it do not belong to an earlier step."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.tan() + self.shift


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Callable[[], None]) -> Tensor:
        ctx.step = step
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.step()
        return gradients[0] * 2, None


def in_a_hook_of_a_tensor(x: Tensor, step: Callable[[], None]) -> Tensor:
    doubled = x * 2
    doubled.register_hook(lambda gradient: step())
    return doubled


def in_a_hook_of_a_parameter(x: Tensor, step: Callable[[], None]) -> Tensor:
    x.register_post_accumulate_grad_hook(lambda parameter: step())
    return x * 2


def in_a_backward_of_the_programs(x: Tensor, step: Callable[[], None]) -> Tensor:
    doubled: Tensor = Doubled.apply(x, step)  # type: ignore[no-untyped-call]  # PyTorch's
    return doubled


def in_a_recomputation(x: Tensor, step: Callable[[], None]) -> Tensor:
    times: list[int] = []

    def forward(x: Tensor) -> Tensor:
        times.append(1)
        if len(times) > 1:
            step()
        return (x * 2).exp()

    recomputed: Tensor = checkpoint(forward, x, use_reentrant=False)
    return recomputed


@pytest.mark.parametrize("iteration", ["0", "1", "all"])
@pytest.mark.parametrize(
    "where", [in_a_hook_of_a_tensor, in_a_hook_of_a_parameter, in_a_backward_of_the_programs, in_a_recomputation]
)
def test_a_step_ends_inside_of_a_backward(where: Callable[..., Tensor], iteration: str, tmp_path: Path) -> None:
    """The autograd engine restores the modes that the thread had when the backward began."""

    def run(step: Callable[[], None]) -> list[Tensor]:
        x = torch.linspace(-1, 1, 3).requires_grad_()
        where(x, step).exp().sum().backward()
        return [Tan()(x.detach()).detach(), x.grad if x.grad is not None else x]

    expected = run(lambda: None)
    with opdump.capture(path=tmp_path, iteration=iteration) as dump:
        captured = run(dump.step)
        assert _keys()[0] == (0 if iteration == "0" else 1)
    assert all(map(torch.equal, captured, expected))
    kernels = [(op.step, op.op_type) for op in opdump.open(tmp_path).ops() if op.op_type in {"linspace", "tan"}]
    assert kernels == [*([] if iteration == "1" else [(0, "linspace")]), *([] if iteration == "0" else [(1, "tan")])]


def test_a_capture_ends_inside_of_a_backward(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    with ExitStack() as capture:
        capture.enter_context(opdump.capture(path=tmp_path))
        doubled = x * 2
        doubled.register_hook(lambda gradient: capture.close())
        doubled.exp().sum().backward()
        assert _keys() == (0, False, False)


@pytest.mark.parametrize("iteration", ["all", "1"])
def test_the_rest_of_a_backward_belongs_to_the_step_that_its_hook_began(iteration: str, tmp_path: Path) -> None:
    """The engine runs each node with the modes from when the backward began, and a hook belongs to its node (docs/steps.md)."""
    with opdump.capture(path=tmp_path, iteration=iteration) as dump:
        inner = torch.linspace(0, 1, 3).requires_grad_().tan()
        outer = inner.sin()
        outer.register_hook(lambda gradient: dump.step())
        outer.exp().sum().backward()
    rest = [op.op_type for op in opdump.open(tmp_path).ops() if op.step == 1]
    of_sin, of_tan = ["cos", "mul"], ["pow", "add", "mul"]
    assert rest == [*of_sin, *(of_tan if iteration == "all" else [])]
