"""LeNet with the same weights and batches, dumped by MindSpore 2.10 and by opdump under the same data_dump.json."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner

from opdump.catalog.catalog import open_dump
from opdump.commands import main
from opdump.graph import GraphNode
from tests.parity import tree
from tests.parity.lenet import PARAMETERS, SHAPES, STEPS, Dumps, make_dumps

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    return make_dumps(tmp_path_factory.mktemp("lenet"))


def test_both_train_alike(dumps: Dumps) -> None:
    assert len(dumps.mindspore_losses) == len(dumps.torch_losses) == STEPS
    assert dumps.torch_losses == pytest.approx(dumps.mindspore_losses, rel=TOLERANCE)


def test_the_directories_are_the_same(dumps: Dumps) -> None:
    ours, theirs = tree.directories(dumps.torch), tree.directories(dumps.mindspore)
    print(f"{len(theirs)} directories")
    assert ours == theirs
    assert tree.steps(dumps.torch) == list(range(STEPS))


def test_the_config_in_the_dump_is_the_file_that_was_given(dumps: Dumps) -> None:
    ours, theirs = (dump / "rank_0/.dump_metadata" for dump in (dumps.torch, dumps.mindspore))
    assert (ours / "data_dump.json").read_bytes() == (theirs / "data_dump.json").read_bytes()
    assert json.loads((ours / "config.json").read_text())["device_target"] == "CPU"
    assert json.loads((theirs / "config.json").read_text())["device_target"] == "CPU"


def test_one_grammar_has_every_file_name(dumps: Dumps) -> None:
    for name, dump in (("MindSpore", dumps.mindspore), ("opdump", dumps.torch)):
        counts = [sum(1 for _ in tree.tensor_files(dump, step)) for step in tree.steps(dump)]
        print(f"{name}: {counts} tensor files in the steps")
        assert all(count > 100 for count in counts)
        for step in tree.steps(dump):
            for path, parts in tree.tensor_files(dump, step):
                assert parts.timestamp > 10**15, path
                assert np.load(path, allow_pickle=False).dtype.kind in "fiub", path


def test_the_same_readers_read_graph_and_execution_order(dumps: Dumps) -> None:
    for name, dump in (("MindSpore", dumps.mindspore), ("opdump", dumps.torch)):
        order = tree.execution_order(dump)
        from_pb, from_ir = tree.graphs(dump)
        print(f"{name}: {len(from_pb.nodes)} nodes, {len(order)} kernels")
        assert [node.op_name for node in from_pb.nodes] == [node.op_name for node in from_ir.nodes]
        assert [node.runs_kernel for node in from_pb.nodes] == [node.runs_kernel for node in from_ir.nodes]
        assert sorted(node.op_name for node in from_pb.kernels) == sorted(order)
        assert set(PARAMETERS) <= {value.name for value in from_pb.parameters}
        assert tree.history(dump) == tuple(range(STEPS))


def test_opdump_names_in_the_graph_every_operator_that_has_files(dumps: Dumps) -> None:
    kernels = {name.rsplit("/", 1)[-1] for name in tree.execution_order(dumps.torch)}
    with_files = {
        parts.op_name
        for step in range(STEPS)
        for _, parts in tree.tensor_files(dumps.torch, step)
        if parts.op_type != "Parameter"
    }
    print(f"{len(with_files)} operators with files, {len(kernels)} kernels in the graph")
    assert with_files == kernels


def test_the_sources_of_every_input_are_in_the_graph(dumps: Dumps) -> None:
    graph, _ = tree.graphs(dumps.torch)
    known = {f"{node.op_name}:{slot}" for node in graph.nodes for slot in range(len(node.outputs))}
    known |= {f"Parameter.{value.name}" for value in graph.parameters} | {value.name for value in graph.constants}
    dangling = [
        f"{node.op_name} <- {value.source}"
        for node in graph.nodes
        for value in node.inputs
        if value.source and value.source not in known
    ]
    assert dangling == []


def test_one_catalog_reads_both(dumps: Dumps) -> None:
    for name, dump in (("MindSpore", dumps.mindspore), ("opdump", dumps.torch)):
        catalog = open_dump(dump)
        assert (catalog.ranks, catalog.steps, catalog.graphs) == ((0,), tuple(range(STEPS)), (0,))
        for step in catalog.steps:
            files = sum(1 for _ in tree.tensor_files(dump, step))
            records = list(catalog.tensors(step=step))
            print(f"{name}, step {step}: {files} tensor files, {len(records)} records")
            assert len(records) == files
            assert all(
                record.payload is not None and record.payload.to_host().shape == record.shape for record in records
            )
        script = {"MindSpore": "lenet_mindspore.py", "opdump": "lenet_torch.py"}[name]
        found = list(catalog.at_source(script, step=1))
        print(f"{name}: {len(found)} operators of {script} in step 1")
        assert len(found) > 20
        assert catalog.problems == ()


def test_a_dump_of_mindspore_is_completed(dumps: Dumps, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["complete", str(dumps.mindspore), "-o", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    (rank,) = json.loads(done.stdout)["ranks"]
    print(f"{rank['operators']} operators, {rank['with_lines']} with their line, {rank['tensors']} tensors")
    assert rank["with_lines"] == rank["operators"] > 100
    by_files, completed = open_dump(dumps.mindspore), open_dump(tmp_path)
    records = list(completed.tensors())
    assert [(record.op, record.source, record.shape) for record in records] == [
        (record.op, record.source, record.shape) for record in by_files.tensors()
    ]
    assert all("l2norm" in record.statistics for record in records)
    assert completed.problems == ()


@pytest.mark.parametrize("layer", SHAPES)
def test_forward_outputs_agree(dumps: Dumps, layer: str) -> None:
    ours = _last(dumps.torch, "forward", f"/{layer}-")
    theirs = _last(dumps.mindspore, "forward", f"/{layer}-")
    for step in range(STEPS):
        left, right = (
            tree.load(dump, step, node.op_name, "output", 0)
            for dump, node in zip(_both(dumps), (ours, theirs), strict=True)
        )
        _agree(f"{layer}: {ours.op_type} and {theirs.op_type}", step, left, right)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_gradients_agree(dumps: Dumps, parameter: str) -> None:
    for step in range(STEPS):
        left = _torch_gradient(dumps.torch, step, parameter)
        right = _mindspore_gradient(dumps.mindspore, step, parameter)
        _agree(parameter, step, left, right)


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_updated_parameters_agree(dumps: Dumps, parameter: str) -> None:
    for step in range(STEPS):
        left, right = (tree.load(dump, step, parameter, "output", 0) for dump in _both(dumps))
        _agree(parameter, step, left, right)


def _both(dumps: Dumps) -> tuple[Path, Path]:
    return dumps.torch, dumps.mindspore


def _agree(what: str, step: int, ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> None:
    """Assert equal shapes, and no difference above TOLERANCE relative to the largest value."""
    assert ours.shape == theirs.shape, f"{what}, step {step}"
    difference = float(np.abs(ours.astype(np.float64) - theirs).max() / np.abs(theirs).max())
    print(f"{what}, step {step}: {difference:.2g}")
    assert difference <= TOLERANCE


def _last(dump: Path, phase: str, scope: str) -> GraphNode:
    """The last kernel of a layer: MindSpore adds the bias in a separate operator."""
    graph, _ = tree.graphs(dump)
    return [node for node in graph.kernels if node.phase == phase and scope in node.op_name][-1]


def _torch_gradient(dump: Path, step: int, parameter: str) -> npt.NDArray[np.float32]:
    """From the layer's backward operators: one for a convolution, a product and a sum for a linear layer."""
    layer, kind = parameter.split(".")
    graph, _ = tree.graphs(dump)
    nodes = [node for node in graph.kernels if node.phase == "backward" and f"/{layer}-" in node.op_name]
    shape = SHAPES[layer] if kind == "weight" else SHAPES[layer][:1]
    for node in nodes:
        if node.op_type == "convolution_backward":
            return tree.load(dump, step, node.op_name, "output", 1 if kind == "weight" else 2)
        if math.prod(node.outputs[0].shape) == math.prod(shape) and node.op_type == (
            "mm" if kind == "weight" else "sum"
        ):
            return tree.load(dump, step, node.op_name, "output", 0).reshape(shape)
    raise AssertionError(f"no gradient of {parameter} among {[node.op_name for node in nodes]}")


def _mindspore_gradient(dump: Path, step: int, parameter: str) -> npt.NDArray[np.float32]:
    """From the optimizer: the fourth input of the ApplyMomentum whose first input is the parameter."""
    graph, _ = tree.graphs(dump)
    source = f"Parameter.{parameter}"
    (node,) = (node for node in graph.kernels if node.op_type == "ApplyMomentum" and node.inputs[0].source == source)
    # For three other nodes, the graph file and the names of the tensor files disagree, so compare the values too.
    updated = tree.load(dump, step, parameter, "output", 0)
    np.testing.assert_array_equal(tree.load(dump, step, node.op_name, "input", 0), updated)
    return tree.load(dump, step, node.op_name, "input", 3)
