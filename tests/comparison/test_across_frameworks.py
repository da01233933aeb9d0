"""A network under PyTorch, and exported under ONNX Runtime: what a comparison says of the two."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

from tests.comparison.networks import NETWORKS, Exporter, dump_onnx, dump_torch, network


@pytest.mark.parametrize("exporter", ["folded", "plain"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_is_benign_and_matched(name: str, exporter: Exporter, tmp_path: Path) -> None:
    model, given = network(name)
    result = opdump.compare(
        dump_torch(model, given, tmp_path / "torch"), dump_onnx(model, given, tmp_path / "onnx", exporter)
    )
    assert (result.verdict, list(result.introduced)) == ("benign", [])
    assert result.unmatched <= 0.02 * (result.matched + result.unmatched)
