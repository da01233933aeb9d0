"""Live checks of an ONNX model report the same as checking a dump of its tensors, whatever is dumped."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import opdump
import opdump.onnx
from opdump.checks import Thresholds
from opdump.checks.nonfinite_lineage import Checked
from opdump.configs.shared.watchpoints import watchpoints_of
from opdump.plan import DumpPlan
from opdump.reports.findings import check_dump

WATCH = (
    "weight_too_large abs_mean_gt=0.1",
    "weight_not_changed",
    "activation_range range_start_inclusive=-0.5 range_end_inclusive=0.5 range_percentage_gt=1",
    "tensor_too_small abs_mean_lt=0.9",
)


def model() -> onnx.ModelProto:
    """A clip that hides infinities of a division."""
    generator = np.random.default_rng(0)
    constants = {"w": generator.normal(size=(4, 4)), "zero": np.zeros(4), "low": np.array(-5.0), "high": np.array(5.0)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("Exp", ["t"], ["e"], "exp"),
        helper.make_node("Div", ["e", "zero"], ["d"], "quotient"),
        helper.make_node("Clip", ["d", "low", "high"], ["y"], "clip"),
    ]
    real = onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, real, [2, 4]) for name in "xy")
    kept = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "Net", [x], [y], kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def told(checked: Checked) -> list[dict[str, Any]]:
    return [{**asdict(hit), "timestamp": 0} for hit in checked.hits]


@pytest.mark.parametrize("options", [{"saved_data": "statistic"}, {"saved_data": "full", "sample_num": 3}])
def test_they_say_what_is_said_of_a_dump_of_tensors(options: dict[str, Any], tmp_path: Path) -> None:
    reports = []
    for plan in (
        DumpPlan(path=tmp_path / "live", checks=WATCH, **options),
        DumpPlan(path=tmp_path / "full", saved_data="full"),
    ):
        with opdump.onnx.session(model(), plan) as session:
            for step in range(2):
                session.run(None, {"x": np.full((2, 4), step + 0.1, np.float32)})
        reports.append(session.report)
    assert reports[0] is not None
    live = reports[0].checked
    assert live is not None
    dumped = check_dump(opdump.open(tmp_path / "full"), Thresholds(), watchpoints=watchpoints_of(WATCH))
    assert told(live) == told(dumped)
    assert {hit.condition for hit in live.hits} == {each.split()[0] for each in WATCH}
    assert live.histories == dumped.histories
    assert [place.op_type for history in live.histories for place in history.killed] == ["Clip", "Clip"]
    if "sample_num" in options:  # only what was requested is dumped
        sizes = {record.numpy().size for record in opdump.open(tmp_path / "live") if record.shape}
        assert sizes == {3}
