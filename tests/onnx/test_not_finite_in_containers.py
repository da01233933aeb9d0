"""A NaN that passes through a sequence or an optional was not made by the operator that takes it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

import opdump.onnx
from opdump.commands import main
from opdump.verdict import Verdict
from tests.onnx.recording import FLOAT, model_of

LOG = helper.make_node("Log", ["x"], ["l"], name="log")
ZERO = {"zero": np.array(0)}
WAYS: dict[str, tuple[list[onnx.NodeProto], dict[str, Any]]] = {
    "a sequence": (
        [
            helper.make_node("SequenceConstruct", ["l", "x"], ["s"], name="construct"),
            helper.make_node("SequenceAt", ["s", "zero"], ["a"], name="out"),
        ],
        ZERO,
    ),
    "a sequence that grows": (
        [
            helper.make_node("SequenceEmpty", [], ["e"], name="empty"),
            helper.make_node("SequenceInsert", ["e", "l"], ["s"], name="insert"),
            helper.make_node("ConcatFromSequence", ["s"], ["a"], name="out", axis=0),
        ],
        {},
    ),
    "parts": (
        [
            helper.make_node("SplitToSequence", ["l", "one"], ["s"], name="split", axis=0),
            helper.make_node("SequenceAt", ["s", "zero"], ["a"], name="out"),
        ],
        {**ZERO, "one": np.array(1)},
    ),
    "an optional": (
        [
            helper.make_node("Optional", ["l"], ["s"], name="optional"),
            helper.make_node("OptionalGetElement", ["s"], ["a"], name="out"),
        ],
        {},
    ),
}


def checked(tmp_path: Path, model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[Verdict, str]:
    """The verdict of the run, and the output of `opdump check`."""
    with opdump.onnx.session(model, path=str(tmp_path / "dump"), saved_data="full") as session:
        session.run(None, feeds)
    assert session.report is not None
    return session.report.verdict, CliRunner().invoke(main, ["check", str(tmp_path / "dump")]).output


@pytest.mark.parametrize("way", WAYS)
def test_nan_is_born_where_it_was_made_and_passed_on_by_what_takes_it_out(tmp_path: Path, way: str) -> None:
    nodes, weights = WAYS[way]
    last = helper.make_node("Relu", ["a"], ["y"], name="relu")
    model = model_of([LOG, *nodes, last], {"x": (FLOAT, [3])}, {"y": (FLOAT, None)}, weights)
    verdict, printed = checked(tmp_path, model, {"x": np.array([-1, 1, 2], np.float32)})
    assert (verdict.kind, verdict.op_name) == ("nan", "log")
    assert printed.count("born") == 1, printed
    assert "born    step 0  Log (log)" in printed
    assert "passed on by 2 operators" in printed


def test_nan_in_a_sequence_that_was_fed_is_not_made_by_who_takes_it_out(tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    model = model_of(
        [
            helper.make_node("SequenceAt", ["x", "zero"], ["a"], name="out"),
            helper.make_node("Relu", ["a"], ["y"], name="relu"),
        ],
        {},
        {"y": (FLOAT, None)},
        ZERO,
    )
    model.graph.input.append(helper.make_value_info("x", kind))
    _, printed = checked(tmp_path, model, {"x": [np.array([np.nan, 1], np.float32)]})
    assert "born" not in printed
    assert "given   step 0  an element that out takes out" in printed
