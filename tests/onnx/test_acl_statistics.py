"""Statistics instead of tensors for an ONNX model: computed by the rules of a device, without copying tensors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import opdump


def _table(root: Path, op_type: str) -> list[list[str]]:
    (path,) = root.rglob(f"{op_type}.*.csv")
    return [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def _run(root: Path, array: np.ndarray, number: int, op_type: str = "Neg") -> list[list[str]]:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], ["y"], "node")],
        "graph",
        [helper.make_tensor_value_info("x", number, array.shape)],
        [helper.make_tensor_value_info("y", number, array.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with opdump.onnx.session(
        model.SerializeToString(), dump_path=str(root), dump_list=[{}], dump_mode="all", dump_data="stats"
    ) as session:
        session.run(None, {"x": array})
    return _table(root, op_type)


@pytest.mark.parametrize(
    ("values", "greatest", "least"),
    [
        ([math.nan, 2.0, 1.0], "nan", "nan"),
        ([2.0, math.nan, 1.0], "2", "1"),
        ([0.0, -0.0, -1.0], "0", "-1"),
        ([-0.0, 0.0, -1.0], "-0", "-1"),
        ([1.0, -3.0], "1", "-3"),
    ],
)
def test_extremes_are_those_of_a_device(values: list[float], greatest: str, least: str, tmp_path: Path) -> None:
    given, _ = _run(tmp_path, np.array(values, np.float32), TensorProto.FLOAT)
    assert given[:6] == ["Input", "0", str(4 * len(values)), "DT_FLOAT", "ND", str(len(values))]
    assert given[6:8] == [greatest, least]
    assert given[10] == str(sum(map(math.isnan, values)))


def test_whole_numbers_keep_all_their_digits(tmp_path: Path) -> None:
    given, result = _run(tmp_path, np.array([2**62 + 1, 0]), TensorProto.INT64)
    assert given[6:8] == ["4611686018427387905", "0"]
    assert result[6:8] == ["0", "-4611686018427387905"]
