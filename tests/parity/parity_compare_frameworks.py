"""A PyTorch network against a copy of it in TensorFlow with the same weights: benign, and a planted difference is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import opdump
from tests.comparison.networks import dump_torch, network
from tests.parity import peers


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


def _copied(folder: Path, epsilon: str) -> Path:
    dump = folder / f"tensorflow_{epsilon}"
    environment = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    peers.run(peers.TENSORFLOW, [peers.SCRIPTS / "tf_resnet.py", folder / "weights.npz", dump, epsilon], environment)
    return dump
