"""Python code of the program that runs inside the autograd engine has its own lines first, then those of the forward operator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opdump
from opdump.records import OpRecord


class _Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _gradient(grad, x)


def _exp(x: Tensor) -> Tensor:
    found: Tensor = _Exp.apply(x)  # type: ignore[no-untyped-call]
    return found


def _gradient(grad: Tensor, x: Tensor) -> Tensor:
    return grad.cosh() * x.sinh()


GRADIENT = ["return grad.cosh() * x.sinh()", "return _gradient(grad, x)"]
FORWARD = ["return x.exp()", "found: Tensor = _Exp.apply(x)  # type: ignore[no-untyped-call]"]


def recorded(path: Path, program: Callable[[], object]) -> list[OpRecord]:
    with opdump.capture(path=path, saved_data="statistic"):
        program()
    return [each.op for each in opdump.open(path).ops()]


def lines(op: OpRecord) -> list[str]:
    """The code of its stack, up to the call in the test."""
    codes = [frame.code for frame in op.stack]
    return codes[: codes.index("program()")] if "program()" in codes else codes


def of_type(ops: list[OpRecord], op_type: str) -> list[OpRecord]:
    return [op for op in ops if op.op_type == op_type]


def test_a_backward_of_the_program_has_its_own_lines(tmp_path: Path) -> None:
    def program() -> None:
        _exp(torch.rand(3, requires_grad=True)).tanh().sum().backward()

    ops = recorded(tmp_path, program)
    call = ["_exp(torch.rand(3, requires_grad=True)).tanh().sum().backward()"]
    (cosh,) = of_type(ops, "cosh")
    assert lines(cosh) == [*GRADIENT, *FORWARD, *call]
    assert (cosh.phase, cosh.forward_op.partition("-")[0]) == ("backward", "Default/exp")
    assert cosh.op_name.startswith("Gradients/Default/cosh-op")
    (tanh,) = of_type(ops, "tanh_backward")
    assert lines(tanh) == call, "the engine runs it itself"


def test_hooks_have_their_own_lines(tmp_path: Path) -> None:
    def of_tensor(grad: Tensor) -> Tensor:
        return grad.tan()

    def of_parameter(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.atan()

    def of_module(_module: nn.Module, grads: tuple[Tensor, ...], _outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (grads[0].asinh(),)

    def program() -> None:
        net = nn.Linear(3, 3)
        net.register_full_backward_hook(of_module)
        if hasattr(net.weight, "register_post_accumulate_grad_hook"):
            net.weight.register_post_accumulate_grad_hook(of_parameter)
        x = torch.rand(2, 3, requires_grad=True).exp()
        x.register_hook(of_tensor)
        net(x).sum().backward()

    ops = recorded(tmp_path, program)
    (tensors,) = of_type(ops, "tan")
    assert lines(tensors) == ["return grad.tan()", "x = torch.rand(2, 3, requires_grad=True).exp()"]
    assert tensors.forward_op.partition("-")[0] == "Default/exp"
    (modules,) = of_type(ops, "asinh")
    assert lines(modules) == ["return (grads[0].asinh(),)", "net(x).sum().backward()"]
    for parameters in of_type(ops, "atan"):
        assert lines(parameters) == ["parameter.grad.atan()", "net(x).sum().backward()"]
    for linear in of_type(ops, "mm"):
        assert lines(linear) == ["net(x).sum().backward()"]


def test_the_gradient_of_a_gradient_has_the_lines_of_what_it_belongs_to(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.rand(3, requires_grad=True)
        y = _exp(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        first.sum().backward()

    ops = recorded(tmp_path, program)
    second = [op for op in ops if op.op_name.startswith("Gradients/Gradients/")]
    assert second
    for op in (*second, *of_type(ops, "sinh")):
        assert lines(op) == [*GRADIENT, *FORWARD, "y = _exp(x)"]


def test_a_backward_inside_a_hook_has_the_lines_that_run(tmp_path: Path) -> None:
    def hook(grad: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = torch.rand(3, requires_grad=True)
            outer = _exp(inner)
            outer.sum().backward()
        return grad

    def program() -> None:
        x = torch.rand(3, requires_grad=True).sigmoid()
        x.register_hook(hook)
        x.sum().backward()

    ops = recorded(tmp_path, program)
    (cosh,) = of_type(ops, "cosh")
    assert lines(cosh)[:3] == [*GRADIENT, "outer.sum().backward()"]
    (plain,) = of_type(ops, "sigmoid_backward")
    assert lines(plain) == ["x = torch.rand(3, requires_grad=True).sigmoid()"]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_a_checkpoint_runs_again_is_no_part_of_a_backward(use_reentrant: bool, tmp_path: Path) -> None:
    def body(x: Tensor) -> Tensor:
        return _exp(x.sin()).cos()

    def program() -> None:
        x = torch.rand(3, requires_grad=True)
        y = checkpoint(body, x, use_reentrant=use_reentrant)
        y.sum().backward()

    ops = recorded(tmp_path, program)
    again = [op for op in ops if op.phase == "recomputation" and op.op_type == "sin"]
    assert len(again) == 1
    assert lines(again[0])[0] == "return _exp(x.sin()).cos()"
    assert lines(again[0])[-1] == "y.sum().backward()"
    (cosh,) = of_type(ops, "cosh")
    assert lines(cosh)[:4] == [*GRADIENT, *FORWARD]
    (plain,) = [op for op in of_type(ops, "cos") if op.phase == "backward"]
    assert lines(plain)[0] == "return _exp(x.sin()).cos()"


def test_threads_that_run_a_backward(tmp_path: Path) -> None:
    def train() -> None:
        x = torch.rand(3, requires_grad=True)
        y = _exp(x)
        y.tanh().sum().backward()

    def program() -> None:
        for _ in range(2):
            thread = threading.Thread(target=train)
            thread.start()
            thread.join()

    ops = recorded(tmp_path, program)
    assert [lines(op)[:5] for op in of_type(ops, "cosh")] == [[*GRADIENT, *FORWARD, "y = _exp(x)"]] * 2
    assert [lines(op)[0] for op in of_type(ops, "tanh_backward")] == ["y.tanh().sum().backward()"] * 2


def test_the_same_place_has_the_same_stack_each_time(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.rand(3, requires_grad=True)
        for _ in range(3):
            _exp(x).sum().backward()

    ops = recorded(tmp_path, program)
    found = of_type(ops, "cosh")
    assert len(found) == 3
    assert len({op.stack for op in found}) == 1
