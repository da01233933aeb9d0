"""An ONNX model under data_dump.json: directories, file names and graphs follow MindSpore's layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import opdump
import opdump.onnx
from opdump.graph import Graph
from opdump.layouts.graph_files.mindspore import decode_execution_order, decode_ir, decode_pb
from opdump.layouts.mindspore_sync.files import parse_file_name
from opdump.plan import SyncLayoutName
from tests.onnx.recording import FLOAT, INT64, model_of, numbers

NAMES = ["/layer1/Conv", "/layer2/Conv", "/layer2/Relu", "/layer3/Conv", "/head/MatMul", "/tail/MatMul"]


def convolutions() -> onnx.ModelProto:
    """Three convolutions and two products whose names end alike, named as exporters do."""
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"], name=NAMES[0], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "k"], ["b"], name=NAMES[1], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["b"], ["c"], name=NAMES[2]),
        helper.make_node("Conv", ["c", "k"], ["d"], name=NAMES[3], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["d", "w"], ["e"], name=NAMES[4]),
        helper.make_node("MatMul", ["e", "w"], ["y"], name=NAMES[5]),
    ]
    return model_of(
        nodes,
        {"x": (FLOAT, ["batch", 2, 4, 4])},
        {"y": (FLOAT, ["batch", 2, 4, 4])},
        {"k": numbers(2, 2, 3, 3), "w": numbers(4, 4)},
    )


def dumped(tmp_path: Path, model: onnx.ModelProto, feeds: dict[str, Any], **settings: Any) -> Path:
    """The directory of the rank."""
    common = {
        "dump_mode": 0, "path": str(tmp_path / "dump"), "net_name": "ResNet50", "iteration": "all", "saved_data": "full",
        "input_output": 0, "kernels": [], "support_device": [0],
    }  # fmt: skip
    config = tmp_path / "data_dump.json"
    sections = {"common_dump_settings": {**common, **settings.pop("common", {})}, "e2e_dump_settings": {"enable": True}}
    config.write_text(json.dumps(sections))
    with opdump.onnx.session(model, config, **settings) as session:
        session.run(None, feeds)
    return tmp_path / "dump" / "rank_0"


def graph_of(rank: Path, layout: SyncLayoutName = "mindspore-2.3") -> Graph:
    stems = {path.stem for path in (rank / "graphs").iterdir()}
    (stem,) = stems
    graph = decode_ir((rank / "graphs" / f"{stem}.ir").read_bytes())
    assert decode_pb((rank / "graphs" / f"{stem}.pb").read_bytes()).nodes == graph.nodes
    return graph


def test_each_operator_has_files_of_its_own_name_in_the_directory_of_the_net(tmp_path: Path) -> None:
    rank = dumped(tmp_path, convolutions(), {"x": numbers(1, 2, 4, 4)})
    (step,) = (rank / "ResNet50").glob("*/0")
    named = {parse_file_name(path.name) for path in step.glob("*.npy")}
    outputs = sorted(f"{each.op_type}.{each.op_name}" for each in named if each is not None and each.io == "output")
    assert outputs == ["Conv.Conv", "Conv.Conv-op1", "Conv.Conv-op2", "MatMul.MatMul", "MatMul.MatMul-op1", "Relu.Relu"]


def test_the_execution_order_has_the_full_names_of_these_files(tmp_path: Path) -> None:
    rank = dumped(tmp_path, convolutions(), {"x": numbers(1, 2, 4, 4)})
    (order,) = (rank / "execution_order").glob("ms_execution_order_graph_*.csv")
    names = decode_execution_order(order.read_bytes())
    assert [name.rpartition("-op")[0] or name for name in names] == NAMES
    assert len({name.rpartition("/")[2] for name in names}) == len(NAMES)
    (history,) = (rank / "execution_order").glob("ms_global_execution_order_graph_*.csv")
    assert history.read_text().split() == ["0"]


def test_the_graph_has_the_maker_and_the_type_of_each_value(tmp_path: Path) -> None:
    graph = graph_of(dumped(tmp_path, convolutions(), {"x": numbers(1, 2, 4, 4)}))
    assert [value.name for value in graph.parameters] == ["k", "w"]
    first, second = graph.node("/layer1/Conv"), graph.node("/layer2/Conv-op1")
    assert [each.source for each in first.inputs] == ["", "Parameter.k"]
    assert [each.source for each in second.inputs] == ["/layer1/Conv:0", "Parameter.k"]
    assert second.outputs[0] == ("float32", (-1, 2, 4, 4))
    assert first.attributes["pads"] == [1, 1, 1, 1]


def test_without_its_index_a_dump_is_read_by_its_files_under_the_same_names(tmp_path: Path) -> None:
    rank = dumped(tmp_path, convolutions(), {"x": numbers(1, 2, 4, 4)})
    whole = [(each.op.op_name, each.op.net_name) for each in opdump.open(rank.parent).ops()]
    (rank / ".dump_metadata" / "index.sqlite").unlink()
    assert [(each.op.op_name, each.op.net_name) for each in opdump.open(rank.parent).ops()] == whole


@pytest.mark.parametrize("entry", ["/layer2/Conv", "/layer2/Conv-op1", "name-regex(.*layer2/C.*)"])
def test_an_operator_is_chosen_by_the_name_of_the_model_and_by_that_of_the_dump(tmp_path: Path, entry: str) -> None:
    common = {"dump_mode": 1, "kernels": [entry]}
    rank = dumped(tmp_path, convolutions(), {"x": numbers(1, 2, 4, 4)}, common=common)
    assert [each.op.op_name for each in opdump.open(rank.parent).ops() if not each.op.skip] == ["/layer2/Conv-op1"]
    assert len(graph_of(rank).nodes) == len(NAMES), "the graph also has the operators that are not dumped"


def test_an_optimised_model_keeps_the_numbers_of_the_original_one(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["x"], ["a"], name="/first/Scale"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="/second/Scale"),
        helper.make_node("Relu", ["b"], ["y"], name="/third/Scale"),
    ]
    model = model_of(nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2, 3])}, {"w": numbers(3, 3)})
    rank = dumped(tmp_path, model, {"x": numbers(2, 3)}, optimize="basic")
    assert [node.op_name for node in graph_of(rank).nodes] == ["/second/Scale-op1", "/third/Scale-op2"]


def test_operators_in_bodies_stand_in_the_graph_behind_their_control_operator(tmp_path: Path) -> None:
    double = helper.make_node("Add", ["x", "x"], ["double"], name="/then/Add")
    same = helper.make_node("Add", ["x", "zero"], ["same"], name="/else/Add")
    bodies: dict[str, Any] = {
        "then_branch": helper.make_graph([double], "then", [], [helper.make_tensor_value_info("double", FLOAT, [3])]),
        "else_branch": helper.make_graph([same], "else", [], [helper.make_tensor_value_info("same", FLOAT, [3])]),
    }
    nodes = [
        helper.make_node("Greater", ["n", "one"], ["c"], name="/Greater"),
        helper.make_node("If", ["c"], ["y"], name="/If", **bodies),
    ]
    model = model_of(
        nodes,
        {"x": (FLOAT, [3]), "n": (INT64, [])},
        {"y": (FLOAT, [3])},
        {"one": np.int64(1), "zero": np.zeros(3, np.float32)},
    )
    rank = dumped(tmp_path, model, {"x": numbers(3), "n": np.array(2)})
    graph = graph_of(rank)
    names = [node.op_name for node in graph.nodes]
    assert (names[:2], set(names[2:])) == (["/Greater", "/If"], {"/else/Add", "/then/Add-op1"})
    assert [node.op_name for node in graph.kernels] == [name for name in names if name != "/If"]
    assert [each.source for each in graph.node("/else/Add").inputs] == ["", "Parameter.zero"]
