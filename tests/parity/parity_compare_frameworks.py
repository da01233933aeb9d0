"""A PyTorch network compared with a copy in TensorFlow with the same weights: benign, and a planted difference is named."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest

import opdump
from tests.comparison.networks import dump_onnx, dump_torch, network
from tests.parity import peers

ENVIRONMENT: Final = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
PLANTED: Final = {
    "mlp": ("argument", "gelu", "approximate: none in A, as if tanh in B"),
    "cnn": ("argument", "native_batch_norm", "eps: 0.001 in A, as if 1e-05 in B"),
    "transformer": ("argument", "gelu", "approximate: none in A, as if tanh in B"),
    "lstm": ("operator", "mkldnn_rnn_layer", "mkldnn_rnn_layer in A in float64"),
}
"""The expected finding for the difference in each copy."""


def test_a_copy_in_tensorflow_is_benign_and_another_epsilon_is_named(tmp_path: Path) -> None:
    model, given = network("resnet")
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.savez(tmp_path / "weights.npz", given=given.numpy(), **state)
    original = dump_torch(model, given, tmp_path / "torch")

    same = opdump.compare(original, _copied(tmp_path, "1e-5"))
    assert (same.verdict, list(same.introduced)) == ("benign", [])
    assert same.unmatched <= 0.02 * (same.matched + same.unmatched)

    other = opdump.compare(original, _copied(tmp_path, "1e-3"))
    assert (other.verdict, [each.kind for each in other.introduced]) == ("divergent", ["argument"])
    found = other.introduced[0]
    assert found.evidence.startswith("eps: 1e-05 in A, as if 0.001 in B")
    assert found.a is not None
    assert found.b is not None
    assert (found.a.op_name.split("/")[-2], found.b.op_type) == ("norm-BatchNorm2d", "FusedBatchNormV3")
    assert found.b.line.startswith("tf_resnet.py:")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of PyTorch networks and of their TensorFlow copies, without and with a difference; one process makes all copies."""
    folder = tmp_path_factory.mktemp("copies")
    for name in PLANTED:
        model, given = network(name)
        state = {each: tensor.numpy() for each, tensor in model.state_dict().items()}
        np.savez(folder / f"{name}.npz", given=given.numpy(), **state)
        dump_torch(model, given, folder / f"{name}_torch")
        dump_onnx(model, given, folder / f"{name}_onnx", "plain")
    peers.run(peers.TENSORFLOW, [peers.SCRIPTS / "tf_networks.py", folder], ENVIRONMENT)
    return folder


@pytest.mark.parametrize("name", PLANTED)
def test_a_copy_of_a_network_is_benign_and_matched(copies: Path, name: str) -> None:
    result = opdump.compare(copies / f"{name}_torch", copies / name)
    assert (result.verdict, list(result.introduced)) == ("benign", [])
    assert result.unmatched <= 0.02 * (result.matched + result.unmatched)
    rows = result.rows()
    assert {row["matched_by"] for row in rows} == {"value"}
    assert all(row["cosine"] > 1 - 1e-9 for row in rows if row["roundings"] is not None)


@pytest.mark.parametrize("name", PLANTED)
def test_a_difference_in_a_copy_is_named(copies: Path, name: str) -> None:
    kind, op_type, evidence = PLANTED[name]
    result = opdump.compare(copies / f"{name}_torch", copies / f"{name}_planted")
    (found,) = result.introduced
    assert (result.verdict, found.kind, found.a and found.a.op_type) == ("divergent", kind, op_type)
    assert evidence in found.evidence
    assert found.b is not None
    assert found.b.line.startswith("tf_networks.py:")


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer"])
def test_a_copy_is_judged_against_onnx_runtime_too(copies: Path, name: str) -> None:
    same = opdump.compare(copies / f"{name}_onnx", copies / name)
    assert (same.verdict, list(same.introduced), same.unmatched) == ("benign", [], 0)
    one, other = copies / f"{name}_onnx", copies / f"{name}_planted"
    (found,), (turned,) = opdump.compare(one, other).introduced, opdump.compare(other, one).introduced
    assert found.a is not None
    assert (found.a, found.b) == (turned.b, turned.a)
    assert found.a.op_type == {"cnn": "BatchNormalization"}.get(name, "Erf")


def _copied(folder: Path, epsilon: str) -> Path:
    dump = folder / f"tensorflow_{epsilon}"
    peers.run(peers.TENSORFLOW, [peers.SCRIPTS / "tf_resnet.py", folder / "weights.npz", dump, epsilon], ENVIRONMENT)
    return dump
