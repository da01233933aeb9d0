"""Every real dump opens with the correct ranks, steps, operators, shapes and values.

The expected values come from `result.json`, numpy and the execution order files, not from opdump.
"""

from __future__ import annotations

import ast
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.catalog.catalog import open_dump
from opdump.errors import UnknownLayoutError
from tests.catalog import archives

_REFUSED = {"mode1_bad_regex", "path_unwritable", "py_badcfg", "saved_statistic"}
_WITH_DUMP = [name for name in archives.names() if name not in _REFUSED]


def _load(path: Path) -> tuple[str, npt.NDArray[Any]]:
    """The dtype and the values, loaded by numpy; MindSpore's broken bfloat16 is decoded here."""
    raw = path.read_bytes()
    length = struct.unpack_from("<H", raw, 8)[0]
    header = ast.literal_eval(raw[10 : 10 + length].decode())
    if header["descr"] != "<E2":
        array = np.load(path)
        return array.dtype.name, array
    bits = np.frombuffer(raw, "<u2", offset=10 + length).astype("u4") << 16
    return "bfloat16", bits.view("f4").reshape(header["shape"])


def _long_names(dump: Path) -> dict[str, str]:
    """Path as the run lists it -> the full name in mapping.csv."""
    mapped = {}
    for table in dump.rglob("mapping.csv"):
        for line in table.read_text().splitlines():
            short, full = line.split(",")
            mapped[(table.parent / short).relative_to(dump).as_posix()] = full
    return mapped


def test_the_archives_are_here() -> None:
    assert len(_WITH_DUMP) == 41
    assert set(archives.names()) >= _REFUSED


@pytest.mark.parametrize("name", _WITH_DUMP)
def test_a_real_dump_opens_with_what_it_holds(name: str, tmp_path: Path) -> None:
    archive = archives.unpack(name, tmp_path)
    assert archive.dump is not None
    catalog = open_dump(archive.dump)
    listed = archive.files(".npy")
    parts = [file.split("/") for file in listed]
    assert catalog.ranks == (0,)
    assert catalog.steps == tuple(sorted({int(part[3]) for part in parts}))
    assert set(catalog.graphs) >= {int(part[2]) for part in parts}
    assert {record.op.net_name for record in catalog} <= {part[1] for part in parts}
    assert not catalog.problems

    long_names = _long_names(archive.dump)
    expected = {}
    for file, part in zip(listed, parts, strict=True):
        op_type, op_name, _, _, time, io, slot, layout, dtype, _ = long_names.get(file, part[4]).split(".")
        key = (int(part[2]), int(part[3]), op_type, int(time), io, int(slot))
        expected[key] = (op_name, layout, dtype.lower(), archive.dump / file)
    found = 0
    for execution in catalog.executions():
        op = execution.op
        for record in execution.tensors:
            # Each tensor has its own time stamp in these dumps; the record's operator has the stamp of the first
            # tensor.
            path = Path(record.payload.path)  # type: ignore[union-attr]
            relative = path.relative_to(archive.dump.resolve()).as_posix()
            stamp = int(long_names.get(relative, path.name).split(".")[4])
            key = (op.graph_id, op.step, op.op_type, stamp, str(record.io), record.slot)
            op_name, layout, dtype, source = expected.pop(key)
            assert op.op_name.replace("/", "_").replace(".", "_") == op_name
            assert record.format == layout
            stored, elements = _load(source)
            assert record.dtype == dtype == stored
            assert record.shape == elements.shape
            assert record.data_size == elements.size * (2 if stored == "bfloat16" else elements.itemsize)
            assert record.payload is not None
            host = record.payload.to_host()
            assert host.dtype == elements.dtype
            assert host.tobytes() == elements.tobytes()
            found += 1
    assert not expected
    assert found == len(listed)


