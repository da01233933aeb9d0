"""The graph files of offline models, read by the fusion rule parser of msaccucmp, which the comparison of dumps uses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import opdump
from tests.parity import peers

IMAGE = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)


def _model(path: Path) -> Path:
    weights = np.random.default_rng(1).normal(size=(8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "weights"], ["planes"], "net/conv"),
            helper.make_node("Relu", ["planes"], ["positive"], "net/relu"),
            helper.make_node("GlobalAveragePool", ["positive"], ["scores"], "net/pool"),
        ],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 8, 1, 1])],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def _rules(dump: Path) -> dict[str, Any]:
    (graph,) = dump.glob("*/ge_proto_*_Build.txt.json")
    script = peers.SCRIPTS / "read_fusion_rules.py"
    printed = peers.run(peers.MSPROBE, [script, peers.msaccucmp().parent, graph], {})
    (line,) = (line for line in printed.splitlines() if line.startswith("RULES "))
    rules: dict[str, Any] = json.loads(line.removeprefix("RULES "))
    return rules


@pytest.mark.parametrize("level", ["disable", "extended"])
def test_the_parser_finds_the_original_operators(level: Literal["disable", "extended"], tmp_path: Path) -> None:
    model = _model(tmp_path / "net.onnx")
    dump = tmp_path / "dump"
    dump.mkdir()
    with opdump.onnx.session(model, dump_path=str(dump), dump_list=[{}], dump_mode="all", optimize=level) as session:
        session.run(None, {"image": IMAGE})
    rules = _rules(dump)
    operators = rules["operators"]
    assert rules["inputs"] == ["image"]
    run = {name: op for name, op in operators.items() if op["type"] not in ("Data", "Const", "NetOutput")}
    assert {op.op_name for op in opdump.open(dump).ops() if not op.skip} == set(run)
    originals = sorted(name for op in run.values() for name in op["original"])
    assert originals == ["net/conv", "net/pool", "net/relu"]
    conv = next(op for op in run.values() if "net/conv" in op["original"])
    assert conv["inputs"][:2] == ["image:0", "weights:0"]
    # The output of a fused operator is that of the last original operator.
    assert conv["outputs"] == [["net/relu" if "net/relu" in conv["original"] else "net/conv", 0]]
    assert ("net/relu" in conv["original"]) == (level == "extended")
