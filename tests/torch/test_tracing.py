"""Traced, exported and transformed code under a recording mode: the same programs and results, and the mode sees only plain tensors."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import opdump
from opdump.adapters.torch.mode_stack import put_on, take_off
from opdump.adapters.torch.reader import TensorReader
from opdump.plan import SavedData
from tests.torch.compiled_programs import assert_same, formula, jit, layers, onnx, second_derivatives
from tests.torch.recording import Operators, recording

# Warnings of PyTorch itself: parts of it use deprecated functions, and dynamo accesses the gradient of each tensor.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._inductor.config.patch(compile_threads=1):
        yield
    torch._dynamo.reset()


TRACERS: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "jit.trace of a function": (lambda: formula, lambda program, x: jit.trace(program, (x,))),
    "jit.trace of a module": (layers, lambda program, x: jit.trace(program, (x,))),
    "jit.trace_module": (layers, lambda program, x: jit.trace_module(program, {"forward": (x,)})),
    "jit.script": (lambda: formula, lambda program, x: jit.script(program)),
    "export": (layers, lambda program, x: torch.export.export(program, (x,)).module()),
    "strict export": (layers, lambda program, x: torch.export.export(program, (x,), strict=True).module()),
    "decompositions": (layers, lambda program, x: torch.export.export(program, (x,)).run_decompositions().module()),
    "make_fx": (lambda: formula, lambda program, x: make_fx(program)(x)),
    "make_fx, fake": (lambda: formula, lambda program, x: make_fx(program, tracing_mode="fake")(x)),
    "make_fx, symbolic": (lambda: formula, lambda program, x: make_fx(program, tracing_mode="symbolic")(x)),
    "make_fx, pre-dispatch": (lambda: formula, lambda program, x: make_fx(program, pre_dispatch=True)(x)),
    "fx.symbolic_trace": (layers, lambda program, x: torch.fx.symbolic_trace(program)),
    "dynamo.export": (lambda: formula, lambda program, x: torch._dynamo.export(program)(x).graph_module),
}


def code_of(program: Any) -> str:
    return str(getattr(program, "code", ""))


@pytest.mark.parametrize("name", TRACERS)
def test_tracing_records_nothing_and_gives_the_same_program(name: str) -> None:
    make, trace = TRACERS[name]
    program, x = make(), torch.randn(5, 3)
    expected = trace(program, x)
    with recording() as mode:
        found = trace(program, x)
    assert mode.names == []
    assert code_of(found) == code_of(expected)
    assert_same(found(x), expected(x))


def test_a_traced_and_a_scripted_function_run_as_the_operators_that_they_are() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    for program in (jit.trace(formula, (x,)), jit.script(formula)):
        expected = [(program(x), torch.autograd.grad(program(x), x)) for _ in range(4)]
        with recording() as mode:
            found = [(program(x), torch.autograd.grad(program(x), x)) for _ in range(4)]
        assert_same(found, expected)
        assert {"aten.sin.default", "aten.sum.default", "aten.cos.default"} <= set(mode.names)


def test_an_export_that_fails_leaves_recording_on() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(7)

    with recording() as mode:
        with pytest.raises(Exception, match="shape"):
            torch.export.export(Wrong(), (torch.ones(3),))
        torch.ones(2).sin()
    assert mode.names == ["aten.ones.default", "aten.ones.default", "aten.sin.default"]


def test_onnx_export_is_suspended_and_ends_as_it_does_plain() -> None:
    def exported() -> str:
        try:
            onnx.export(layers().eval(), (torch.ones(1, 3),), io.BytesIO(), dynamo=False)
        except Exception as error:  # noqa: BLE001  releases differ in whether and how it fails here
            return f"{type(error).__name__}: {error}"
        return "exported"

    plain = exported()
    with recording() as mode:
        assert exported() == plain
        torch.ones(2).sin()
    assert not [name for name in mode.names if "addmm" in name]
    assert mode.names[-1] == "aten.sin.default"


COMPUTATIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "vmap": torch.vmap(formula),
    "vmap of a network": torch.vmap(layers()),
    "vmap with random numbers": torch.vmap(lambda row: row + torch.rand(3), randomness="different"),
    "grad": torch.func.grad(formula),
    "vmap of grad": torch.vmap(torch.func.grad(formula)),
    "vjp": lambda x: torch.func.vjp(formula, x)[1](torch.ones(())),
    "jvp": lambda x: torch.func.jvp(formula, (x,), (x,)),
    "jacrev": torch.func.jacrev(torch.sin),
    "jacfwd": torch.func.jacfwd(torch.sin),
    "hessian": torch.func.hessian(formula),
    "functionalize": torch.func.functionalize(lambda x: x.clone().add_(1)),
    "functional_call": lambda x: torch.func.functional_call(layers(), dict(layers().named_parameters()), (x,)),
    "autograd.functional.hessian": lambda x: second_derivatives(formula, x[0]),
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_transforms_give_the_same_results_and_show_plain_tensors_only(name: str) -> None:
    compute = COMPUTATIONS[name]
    x = torch.randn(5, 3)
    torch.manual_seed(5)
    expected = compute(x)
    kinds: list[Any] = []

    class Kinds(Operators):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            leaves = torch.utils._pytree.tree_leaves((args, kwargs))
            kinds.extend(
                (type(leaf), torch._C._functorch.is_functorch_wrapped_tensor(leaf))
                for leaf in leaves
                if isinstance(leaf, torch.Tensor)
            )
            return func(*args, **(kwargs or {}))

    mode = Kinds()
    put_on(mode)
    try:
        torch.manual_seed(5)
        found = compute(x)
    finally:
        take_off(mode)
    assert_same(found, expected)
    assert kinds
    assert {wrapped for _, wrapped in kinds} == {False}
    assert {kind for kind, _ in kinds} <= {torch.Tensor, nn.Parameter}


def test_fake_tensors_arrive_as_fake_tensors() -> None:
    class Kinds(Operators):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.kinds = [kind.__name__ for kind in types]
            return func(*args, **(kwargs or {}))

    mode = Kinds()
    put_on(mode)
    with FakeTensorMode():
        found = torch.ones(3) + 1
    take_off(mode)
    assert mode.kinds == ["FakeTensor"]
    assert found.shape == (3,)


@pytest.mark.parametrize("saved_data", ["statistic", "full"])
def test_addresses_of_fake_tensors_of_a_network_are_not_read(saved_data: SavedData, tmp_path: Path) -> None:
    with warnings.catch_warnings(), opdump.capture(path=tmp_path, saved_data=saved_data):
        warnings.simplefilter("error")
        with FakeTensorMode():
            network = nn.Linear(3, 4)
            network(torch.randn(2, 3)).sum().backward()
            torch.optim.Adam(network.parameters()).step()
            given = torch.randn(2, 3)
    reader = TensorReader(statistics=True, elements=saved_data == "full")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reader.take(given).skip == "no storage"
        assert reader.memory_of(given) is None