@pytest.mark.parametrize("name", _WITH_DUMP)
def test_operators_of_a_real_dump_have_their_true_names(name: str, tmp_path: Path) -> None:
    archive = archives.unpack(name, tmp_path)
    assert archive.dump is not None
    catalog = open_dump(archive.dump)
    for graph in {op.graph_id for op in catalog.ops()}:
        order = (archive.dump / f"rank_0/execution_order/ms_execution_order_graph_{graph}.csv").read_text().splitlines()
        scopes = {line.rpartition("-op")[0] for line in order[1:]}
        for op in catalog.ops(graph=graph):
            if op.op_type != "Parameter":
                # MindSpore's order file may number an operator differently from the operator's files.
                assert op.op_name.rpartition("-op")[0] in scopes


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_an_archive_without_a_dump_says_so(name: str, tmp_path: Path) -> None:
    assert archives.unpack(name, tmp_path).dump is None
    with pytest.raises(UnknownLayoutError, match="holds no dump"):
        open_dump(tmp_path)


@pytest.fixture
def lenet(tmp_path: Path) -> Path:
    dump = archives.unpack("all_lenet", tmp_path).dump
    assert dump is not None
    return dump


def test_lenet_step_by_step(lenet: Path) -> None:
    catalog = open_dump(lenet)
    assert len(list(catalog)) == 456
    for step in (0, 1, 2):
        counts = Counter(op.op_type for op in catalog.ops(step=step))
        assert counts["Conv2D"] == 2
        assert counts["MatMul"] == 6
        assert counts["ApplyMomentum"] == 6  # two convolutions and two dense layers with bias
        ops = list(catalog.ops(step=step))
        assert [op.order for op in ops] == list(range(len(ops)))
        assert [op.timestamp for op in ops] == sorted(op.timestamp for op in ops)


def test_execution_order_is_that_of_the_time_stamps_not_of_the_order_file(lenet: Path) -> None:
    catalog = open_dump(lenet)
    first = next(catalog.ops(step=0))
    assert first.op_type == "AssignAdd"
    assert catalog.execution_order(0).index(first.op_name) == 24


def test_lenet_backward_parameters_and_updates(lenet: Path) -> None:
    catalog = open_dump(lenet)
    backward = [op for op in catalog.ops(step=0) if op.phase == "backward"]
    assert len(backward) > 10
    assert all(op.op_name.startswith("Gradients/") for op in backward)
    weight = catalog.op("fc1.weight", step=2)
    update = next(
        execution
        for execution in catalog.executions(step=2, op_type="ApplyMomentum")
        if execution.outputs[0].shape == weight.outputs[0].shape
    )
    assert weight.outputs[0].payload is not None
    assert update.outputs[0].payload is not None
    np.testing.assert_array_equal(weight.outputs[0].payload.to_host(), update.outputs[0].payload.to_host())


def test_lenet_finds_a_line_of_the_program(lenet: Path) -> None:
    catalog = open_dump(lenet)
    conv = catalog.op("Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0")
    frame = conv.op.stack[0]
    found = list(catalog.at_source(f"{Path(frame.file).name}:{frame.line}", step=0))
    assert conv in found
    assert len(found) < 20


def test_a_name_that_the_order_file_numbers_otherwise_is_the_one_of_the_file(lenet: Path) -> None:
    catalog = open_dump(lenet)
    scope = "Gradients/Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Grad_Conv2D/Conv2DBackpropFilter"
    order = (lenet / "rank_0/execution_order/ms_execution_order_graph_0.csv").read_text()
    assert f"{scope}-op1" in order.splitlines()
    assert f"{scope}-op0" in catalog.execution_order(0)
    assert catalog.op(f"{scope}-op0", step=0).op.op_type == "Conv2DBackpropFilter"


@pytest.mark.parametrize("name", _WITH_DUMP)
def test_every_operator_with_files_is_in_its_graph(name: str, tmp_path: Path) -> None:
    archive = archives.unpack(name, tmp_path)
    assert archive.dump is not None
    catalog = open_dump(archive.dump)
    for graph_id in catalog.graphs:
        graph = catalog.graph(graph_id)
        if graph is not None:
            nodes = {node.op_name for node in graph.nodes}
            assert {op.op_name for op in catalog.ops(graph=graph_id) if op.op_type != "Parameter"} <= nodes
            assert set(catalog.execution_order(graph_id)) <= nodes


