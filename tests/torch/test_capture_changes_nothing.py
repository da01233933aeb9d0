"""Losses, gradients, parameters, random numbers, warnings and calls of the program's code are the same with and without capture."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import opdump
from opdump.plan import DumpPlan, ModelSelection, SavedData, StepSet
from tests.torch.programs import PROGRAMS, Trained
from tests.torch.releases import KEEPS_PLACES_OF_WARNINGS


def assert_identical(left: Trained, right: Trained) -> None:
    assert torch.equal(left.random_state, right.random_state)
    assert [loss.item() for loss in left.losses] == [loss.item() for loss in right.losses]
    for one, other in ((left.gradients, right.gradients), (left.parameters, right.parameters)):
        assert one.keys() == other.keys()
        for name in one:
            assert _bits(one[name]) == _bits(other[name]), name


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("saved_data", ["tensor", "statistic", "full"])
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_with_and_without_capture(
    program: str, saved_data: SavedData, tmp_path: Path
) -> None:
    train = PROGRAMS[program]
    plain = train()
    with opdump.capture(path=tmp_path, saved_data=saved_data) as dump:
        captured = train()
    assert_identical(plain, captured)
    assert dump.report is not None
    assert dump.report.steps == (0, 1, 2)
    assert dump.report.captured > 300
    assert dump.report.tensors_skipped.keys() <= {"allocation", "empty"}


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_when_only_some_steps_are_dumped(program: str, tmp_path: Path) -> None:
    train = PROGRAMS[program]
    plain = train()
    with opdump.capture(path=tmp_path, saved_data="full", iteration="1") as dump:
        captured = train()
    assert_identical(plain, captured)
    assert dump.report is not None
    assert dump.report.steps == (1,)


def test_training_after_a_capture_is_plain_again(tmp_path: Path) -> None:
    train = PROGRAMS["convnet"]
    plain = train()
    call, backward = torch.nn.Module.__call__, torch.autograd.backward
    with opdump.capture(path=tmp_path, saved_data="statistic"):
        train()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    assert_identical(plain, train())


def test_a_failing_program_leaves_no_hook_behind(tmp_path: Path) -> None:
    call, backward = torch.nn.Module.__call__, torch.autograd.backward

    def fail() -> None:
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError, match="inconsistent tensor size"), opdump.capture(path=tmp_path):
        fail()
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.nn.Module.__call__ is call
    assert torch.autograd.backward is backward
    # The inputs of the failed operator are recorded.
    failed = opdump.open(tmp_path).op("dot-op2")
    assert [record.shape for record in failed.inputs.values()] == [(2,), (3,)]
    assert not failed.outputs


_DEVICE: Mapping[str, Any] = {"layout": "acl", "file_format": "bin", "dialect": "acl"}
MODES: dict[str, Mapping[str, Any]] = {
    "kernel": {"dump_level": "kernel", **_DEVICE},
    "op": {"dump_level": "op", **_DEVICE},
    "all": {"dump_level": "all", **_DEVICE},
    "model": {
        "dump_level": "all",
        "models": (ModelSelection(model_name="ConvNet"), ModelSelection(model_name="GPT2LMHeadModel")),
        **_DEVICE,
    },
    "stats": {"saved_data": "statistic", "dump_level": "all", **_DEVICE},
    "overflow": {"captures": "overflow", **_DEVICE},
    "exception": {"captures": "exception", **_DEVICE},
    "watch": {
        "captures": "watch",
        "models": (ModelSelection(watcher_nodes=("conv1", "transformer.h.0.mlp.act")),),
        **_DEVICE,
    },
    "statistics": {"saved_data": "statistic", "statistic_category": ("max", "l2norm", "md5")},
    "packed": {"saved_data": "full", "layout": "packed"},
    "ring": {"saved_data": "statistic", "ring": 1, "triggers": ()},
    "bounded": {"saved_data": "full", "max_disk": 100_000},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_training_is_bit_identical_in_every_mode(program: str, mode: str, tmp_path: Path) -> None:
    train = PROGRAMS[program]
    plain = train(steps=2)
    with opdump.capture(DumpPlan(path=tmp_path, **MODES[mode])) as dump:
        captured = train(steps=2)
    assert_identical(plain, captured)
    assert dump.report is not None
    if mode not in ("overflow", "exception", "ring"):
        assert dump.report.captured > 10


class Residual(nn.TransformerEncoderLayer):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        encoded: torch.Tensor = super().forward(*args, **kwargs) + args[0]
        return encoded


def _encoded(kind: type[nn.TransformerEncoderLayer], hooked: bool, mode: Any) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(kind(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False).eval()
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    if hooked:
        attention.register_forward_hook(lambda _, __, out: out)
    words = torch.randn(3, 5, 8)
    with torch.inference_mode(), mode:
        return torch.cat([encoder(words), attention(words, words, words)[0]])


@pytest.mark.parametrize("iteration", ["all", "7"])
@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, Residual])
@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"watch"}))
def test_modules_that_ask_for_function_modes_take_the_same_path(
    mode: str, kind: type[nn.TransformerEncoderLayer], hooked: bool, iteration: str, tmp_path: Path
) -> None:
    # In inference mode, PyTorch runs one kernel for a whole layer, unless a function mode is on.
    dispatched: list[list[str]] = []

    class Dispatched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            dispatched[-1].append(str(func))
            return func(*args, **(kwargs or {}))

    dispatched.append([])
    plain = _encoded(kind, hooked, Dispatched())  # type: ignore[no-untyped-call]  # an override in an untyped class
    assert any("_transformer_encoder_layer_fwd" in name for name in dispatched[0])
    plan = DumpPlan(
        path=tmp_path, steps=StepSet.all() if iteration == "all" else StepSet.parse(iteration), **MODES[mode]
    )
    dispatched.append([])
    with opdump.capture(plan):
        captured = _encoded(kind, hooked, Dispatched())  # type: ignore[no-untyped-call]  # an override in an untyped class
    assert dispatched[0] == dispatched[1]
    assert plain.numpy().tobytes() == captured.numpy().tobytes()


_COUNTS: Counter[str] = Counter()


@pytest.fixture(scope="module")
def custom() -> Iterator[Any]:
    library = torch.library.Library("opdump_counted", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.define("add_one_(Tensor(a!) x) -> ()")

    def double(x: torch.Tensor) -> torch.Tensor:
        _COUNTS["custom operator"] += 1
        return x * 2

    def add_one(x: torch.Tensor) -> None:
        _COUNTS["custom operator that writes"] += 1
        x.add_(1)

    library.impl("double", double, "CompositeExplicitAutograd")
    library.impl("add_one_", add_one, "CompositeExplicitAutograd")
    yield torch.ops.opdump_counted
    library._destroy()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        _COUNTS["forward"] += 1
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _COUNTS["backward"] += 1
        return gradients[0] * 2 + 0 * ctx.saved_tensors[0]


def _counted(name: str, result: Any = None) -> Any:
    def hook(*_: Any) -> Any:
        _COUNTS[name] += 1
        return result

    return hook


def _kept(name: str) -> Any:
    def hook(x: torch.Tensor) -> torch.Tensor:
        _COUNTS[name] += 1
        return x

    return hook


def _step(model: nn.Sequential, optimizer: torch.optim.Optimizer, custom: Any) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    custom.add_one_(x)
    with torch.autograd.graph.saved_tensors_hooks(_kept("packed"), _kept("unpacked")):
        hidden = checkpoint(model, custom.double(x), use_reentrant=False)
        loss = Doubled.apply(hidden).square().mean()  # type: ignore[no-untyped-call]
    hidden.register_hook(_counted("tensor hook"))
    loss.grad_fn.register_hook(_counted("node hook"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    found: torch.Tensor = loss.detach()
    return found


def _trained(custom: Any, **capture: Any) -> tuple[Counter[str], list[torch.Tensor]]:
    torch.manual_seed(3)
    _COUNTS.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model.register_forward_hook(_counted("module hook"))
    model[3].register_full_backward_hook(_counted("backward hook"))
    weight = next(model[3].parameters())
    weight.register_hook(_counted("gradient hook"))
    weight.register_post_accumulate_grad_hook(_counted("accumulated"))
    optimizer.register_step_post_hook(_counted("optimizer hook"))
    if capture:
        with opdump.capture(**capture) as dump:
            losses = [_step(model, optimizer, custom) for _ in range(3)]
        assert dump.report is not None
        assert dump.report.executed > 0
    else:
        losses = [_step(model, optimizer, custom) for _ in range(3)]
    return Counter(_COUNTS), [*losses, *(each.detach() for each in model.parameters())]


@pytest.mark.parametrize(
    "mode",
    [
        {"saved_data": "statistic"},
        {"saved_data": "full"},
        {"saved_data": "full", "iteration": "1"},
        {"overflow": True},
        {"on_exception": True},
        {"watch": ["no operator"]},
    ],
    ids=lambda mode: "-".join(map(str, mode.values())),
)
def test_python_of_the_program_runs_as_often_as_without_capture(
    tmp_path: Path, custom: Any, mode: dict[str, Any]
) -> None:
    plain, values = _trained(custom)
    assert len(plain) == 13, plain
    counts, captured = _trained(custom, path=tmp_path, **mode)
    assert counts == plain
    for one, other in zip(values, captured, strict=True):
        assert torch.equal(one, other)


WAYS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "calls": lambda path: opdump.capture(DumpPlan(path=path, layout="acl", dump_level="op")),
    "failures": lambda path: opdump.capture(path=path, on_exception=True),
}


def program() -> None:
    """Warnings of PyTorch's C++ and Python code, twice from one line and from lines of several functions."""
    for _ in range(2):
        torch.std(torch.ones(1))
    torch.std(torch.ones(1))
    torch.add(torch.ones(3), 1, out=torch.empty(1))
    functional.mse_loss(torch.ones(2, 1), torch.ones(2))
    functional.grid_sample(torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 1, 2))
    network = nn.Sequential(nn.Linear(2, 2), nn.Softmax())
    network(torch.ones(1, 2)).sum().backward()
    torch.tensor(torch.ones(1))


def told(action: Any) -> list[tuple[str, str, str, int]]:
    globals().pop("__warningregistry__", None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        program()
    return [(one.category.__name__, str(one.message), os.path.basename(one.filename), one.lineno) for one in seen]


@KEEPS_PLACES_OF_WARNINGS
@pytest.mark.parametrize("action", ["always", "default"])
def test_warnings_name_the_lines_of_the_program_under_capture(action: str, tmp_path: Path) -> None:
    told(action)
    plain = told(action)
    assert sum("std" in message for _, message, *_ in plain) == (3 if action == "always" else 2)
    with opdump.capture(path=tmp_path, saved_data="full"):
        captured = told(action)
    assert captured == plain


@pytest.mark.parametrize("way", WAYS)
def test_calls_that_opdump_makes_for_the_program_give_the_same_warnings(way: str, tmp_path: Path) -> None:
    told("always")
    plain = told("always")
    with WAYS[way](tmp_path):
        captured = told("always")
    assert [each[:2] for each in captured] == [each[:2] for each in plain]
