"""A wrong kernel in one of two frameworks is named by replaying it on its own inputs."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import opdump
from opdump.records import SupportsFile

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import torch

from tests.comparison.networks import dump_onnx, dump_torch, network


def test_a_wrong_kernel_of_pytorch_is_named_in_either_order(tmp_path: Path) -> None:
    model, given = network("unet")
    exported = dump_onnx(model, given, tmp_path / "onnx")
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that a kernel is replaced
        library.impl("avg_pool2d", lambda x, *_: 1.01 * x[..., ::2, ::2].contiguous(), "CPU")
        faulty = dump_torch(model, given, tmp_path / "torch")
    for dumps in ((faulty, exported), (exported, faulty)):
        result = opdump.compare(*dumps)
        (found,) = result.introduced
        one = found.a if dumps[0] == faulty else found.b
        assert (result.verdict, found.kind, one and one.op_type) == ("divergent", "kernel", "avg_pool2d")
        assert "from a float64 computation on the same inputs" in found.evidence


def test_a_flipped_bit_in_an_output_of_onnx_runtime_is_named(tmp_path: Path) -> None:
    model, given = network("resnet")
    original, exported = dump_torch(model, given, tmp_path / "torch"), dump_onnx(model, given, tmp_path / "onnx")
    (record,) = next(opdump.open(exported).ops("Softmax")).outputs.values()
    payload: object = record.payload
    assert isinstance(payload, SupportsFile)
    elements = np.load(payload.file)
    elements[1, 2] *= 1.004
    np.save(payload.file, elements)
    (found,) = opdump.compare(original, exported).introduced
    assert found.kind == "kernel"
    assert found.b is not None
    assert (found.b.op_type, found.evidence[:5]) == ("Softmax", "in B:")
