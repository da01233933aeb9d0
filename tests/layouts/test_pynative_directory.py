"""Operators of MindSpore's PyNative mode are written to and read from their own directory, beside those of graphs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.graph import PYNATIVE, Graph, GraphNode, graph_of_word, graph_word
from opdump.index.runs import METADATA
from opdump.plan import DumpPlan
from opdump.records import HostPayload, OpRecord, TensorRecord
from opdump.testing import SampleStep
from tests.layouts.filing import file_in_layout, new_writer

NAME = "Default/conv1-Conv2d/Conv2D-op0"


def step(number: int) -> SampleStep:
    """The same operator inside and outside a graph."""
    ops, tensors = [], []
    for place, graph_id in enumerate((0, PYNATIVE)):
        op = OpRecord("Conv2D", NAME, 1_700_000_000_000_000 + place, number, "Net", graph_id, order=place)
        ops.append(op)
        array = np.full((2, 3), graph_id, np.float32)
        tensors.append(TensorRecord(op, "output", 0, "float32", (2, 3), payload=HostPayload(array), data_size=24))
    return SampleStep(number, tuple(ops), tuple(tensors))


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl"])
def test_both_are_read_from_their_own_directories(tmp_path: Path, layout: str, has_index: bool) -> None:
    more: dict[str, Any] = {"file_format": "bin"} if layout in ("mindspore-async", "acl") else {}
    more |= {"dialect": "acl"} if layout == "acl" else {}
    file_in_layout(DumpPlan(path=tmp_path, layout=layout, **more), [step(0)])
    assert {path.name for path in tmp_path.rglob("Net/*")} == {"0", "pynative"}
    if not has_index:
        for metadata in list(tmp_path.rglob(METADATA)):
            shutil.rmtree(metadata)
    catalog = open_dump(tmp_path)
    assert {record.op.graph_id: record.numpy().max() for record in catalog} == {0: 0.0, PYNATIVE: -1.0}
    assert [op.graph_id for op in catalog.ops(graph=PYNATIVE)] == [PYNATIVE]
    assert catalog.problems == ()


def test_its_graph_files_do_not_take_the_place_of_those_of_a_graph(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path))
    for graph_id in (0, PYNATIVE):
        writer.write_graph(
            Graph(graph_id=graph_id, nodes=(GraphNode(op_name=f"Default/of{graph_id}-op0", op_type="Add"),))
        )
    writer.graphs_ran(3, (0, PYNATIVE))
    writer.close({"executed": 0})
    catalog = open_dump(tmp_path)
    assert catalog.graphs == (PYNATIVE, 0)
    for graph_id in (0, PYNATIVE):
        graph = catalog.graph(graph_id)
        assert graph is not None
        assert (graph.graph_id, graph.nodes[0].op_name) == (graph_id, f"Default/of{graph_id}-op0")
        assert catalog.history(graph_id) == (3,)
        assert catalog.execution_order(graph_id) == (f"Default/of{graph_id}-op0",)
    (tmp_path / "rank_0" / "graphs" / "ms_output_trace_code_graph_pynative.pb").unlink()
    graph = open_dump(tmp_path).graph(PYNATIVE)
    assert graph is not None
    assert graph.graph_id == PYNATIVE  # from the .ir


def test_words_of_graphs() -> None:
    assert [graph_word(graph_id) for graph_id in (PYNATIVE, 0, 12)] == ["pynative", "0", "12"]
    assert [graph_of_word(word) for word in ("pynative", "12", "constants", "-1", "٣", "9" * 40)] == [
        PYNATIVE,
        12,
        None,
        None,
        None,
        None,
    ]
