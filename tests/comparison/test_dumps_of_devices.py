"""Comparisons of dumps in the form of an Ascend device: a file per operator, without arguments, makers or lines."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdump

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import torch
from torch import Tensor, nn

from tests.comparison.networks import Block, dump_onnx, dump_torch, network
from tests.comparison.test_across_frameworks import scaled_epsilon
from tests.parity import ascend_lenet
from tests.parity.ascend_lenet import DEVICES, GRAPH, NET, STEPS, TIME, Operator, Value

NOT_PROVEN = "it is likely, but not proven, that all differences are rounding"
_SPARE_BITS = 2.0**-10


def device_dump(model: nn.Module, given: Tensor, path: Path, train: Callable[[Tensor], None] | None = None) -> Path:
    """A run as a device dumps it: the index is removed, because it has what file names lose."""
    with opdump.capture(path=str(path), file_format="bin"), torch.set_grad_enabled(train is not None):
        for _ in range(1 if train is None else 2):
            result = model(given)
            if train is not None:
                train(result)
    for index in path.rglob(".dump_metadata"):
        shutil.rmtree(index)
    return path


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A network under PyTorch, under ONNX Runtime and as a device would dump it, and the same with another epsilon."""
    folder = tmp_path_factory.mktemp("devices")
    model, given = network("resnet")
    found = {
        "torch": dump_torch(model, given, folder / "torch"),
        "onnx": dump_onnx(model, given, folder / "onnx"),
        "device": device_dump(model, given, folder / "device"),
    }
    scaled_epsilon(model)
    return {**found, "changed": device_dump(model, given, folder / "changed")}


def test_a_dump_of_a_device_has_neither_makers_nor_arguments(dumps: dict[str, Path]) -> None:
    executions = list(opdump.open(dumps["device"]).ops())
    assert len(executions) > 20
    assert all(not each.op.arguments and not each.op.kernel for each in executions)
    assert all(not record.source for each in executions for record in each.inputs.values())


@pytest.mark.parametrize("other", ["torch", "onnx"])
@pytest.mark.parametrize("order", [1, -1])
def test_the_same_program_of_another_framework_is_benign(dumps: dict[str, Path], other: str, order: int) -> None:
    result = opdump.compare(*[dumps["device"], dumps[other]][::order])
    assert (result.verdict, result.unmatched) == ("benign", 0)
    rows = result.rows()
    assert {row["matched_by"] for row in rows} == {"value"}
    assert all(row["cosine"] > 1 - 1e-9 for row in rows)
    # A device records no data flow: the maker of a value is identified by the value, so folded operators are found.
    assert any(row["with_a"] or row["with_b"] for row in rows) == (other == "onnx")


def test_another_epsilon_on_a_device_is_named(dumps: dict[str, Path]) -> None:
    for other, kind, evidence in (
        ("torch", "argument", "eps: 1e-05 in A, as if 0.001 in B"),
        ("onnx", "extra", "for the same values, convolution + native_batch_norm in B differs"),
        ("device", "operator", "inputs agree to 0, but the output differs by 0.0017 of its size"),
    ):
        result = opdump.compare(dumps[other], dumps["changed"])
        (found,) = result.introduced
        assert (result.verdict, found.kind) == ("divergent", kind)
        assert found.evidence.startswith(evidence)
        assert found.b is not None
        assert found.b.op_name.endswith("layers-Sequential/1-Block/norm-BatchNorm2d/native_batch_norm-op16")
    assert found.evidence.endswith("its arguments are not in the dump, so this is not proven")


def rounded_away(*given: Any) -> Tensor:
    """Another convolution kernel: every seventh value of a result is the next float16 away from zero."""
    flags = torch.backends.cudnn
    result: Tensor = torch.ops.aten._convolution(*given, flags.benchmark, flags.deterministic, flags.enabled, False)
    result.view(-1)[::7].view(torch.int16).add_(1)
    return result


def test_rounding_of_float16_on_a_device_is_benign_and_not_proven(tmp_path: Path) -> None:
    model, given = network("resnet")
    model.half()
    one = device_dump(model, given.half(), tmp_path / "one")
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("convolution", rounded_away, "CPU")
        other = device_dump(model, given.half(), tmp_path / "other")
    result = opdump.compare(one, other)
    assert (result.verdict, list(result.introduced), result.unmatched) == ("benign", [], 0)
    assert any(note.endswith(NOT_PROVEN) for note in result.notes)
    assert {row["state"] for row in result.rows()} == {"identical", "noise"}


