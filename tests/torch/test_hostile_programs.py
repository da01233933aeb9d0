"""Programs that are hard to observe: the same bits, and correct lines, makers, forward operators and parameters in the dump."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opdump
from opdump.adapters.torch.naming import ForwardLinks
from opdump.adapters.torch.private_names import sequence_number
from opdump.catalog.catalog import Catalog
from opdump.plan import SavedData


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


def test_writes_into_parts_of_a_tensor_are_the_sources_of_only_these_parts(tmp_path: Path) -> None:
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


def test_a_second_run_that_does_not_exist_is_said_to_be_missing(tmp_path: Path) -> None:
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


def test_a_graph_that_outlives_its_step_keeps_its_forward_operators(tmp_path: Path) -> None:
    # The images are made before the discriminator's step, which ends an iteration, and differentiated after it.
    maker, detector = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), nn.Linear(3, 1)
    makers, judges = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(detector.parameters(), lr=0.1)
    with opdump.capture(path=tmp_path, iteration="all", saved_data="statistic"):
        for _ in range(2):
            images = maker(torch.randn(4, 2))
            judges.zero_grad()
            detector(images.detach()).sum().backward()
            judges.step()
            makers.zero_grad()
            detector(images).sum().backward()
            makers.step()
    catalog = opdump.open(tmp_path)
    backward = list(catalog.ops(op_type="threshold_backward"))
    assert [op.step for op in backward] == [1, 3]
    assert {op.forward_op.rpartition("/")[2].rpartition("-op")[0] for op in backward} == {"relu"}
    assert all(op.op_name.startswith("Gradients/Default/network-Sequential/1-ReLU/") for op in backward)


def test_the_gradient_of_a_write_through_a_view_belongs_to_the_operator_that_wrote(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="statistic"):
        values = torch.ones(2, 4, requires_grad=True).mul(1.0)
        values[:, :2].sigmoid_()
        values.cos().sum().backward()
    catalog = opdump.open(tmp_path)
    found = {op.op_type: op for op in catalog.ops() if op.phase == "backward"}
    assert "/sigmoid_-op" in found["sigmoid_backward"].forward_op
    assert all(op.forward_op for op in found.values())


def test_threads_do_not_mix_up_each_others_forward_operators(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(2, 2), nn.Sigmoid()), nn.Sequential(nn.Linear(2, 2), nn.Tanh())]

    def train(model: nn.Module) -> None:
        for _ in range(5):
            model(torch.ones(1, 2)).sum().backward()

    with opdump.capture(path=tmp_path, saved_data="statistic"):
        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for kind in ("sigmoid", "tanh"):
        backward = list(opdump.open(tmp_path).ops(op_type=f"{kind}_backward"))
        assert len(backward) == 5
        assert all(f"/{kind}-op" in op.forward_op for op in backward)


def test_a_graph_of_one_thread_that_another_differentiates_keeps_its_forward_operators(tmp_path: Path) -> None:
    made: list[Tensor] = []
    inputs = torch.ones(3, requires_grad=True)
    with opdump.capture(path=tmp_path, saved_data="statistic"):
        thread = threading.Thread(target=lambda: made.append(inputs.sigmoid().sum()))
        thread.start()
        thread.join()
        made[0].backward()
    (backward,) = opdump.open(tmp_path).ops(op_type="sigmoid_backward")
    assert "sigmoid-op" in backward.forward_op


def test_inference_in_threads_loses_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    batches = [torch.randn(2, 3) for _ in range(24)]

    def answer(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.as_tensor(model(batch))

    with opdump.capture(path=tmp_path, iteration="all", saved_data="full") as dump, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(answer, batches))
    assert all(torch.equal(*pair) for pair in zip(answers, map(answer, batches), strict=True))
    assert dump.report is not None
    catalog = opdump.open(tmp_path)
    assert catalog.steps == dump.report.steps
    executions = list(catalog.executions(op_type="tanh"))
    assert len(executions) == 24
    for execution in executions:
        (read,), (written,) = execution.inputs.values(), execution.outputs.values()
        assert read.payload is not None
        assert written.payload is not None
        assert float(written.payload.to_host().max()) == written.statistics["max"]
        assert np.allclose(np.tanh(read.payload.to_host()), written.payload.to_host(), atol=1e-6)


@pytest.mark.parametrize("saved_data", ["tensor", "statistic", "full"])
def test_lazy_modules_are_captured_from_their_first_call(saved_data: SavedData, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Lazy modules")
        model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    unused = nn.Sequential(nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Lazy modules")
        unused.add_module("never", nn.LazyLinear(3))
    unused.forward = unused[0].forward  # type: ignore[method-assign]
    with opdump.capture(path=tmp_path, saved_data=saved_data):
        model(torch.ones(2, 3)).sum().backward()
        unused(torch.ones(1, 2)).sum().backward()
    assert len(list(opdump.open(tmp_path).ops(op_type="addmm"))) == 3


@pytest.mark.parametrize("saved_data", ["tensor", "statistic", "full"])
def test_nested_batched_and_zero_tensors_are_counted_where_they_have_no_memory(
    saved_data: SavedData, tmp_path: Path
) -> None:
    from torch.func import grad, hessian, vmap

    def curve(value: Tensor) -> Tensor:
        return value.square().tanh().sum()

    with warnings.catch_warnings(), opdump.capture(path=tmp_path, saved_data=saved_data) as dump:
        warnings.simplefilter("ignore")  # nested tensors are a prototype; torch.func scripts functions at its first use
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        torch.nested.to_padded_tensor(nested * 2, 0.0)
        hessian(curve)(torch.ones(3))
        vmap(grad(curve))(torch.ones(2, 3))
    assert dump.report is not None
    assert dump.report.tensors_skipped.keys() <= {"allocation", "unsupported layout", "no storage", "empty"}


def test_parameters_are_recorded_after_the_last_optimizer_that_updates_them(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    values = []
    with opdump.capture(path=tmp_path, iteration="all", saved_data="tensor"):
        for _ in range(3):
            loss = models[1](models[0](torch.randn(3, 2))).square().sum()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            values.append([model.weight.detach().numpy().copy() for model in models])
    catalog = opdump.open(tmp_path)
    for step in range(3):
        weights = [e for e in catalog.executions(step=step, op_type="Parameter") if e.op.op_name == "weight"]
        assert [execution.op.graph_id for execution in weights] == [0, 1]
        for execution, value in zip(weights, values[step], strict=True):
            payload = execution.outputs[0].payload
            assert payload is not None
            assert np.array_equal(payload.to_host(), value)


@dataclass
class Named:
    op_name: str = "Default/mul-op0"


def test_a_thread_that_made_nodes_once_is_forgotten_after_the_next_step() -> None:
    links: ForwardLinks[Named] = ForwardLinks()
    links.begins(Named())

    def make() -> None:
        first = sequence_number()
        torch.ones(1, requires_grad=True).mul(2)
        links.made(first, Named())

    other = threading.Thread(target=make)
    other.start()
    other.join()
    assert links.has_several_threads
    links.next_step()
    assert links.has_several_threads  # the links of an ended step are kept for one more step
    for _ in range(2):
        links.begins(Named())
        links.next_step()
    assert not links.has_several_threads
