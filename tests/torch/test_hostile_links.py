"""Forward operators, parameters and threads in programs where they are hard to identify; tensors without memory."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opdump
from opdump.plan import SavedData


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
