"""Programs that are hard to observe: the same bits with and without capture, and correct source lines and makers in the dump."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opdump
from opdump.catalog.catalog import Catalog


def _bits(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: _bits(item) for key, item in value.items()}
    return [_bits(item) for item in value] if isinstance(value, (list, tuple)) else value


def _run(program: Callable[[], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return _bits(program()), _bits(torch.get_rng_state())


def _same_with_and_without(program: Callable[[], Any], path: Path, **settings: Any) -> Catalog:
    plain = _run(program)
    with opdump.capture(path=path, iteration="all", **{"saved_data": "full", **settings}):
        captured = _run(program)
    assert captured == plain
    return opdump.open(path)


def _train(model: nn.Module, loss_of: Callable[[], Tensor], steps: int = 3) -> list[Any]:
    """Train from the same start each time."""
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    end = copy.deepcopy(dict(model.state_dict()))
    model.load_state_dict(start)
    return [losses, end]


def _names(catalog: Catalog, step: int) -> list[str]:
    return [op.op_name for op in catalog.ops(step=step) if op.op_type != "Parameter"]


def test_a_line_keeps_its_name_when_the_interpreter_has_warmed_up(tmp_path: Path) -> None:
    # After some calls, Python 3.11 runs the call of a builtin with a different instruction.
    model = nn.Linear(2, 2)

    def add_up() -> Tensor:
        parts = [model(torch.ones(1, 2)), torch.ones(1, 2), torch.ones(1, 2)]
        total: Any = sum(parts)
        mean: Tensor = total.mean()
        return mean

    with opdump.capture(path=tmp_path, iteration="all", saved_data="statistic"):
        _train(model, add_up, 24)  # none of these functions ran before
    catalog = opdump.open(tmp_path)
    assert _names(catalog, 1) == _names(catalog, 22)


def test_writes_into_parts_of_a_tensor_are_the_sources_of_these_parts_alone(tmp_path: Path) -> None:
    def program() -> list[Tensor]:
        gates = torch.randn(2, 8).mul(1.0)
        first, second, third = gates[:, :3], gates[:, 3:6], gates[:, 6:]
        first.sigmoid_()
        second.tanh_()
        return [first.exp(), second.sin(), third.cos(), gates.abs()]

    catalog = _same_with_and_without(program, tmp_path)
    found = {kind: next(catalog.executions(op_type=kind)) for kind in ("exp", "sin", "cos", "abs", "sigmoid_", "tanh_")}
    sources = {kind: execution.inputs[0].source.rpartition("-op")[0] for kind, execution in found.items()}
    assert sources == {
        "sigmoid_": "Default/mul",
        "tanh_": "Default/mul",
        "exp": "Default/sigmoid_",
        "sin": "Default/tanh_",
        "cos": "Default/mul",
        "abs": "Default/tanh_",
    }


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell])
def test_every_source_of_a_recurrent_cell_holds_what_is_read(cell: type[nn.Module], tmp_path: Path) -> None:
    model = cell(3, 4)

    def loss_of() -> Tensor:
        state = model(torch.randn(2, 3))
        hidden: Tensor = state[0] if isinstance(state, tuple) else state
        return hidden.square().sum()

    catalog = _same_with_and_without(lambda: _train(model, loss_of, 1), tmp_path)
    compared = 0
    written: dict[str, np.ndarray[Any, Any]] = {}
    for record in catalog.tensors(step=0):
        assert record.payload is not None
        array = record.payload.to_host()
        if record.io == "output":
            written[f"{record.op.op_name}:{record.slot}"] = array
        elif record.source in written and written[record.source].size == array.size:
            compared += 1
            assert sorted(written[record.source].ravel()) == sorted(array.ravel()), record.name
    assert compared > 20


def test_a_deep_model_is_captured_whole(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2)) for _ in range(60)])
    catalog = _same_with_and_without(
        lambda: _train(model, lambda: model(torch.ones(1, 2)).sum(), 1), tmp_path, saved_data="statistic"
    )
    assert len(list(catalog.ops(op_type="addmm"))) == 60
    assert len({op.forward_op for op in catalog.ops(op_type="mm") if op.forward_op}) == 60


def test_modules_with_odd_names_are_captured_under_them(tmp_path: Path) -> None:
    model = nn.Sequential()
    for name in ("a b", "ü", "new\nline", 'quo"te,comma', "op-op3", "x" * 200):
        model.add_module(name, type("Box[int]/y", (nn.Linear,), {})(3, 3))
    catalog = _same_with_and_without(lambda: _train(model, lambda: model(torch.ones(2, 3)).sum()), tmp_path)
    assert not catalog.problems
    assert len(list(catalog.ops(op_type="addmm", step=0))) == 6
    for record in catalog.tensors(step=2):
        assert record.payload is not None
        assert record.payload.to_host().shape == record.shape


def test_programs_go_on_after_failures_in_forward_backward_and_optimizer(tmp_path: Path) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor, fails: bool) -> Tensor:
            ctx.fails = fails
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            if ctx.fails:
                raise RuntimeError("backward")
            return gradient, None

    def refuse(*_: Any) -> None:
        raise RuntimeError("optimizer")

    apply: Callable[..., Any] = Fails.apply

    def program() -> list[Any]:
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen: list[Any] = []
        for number in range(6):
            handle = optimizer.register_step_pre_hook(refuse) if number == 3 else None
            try:
                optimizer.zero_grad()
                output: Any = apply(model(torch.randn(2, 5 if number == 1 else 3)), number == 2)
                output.sum().backward()
                optimizer.step()
                seen.append(output.detach())
            except RuntimeError as error:
                seen.append(str(error))
            finally:
                if handle is not None:
                    handle.remove()
        return [seen, dict(model.state_dict())]

    catalog = _same_with_and_without(program, tmp_path)
    assert catalog.steps == (0, 1, 2)


def test_the_gradient_penalty_is_captured_with_its_forward_operators(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def loss_of() -> Tensor:
        points = torch.randn(2, 3, requires_grad=True)
        value = model(points)
        (slope,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        penalised: Tensor = value.mean() + (slope.norm(2, dim=1) - 1).square().mean()
        return penalised

    catalog = _same_with_and_without(lambda: _train(model, loss_of), tmp_path)
    known = {op.op_name for op in catalog.ops(include_skipped=True)}
    linked = [op.forward_op for op in catalog.ops(step=1) if op.forward_op]
    assert set(linked) <= known
    assert len(linked) > 20


def test_a_second_run_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        torch.ones(2).sin()
    assert opdump.open(tmp_path, run=1).steps == (0,)
    with pytest.raises(opdump.errors.NotInDumpError, match="holds no run 7; it holds 1"):
        opdump.open(tmp_path, run=7)


def test_parametrized_and_averaged_models_stay_as_they_are(tmp_path: Path) -> None:
    from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm
    from torch.optim.swa_utils import AveragedModel

    def program() -> list[Any]:
        model = nn.Sequential(weight_norm(nn.Linear(3, 4)), spectral_norm(nn.Linear(4, 4)), orthogonal(nn.Linear(4, 4)))
        average = AveragedModel(model)
        results = []
        for _ in range(2):
            results.append(_train(model, lambda: model(torch.randn(2, 3)).square().mean(), 1))
            average.update_parameters(model)
        return [results, dict(average.state_dict())]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        catalog = _same_with_and_without(program, tmp_path)
    assert catalog.steps == (0, 1)