@pytest.mark.parametrize(("name", "count"), [("all_lenet", 44), ("ms270_all_lenet", 44)])
def test_the_maker_of_an_input_left_its_bits(name: str, count: int, tmp_path: Path) -> None:
    archive = archives.unpack(name, tmp_path)
    assert archive.dump is not None
    made: dict[str, bytes] = {}
    found = 0
    for op in open_dump(archive.dump).ops(step=0):
        for record in op.inputs.values():
            if record.source.rpartition(":")[2].isdigit():
                assert record.numpy().tobytes() == made[record.source], f"{op.op_name} input {record.slot}"
                found += 1
        made |= {f"{op.op_name}:{slot}": record.numpy().tobytes() for slot, record in op.outputs.items()}
    assert found == count


def test_a_loop_body_is_parted_into_its_executions(tmp_path: Path) -> None:
    dump = archives.unpack("ms270_net_ctl", tmp_path).dump
    assert dump is not None
    catalog = open_dump(dump)
    for step in (0, 1):
        ops = [(op.graph_id, op.op_name, op.occurrence) for op in catalog.ops(step=step)]
        assert ops[:7] == [
            (0, "Default/Less-op0", 0),
            (1, "Expand/_MatMulExt/MatMul-op0", 0),
            (1, "Default/Add-op0", 0),
            (0, "Default/Less-op0", 1),
            (1, "Expand/_MatMulExt/MatMul-op0", 1),
            (1, "Default/Add-op0", 1),
            (0, "Default/Less-op0", 2),
        ]
        for execution in catalog.executions(step=step, op_type="MatMul"):
            assert sorted(execution.inputs) == [2, 3]
            assert sorted(execution.outputs) == [0]
    assert catalog.history(0) == (0, 1)


def test_two_nets_called_in_turn(tmp_path: Path) -> None:
    dump = archives.unpack("ms270_net_twonets", tmp_path).dump
    assert dump is not None
    catalog = open_dump(dump)
    assert catalog.steps == (0, 1, 2)
    assert {(op.graph_id, op.step) for op in catalog.ops()} == {(0, 0), (0, 1), (1, 1), (1, 2)}
    assert len(catalog.runs) == 1


def test_names_over_255_bytes_are_found_through_mapping_csv(tmp_path: Path) -> None:
    dump = archives.unpack("net_deep", tmp_path).dump
    assert dump is not None
    names = {op.op_name for op in open_dump(dump).ops(op_type="ReLU")}
    deep = "/".join(f"a_really_long_attribute_name_number_{number}-Deep" for number in range(7, 0, -1))
    assert names == {f"Default/{deep}/relu-ReLU/ReLU-op0"}


def test_the_facts_of_a_mindspore_run(lenet: Path) -> None:
    (run,) = open_dump(lenet).runs
    assert (run.framework, run.framework_version, run.device_target) == ("mindspore", "2.10.0", "CPU")
    assert run.started == min(op.timestamp for op in open_dump(lenet).ops())


@pytest.mark.parametrize("part", ["rank_0", "rank_0/LeNet", "rank_0/LeNet/0", "rank_0/LeNet/0/1"])
def test_a_part_of_a_dump_opens_with_the_names_of_the_whole(part: str, lenet: Path) -> None:
    whole, found = open_dump(lenet), open_dump(lenet / part)
    step = 1 if part.endswith("/1") else None
    assert list(found) == list(whole.tensors(step=step))


def test_an_iteration_copied_out_of_its_dump_opens(lenet: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copied"
    (lenet / "rank_0/LeNet/0/1").rename(copy)
    catalog = open_dump(copy)
    assert len(list(catalog)) == 152
    assert catalog.op("Default_network-WithLossCell__backbone-LeNet_conv1-Conv2d_Conv2D-op0").outputs


def test_a_net_copied_out_of_its_dump_opens(lenet: Path, tmp_path: Path) -> None:
    copy = tmp_path / "LeNet"
    (lenet / "rank_0/LeNet").rename(copy)
    catalog = open_dump(copy)
    assert catalog.steps == (0, 1, 2)
    assert len(list(catalog)) == 456
