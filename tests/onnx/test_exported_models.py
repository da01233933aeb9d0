"""Networks exported from PyTorch: every operator's tensors against `onnx.reference`, at every optimisation level, and
in pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from opdump.adapters.onnxruntime.tensors_of_run import same_bits
from tests.onnx.recording import FLOAT, Recording, model_of, numbers, plain_run
from tests.onnx.torch_models import exported

assert torch is not None  # it contains the exporter; without PyTorch this file is skipped

KINDS = [("convnet", False), ("transformer", False), ("convnet", True)]
LEVELS = {"disable": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}


@pytest.mark.parametrize(("kind", "dynamo"), KINDS)
def test_every_output_is_what_the_reference_computes(kind: str, dynamo: bool) -> None:
    content, feeds = exported(kind, dynamo)
    recording = Recording(content)
    answer = recording.run(feeds)
    assert same_bits(answer, plain_run(content, feeds))
    expected = ReferenceEvaluator(onnx.load_from_string(content)).run(None, feeds, intermediate=True)
    assert isinstance(expected, dict)
    compared = 0
    for node in recording.session.nodes:
        if node.operator.skip:
            continue
        for slot, value in enumerate(node.outputs):
            if not value:
                continue
            found = recording.elements(node.name, "output", slot)
            np.testing.assert_allclose(found, expected[value], rtol=1e-4, atol=1e-5, err_msg=node.name)
            assert str(found.dtype) == recording.tensors(node.name)["output", slot].dtype
            compared += 1
    assert compared >= len(recording.captured) > 5


@pytest.mark.parametrize(("kind", "dynamo"), KINDS)
def test_what_an_operator_read_is_what_its_source_wrote(kind: str, dynamo: bool) -> None:
    content, feeds = exported(kind, dynamo)
    recording = Recording(content)
    recording.run(feeds)
    followed = 0
    for record in recording.writer.tensors:
        name, _, slot = record.source.rpartition(":")
        if record.io == "input" and name in recording.captured:
            assert record.payload is not None
            assert same_bits(record.payload.to_host(), recording.elements(name, "output", int(slot)))
            followed += 1
        elif record.io == "input":
            assert record.source.startswith("Parameter.") or record.source == "x:0" or name in recording.skipped
    assert followed > 5


@pytest.mark.parametrize("level", list(LEVELS))
@pytest.mark.parametrize("kind", ["convnet", "transformer"])
def test_the_answer_at_a_level_is_the_plain_one_of_that_level(kind: str, level: str) -> None:
    content, feeds = exported(kind)
    recording = Recording(content, level=level)
    plain = plain_run(content, feeds, level=LEVELS[level])
    assert same_bits(recording.run(feeds), plain)
    assert same_bits(recording.run(feeds), plain)
    assert recording.recorder.tally.executed == 2 * len(recording.session.nodes)
    assert recording.session.largest_difference == (None if level == "disable" else 0.0)
    assert recording.session.notes == []


def test_a_fused_operator_has_its_own_name_and_is_found_by_the_original_one() -> None:
    content, feeds = exported("convnet")
    known = {name for node in Recording(content).session.nodes for name in (node.name, node.written_name)}
    fused = [node for node in Recording(content, level="all").session.nodes if set(node.original_names) - {node.name}]
    assert fused
    for node in fused:
        assert set(node.original_names) <= known
        for layer in (node.name, *node.original_names):
            recording = Recording(content, {"models": selecting(layer)}, level="all")
            recording.run(feeds)
            assert node.name in recording.captured


def selecting(*layers: str) -> Any:
    from opdump.plan.selection import ModelSelection

    return (ModelSelection(layers=layers),)


@pytest.mark.parametrize("kind", ["convnet", "transformer"])
@pytest.mark.parametrize("limit", [1, 2000])
def test_under_a_memory_limit_the_same_is_recorded_in_pieces(kind: str, limit: int) -> None:
    content, feeds = exported(kind)
    whole, pieces = Recording(content), Recording(content, memory_limit=limit)
    for _ in range(2):  # the second run knows the sizes from the first
        assert same_bits(pieces.run(feeds), whole.run(feeds))
    assert [op.op_name for op in pieces.writer.ops] == [op.op_name for op in whole.writer.ops]
    for one, other in zip(pieces.writer.tensors, whole.writer.tensors, strict=True):
        assert (one.name, one.shape, one.dtype, one.source) == (other.name, other.shape, other.dtype, other.source)
        assert one.payload is not None
        assert other.payload is not None
        assert same_bits(one.payload.to_host(), other.payload.to_host())
        assert one.statistics == other.statistics


@pytest.mark.parametrize("level", ["disable", "basic", "all"])
def test_weights_in_files_of_their_own_stay_there(tmp_path: Path, level: str) -> None:
    content, feeds = exported("convnet")
    path = tmp_path / "folder" / "net.onnx"
    path.parent.mkdir()
    onnx.save_model(
        onnx.load_from_string(content), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    recording = Recording(path, {"layout": "acl"}, level=level)
    assert same_bits(recording.run(feeds), plain_run(path, feeds, level=LEVELS[level]))
    written = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(content).graph.initializer
    }
    found = {record.source: record for record in recording.writer.tensors if record.source.startswith("Parameter.")}
    assert "Parameter.fc.weight" in found
    for source, record in found.items():
        name = source.removeprefix("Parameter.")
        if name in written and level == "disable":
            assert record.payload is not None
            assert same_bits(record.payload.to_host(), written[name])
    assert all(op.net_name == "net" for op in recording.writer.ops)
    assert sorted(each.name for each in path.parent.iterdir()) == ["net.onnx", "weights.bin"]


def test_what_is_loaded_of_a_model_with_weights_in_files_stays_small(tmp_path: Path) -> None:
    weight = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        onnx.helper.make_node("Neg", ["a"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, [1, 1000])}, {"y": (FLOAT, [1, 1000])}, {"w": weight})
    onnx.save_model(model, tmp_path / "net.onnx", save_as_external_data=True, location="weights.bin")
    recording = Recording(tmp_path / "net.onnx")
    feeds = {"x": numbers(1, 1000)}
    assert same_bits(recording.run(feeds), plain_run(tmp_path / "net.onnx", feeds))
    assert same_bits(recording.elements("product", "input", 1), weight)
    assert len(recording.session.model.with_outputs(["a"])) < 2000
    assert len(recording.session.model.proto.SerializeToString()) < 2000
