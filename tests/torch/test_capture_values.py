"""The values on disk are those that the operators read and wrote."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import opdump
from opdump.records import TensorRecord
from opdump.statistics import OWN, format_statistic
from tests.torch.programs import ConvNet, train_convnet, train_transformer

TWELVE = (
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
)


def elements(record: TensorRecord) -> npt.NDArray[np.generic]:
    assert record.payload is not None, record.name
    return record.payload.to_host()


def test_npy_files_equal_what_plain_hooks_see(tmp_path: Path) -> None:
    seen: list[tuple[str, Tensor, Tensor]] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((type(module).__name__, inputs[0].detach().clone(), output.detach().clone()))

    def train(watch: bool) -> ConvNet:
        torch.manual_seed(0)
        model = ConvNet()
        if watch:
            for module in (model.conv1, model.conv2, model.fc):
                module.register_forward_hook(hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        functional.cross_entropy(model(torch.randn(2, 1, 8, 8)), torch.tensor([0, 2])).backward()
        optimizer.step()
        return model

    hooked = train(watch=True)
    with opdump.capture(path=tmp_path):
        train(watch=False)
    catalog = opdump.open(tmp_path)
    convolutions = [catalog.op(op.op_name) for op in catalog.ops(step=0) if op.op_type == "convolution"]
    products = [catalog.op(op.op_name) for op in catalog.ops(step=0) if op.op_type == "addmm"]
    recorded = [
        (execution.inputs[position], execution.outputs[0])
        for execution, position in ((convolutions[0], 0), (convolutions[1], 0), (products[0], 1))
    ]
    for (_, inputs, output), (read, wrote) in zip(seen, recorded, strict=True):
        assert np.array_equal(elements(read), inputs.numpy())
        assert np.array_equal(elements(wrote), output.numpy())
    for name, parameter in hooked.named_parameters():
        (after,) = [record for record in catalog.tensors(step=0) if record.op.op_name == name]
        assert after.op.op_type == "Parameter"
        assert np.array_equal(elements(after), parameter.detach().numpy()), name


def test_every_recorded_operator_gives_its_recorded_outputs_again(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, iteration="1"):
        train_convnet()
    checked = 0
    for execution in opdump.open(tmp_path).executions(step=1):
        op = execution.op
        if op.op_type not in ("relu_", "threshold_backward", "mul", "addmm", "mm", "convolution", "sqrt", "addcmul_"):
            continue
        again = _run_again(op.kernel, {**op.arguments}, list(execution.inputs.values()))
        # PyTorch multiplies a transposed view with another kernel than its contiguous copy.
        limit = 1e-5 if op.op_type in ("addmm", "mm") else 0
        assert np.allclose(again.numpy(), elements(execution.outputs[0]), rtol=limit, atol=limit), op.op_name
        checked += 1
    assert checked >= 29


def _run_again(kernel: str, arguments: dict[str, object], inputs: list[TensorRecord]) -> Tensor:
    namespace, _, name = kernel.partition("::")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    values = {record.argument: torch.from_numpy(np.array(elements(record))) for record in inputs}
    result = operator(**values, **arguments)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("program", [train_convnet, train_transformer])
def test_statistics_equal_float64_numpy_and_the_csv_prints_them(program: object, tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", iteration="1", statistic_category=TWELVE):
        assert callable(program)
        program()
    catalog = opdump.open(tmp_path)
    records = [record for record in catalog.tensors(step=1) if record.dtype != "complex64"]
    assert len(records) > 300
    with (tmp_path / "rank_0" / "Net" / "0" / "1" / "statistic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(records)
    for record, row in zip(records, rows, strict=True):
        values = elements(record)
        expected = _reference(values)
        for name in TWELVE:
            wanted, got = expected[name], record.statistics[name]
            if isinstance(wanted, float) and isinstance(got, float):
                assert got == wanted or (math.isnan(got) and math.isnan(wanted)) or _close(got, wanted, values), record
            else:
                assert got == wanted, (record.name, name)
            assert row[OWN[name].heading] == format_statistic(got)
        assert row["Op Name"] == record.op.op_name.rpartition("/")[2].replace(".", "_")
        assert (row["IO"], row["Slot"]) == (record.io, str(record.slot))
        assert row["Shape"] == "(" + ",".join(map(str, record.shape)) + ")"
        assert row["Data Size"] == str(values.nbytes)


def _close(got: float, wanted: float, values: npt.NDArray[np.generic]) -> bool:
    # The mean of values that cancel out is as exact as its terms: 1e-12 of their mean magnitude.
    size = float(np.mean(np.abs(values.astype(np.float64))))
    return abs(got - wanted) <= 1e-12 * max(abs(wanted), size)


def _reference(values: npt.NDArray[np.generic]) -> dict[str, float | int | str]:
    x = values.astype(np.float64)
    return {
        "max": float(np.max(x)),
        "min": float(np.min(x)),
        "avg": float(np.mean(x)),
        "count": x.size,
        "negative zero count": int(np.sum(x < 0)),
        "positive zero count": int(np.sum(x > 0)),
        "nan count": int(np.sum(np.isnan(x))),
        "negative inf count": int(np.sum(np.isneginf(x))),
        "positive inf count": int(np.sum(np.isposinf(x))),
        "zero count": int(np.sum(x == 0)),
        "md5": hashlib.md5(values.tobytes()).hexdigest(),
        "l2norm": float(np.sqrt(np.sum(x * x))),
    }


def test_an_inplace_operator_keeps_its_true_input(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        x = torch.arange(4.0)
        x.mul_(3)
    execution = opdump.open(tmp_path).op("mul_-op1")
    assert elements(execution.inputs[0]).tolist() == [0, 1, 2, 3]
    assert elements(execution.outputs[0]).tolist() == [0, 3, 6, 9]


def test_running_statistics_of_batch_norm_are_recorded_before_and_after(tmp_path: Path) -> None:
    norm = nn.BatchNorm1d(2)
    with opdump.capture(path=tmp_path):
        norm(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    execution = next(e for e in opdump.open(tmp_path).executions() if "batch_norm" in e.op.op_type)
    means = {record.argument: elements(record).tolist() for record in execution.inputs.values()}
    assert means["running_mean"] == [0, 0]
    after = [elements(record).tolist() for record in execution.outputs.values() if record.argument == "running_mean"]
    assert after == [norm.running_mean.tolist()]  # type: ignore[union-attr]


def test_tensors_in_lists_and_keyword_arguments_are_recorded_with_their_argument_names(tmp_path: Path) -> None:
    a, b = torch.ones(2), torch.zeros(3)
    with opdump.capture(path=tmp_path):
        torch.cat([a, b])
        torch.add(input=a, other=a, out=torch.empty(2))
    catalog = opdump.open(tmp_path)
    (cat,) = [e for e in catalog.executions() if e.op.op_type == "cat"]
    assert [record.argument for record in cat.inputs.values()] == ["tensors[0]", "tensors[1]"]
    assert [record.shape for record in cat.inputs.values()] == [(2,), (3,)]
    (add,) = [e for e in catalog.executions() if e.op.op_type == "add"]
    assert {record.argument for record in add.inputs.values()} == {"self", "other"}
    assert elements(add.outputs[0]).tolist() == [2, 2]


def test_none_leaves_its_slot_empty(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path):
        functional.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2))
    (execution,) = [e for e in opdump.open(tmp_path).executions() if e.op.op_type == "convolution"]
    assert {slot: record.argument for slot, record in execution.inputs.items()} == {0: "input", 1: "weight"}


def test_arguments_are_recorded_well_enough_to_call_the_operator_again(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, save_kernel_args=True):
        functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 2, 2), stride=2, padding=(1, 0))
        torch.full((2,), float("inf"), dtype=torch.float16)
    ops = {op.op_type: op for op in opdump.open(tmp_path).ops()}
    assert ops["convolution"].arguments["stride"] == [2, 2]
    assert ops["convolution"].arguments["padding"] == [1, 0]
    assert ops["full"].arguments["fill_value"] == {"float": "inf"}
    assert ops["full"].arguments["dtype"] == "torch.float16"
    files = list((tmp_path / "rank_0" / "Net" / "0" / "0").glob("convolution.*.json"))
    assert len(files) == 1
    assert json.loads(files[0].read_text())["stride"] == "[2, 2]"


def test_a_sample_is_the_first_elements_and_all_else_is_of_the_whole_tensor(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, saved_data="full", sample_num=5, statistic_category=["max", "count"]):
        x = torch.arange(12.0).reshape(3, 4).t() * 1
        torch.ones(4) + 1
    catalog = opdump.open(tmp_path)
    (product,) = [e for e in catalog.executions() if e.op.op_type == "mul"]
    assert elements(product.inputs[0]).tolist() == x.reshape(-1)[:5].tolist() == [0, 4, 8, 1, 5]
    assert (product.inputs[0].shape, product.inputs[0].sample, product.inputs[0].data_size) == ((4, 3), 5, 48)
    assert (product.inputs[0].statistics["max"], product.inputs[0].statistics["count"]) == (11, 12)
    (small,) = [e for e in catalog.executions() if e.op.op_type == "add"]
    assert (small.inputs[0].shape, small.inputs[0].sample) == ((4,), 0)
    assert elements(small.inputs[0]).shape == (4,)


def test_constants_are_what_no_operator_made(tmp_path: Path) -> None:
    model = ConvNet().eval()
    with torch.no_grad(), opdump.capture(path=tmp_path):
        model(torch.ones(1, 1, 8, 8))
    folder = tmp_path / "rank_0" / "Net" / "0" / "constants"
    values = [np.load(path) for path in sorted(folder.iterdir())]
    assert any(np.array_equal(value, np.full(3, 0.5, np.float32)) for value in values)
    assert all(path.name.startswith("Parameter.data-") for path in folder.iterdir())
    # The weights and the image are not constants.
    assert all(value.shape in ((3,), (4,), ()) for value in values)
    assert {record.op.op_name for record in opdump.open(tmp_path).constants()} == {
        path.name.split(".")[1] for path in folder.iterdir()
    }