@pytest.mark.parametrize("name", ["resnet", "transformer", "lstm"])
def test_float16_on_a_device_is_benign_beside_float32(name: str, tmp_path: Path) -> None:
    model, given = network(name)
    others = dump_torch(model, given, tmp_path / "torch"), dump_onnx(model, given, tmp_path / "onnx", "plain")
    narrow = given.half() if given.is_floating_point() else given
    device = device_dump(model.half(), narrow, tmp_path / "device")
    for other in others:
        result = opdump.compare(device, other)
        assert (result.verdict, list(result.introduced), result.unmatched) == ("benign", [], 0)


def test_an_activation_that_is_missing_in_float16_on_a_device_is_reported(tmp_path: Path) -> None:
    class Bare(Block):
        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.first(x))
            result: Tensor = torch.relu(self.other_norm(self.second(y)) + self.short(x))
            return result

    model, given = network("resnet")
    exported = dump_onnx(model, given, tmp_path / "onnx", "plain")
    model.get_submodule("layers.1").__class__ = Bare
    (found,) = opdump.compare(exported, device_dump(model.half(), given.half(), tmp_path / "device")).introduced
    assert (found.kind, found.a and found.a.op_name) == ("missing", "/layers/layers.1/Relu-op2")


def trained(path: Path, *, rate: float, fast: bool) -> Path:
    model, given = network("transformer")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def train(result: Tensor) -> None:
        optimizer.zero_grad()
        result.square().mean().backward()
        optimizer.step()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about GPUs that do not exist
        with torch.backends.mkldnn.flags(enabled=fast):
            return device_dump(model.train(), given, path, train)


def test_training_on_devices_is_benign_and_another_rate_is_named(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", rate=1e-3, fast=True)
    benign = opdump.compare(one, trained(tmp_path / "other", rate=1e-3, fast=False))
    assert (benign.verdict, list(benign.introduced)) == ("benign", [])
    faster = opdump.compare(one, trained(tmp_path / "faster", rate=1.1e-3, fast=True))
    assert {(each.kind, each.a and each.a.op_type) for each in faster.introduced} == {("operator", "addcdiv_")}


def written(root: Path, change: Callable[[Operator, Value], Value]) -> Path:
    """The asynchronous MindSpore dump of an Ascend test, in the formats of the device, with its tensors changed."""
    for device in DEVICES:
        for step in STEPS:
            executed = tuple(
                replace(each, values=tuple(change(each, value) for value in each.values))
                for each in ascend_lenet.operators(device, step)
            )
            ascend_lenet.write_operators(root / TIME / str(device) / NET / str(GRAPH) / str(step), executed)
    return root


def test_an_output_of_an_ascend_dump_that_was_changed_is_named(tmp_path: Path) -> None:
    def change(operator: Operator, value: Value) -> Value:
        if (operator.op_type, value.io) != ("MatMul", "output"):
            return value
        return replace(value, array=value.array * np.float32(1.5))

    original = written(tmp_path / "original", lambda _, value: value)
    assert opdump.compare(original, original).verdict == "identical"
    result = opdump.compare(original, written(tmp_path / "changed", change), rank=0, step=STEPS[0])
    (found,) = result.introduced
    assert found.b is not None
    assert (found.kind, found.b.op_type, found.io, found.slot) == ("operator", "MatMul", "output", 0)
    assert "its class (cube)" in found.evidence


def test_rounding_of_an_ascend_dump_is_benign_and_not_proven(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def change(_: Operator, value: Value) -> Value:
        if value.dtype != "float16":
            return value
        bits = random.integers(-1, 2, value.array.shape)
        return replace(value, array=(value.array * (1 + bits * _SPARE_BITS)).astype(value.array.dtype))

    original = written(tmp_path / "original", lambda _, value: value)
    result = opdump.compare(original, written(tmp_path / "rounded", change))
    assert (result.verdict, list(result.introduced)) == ("benign", [])
    assert any(note.endswith(NOT_PROVEN) for note in result.notes)
