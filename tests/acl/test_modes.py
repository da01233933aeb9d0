"""The overflow, exception and watcher modes through the calls, and dumps that go to a callback."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from opdump import acl
from opdump.acl.dump import DumpChunk
from opdump.dump_file import read_dump_file
from tests.acl.program import config, converted, dump_files, execute, load, numbers, ok, write_small


def _write(path: Path, nodes: list[onnx.NodeProto], *, output: str = "y") -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, (3,))],
        [helper.make_tensor_value_info(output, 1, (3,))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_an_operator_that_overflows_is_dumped_with_its_status(dump: Path, tmp_path: Path) -> None:
    path = _write(
        tmp_path / "net.onnx",
        [helper.make_node("Mul", ["x", "x"], ["m"], "square"), helper.make_node("Relu", ["m"], ["y"], "relu")],
    )
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=None, dump_mode=None, dump_debug="on"))))
    model_id = load(path)
    execute(model_id, {"x": numbers(3)})
    assert list(dump.iterdir()) == [], "no overflow, no directory"
    (answer,) = execute(model_id, {"x": np.array([1, 1e30, 2], np.float32)})
    ok(acl.mdl.finalize_dump())
    assert np.isposinf(answer[1])
    (folder,) = dump.glob("*/0/net/1/1")
    names = sorted(path.name.split(".")[:2] for path in dump_files(folder))
    assert names == [["Mul", "square"], ["Opdebug", "Node_OpDebug"]]
    (operator,) = [path for path in dump_files(folder) if path.name.startswith("Mul")]
    file = read_dump_file(operator)
    assert len(file.inputs) == 2
    assert np.isposinf(file.outputs[0].to_host()[1])


def test_the_inputs_of_a_failing_operator_are_on_disk_when_execute_returns(dump: Path, tmp_path: Path) -> None:
    shape = onnx.numpy_helper.from_array(np.array([2, 2]), "shape")
    path = _write(tmp_path / "net.onnx", [helper.make_node("Reshape", ["x", "shape"], ["y"], "four")])
    model = onnx.load(path)
    model.graph.initializer.append(shape)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, path)
    ok(acl.init(str(config(tmp_path, dump, dump_scene="aic_err_norm_dump"))))
    model_id = load(path)
    data = numbers(3)
    inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    ok(acl.mdl.add_dataset_buffer(inputs, acl.create_data_buffer(acl.util.numpy_to_ptr(data), data.nbytes)))
    ok(acl.mdl.add_dataset_buffer(outputs, acl.create_data_buffer(0, 0)))
    assert acl.mdl.execute(model_id, inputs, outputs) == 500000
    (found,) = (dump / "extra-info" / "data-dump" / "0").glob("Reshape.four.*")
    file = read_dump_file(found)
    assert file.inputs[0].to_host().tolist() == data.tolist()
    assert file.inputs[1].to_host().tolist() == [2, 2]
    assert "Reshape four" in file.dfx_message


def test_the_watcher_writes_the_four_files_of_the_document(dump: Path, tmp_path: Path) -> None:
    values = ["x", "v0", "v1", "v2", "y"]
    nodes = [helper.make_node("Relu", [values[place]], [values[place + 1]], name) for place, name in enumerate("CDAB")]
    path = _write(tmp_path / "net.onnx", nodes)
    entry = {"layer": ["A", "B"], "watcher_nodes": ["C", "D"]}
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=[entry], dump_mode="output", dump_scene="watcher"))))
    execute(load(path), {"x": numbers(3)})
    ok(acl.mdl.finalize_dump())
    names = sorted(".".join(path.name.split(".")[:2]) for path in dump_files(dump))
    assert names == ["Relu.A_To_C", "Relu.A_To_D", "Relu.B_To_C", "Relu.B_To_D"]


class _Received:
    def __init__(self) -> None:
        self.chunks: list[DumpChunk] = []
        self.lengths: list[int] = []

    def __call__(self, chunk: DumpChunk, length: int) -> int:
        self.chunks.append(chunk)
        self.lengths.append(length)
        return 0


def _run(tmp_path: Path, dump: Path, received: _Received, *, after_init_dump: bool = False, **keys: Any) -> None:
    ok(acl.init())
    if not after_init_dump:
        ok(acl.dump.reg_callback(received, 0))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, **keys))))
    if after_init_dump:
        ok(acl.dump.reg_callback(received, 0))
    execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())


@pytest.mark.parametrize("after_init_dump", [False, True])
def test_files_are_handed_over_and_nothing_goes_to_disk(after_init_dump: bool, dump: Path, tmp_path: Path) -> None:
    received = _Received()
    _run(tmp_path, dump, received, after_init_dump=after_init_dump)
    assert list(dump.iterdir()) == []
    again = tmp_path / "again"
    again.mkdir()
    assert len(received.chunks) == 2
    for chunk in received.chunks:
        path = Path(chunk.file_name)
        assert path.parent.relative_to(dump).parts[1:] == ("0", "small", "1", "0")
        assert (chunk.is_last_chunk, chunk.offset, chunk.flag) == (True, 0, 0)
        (again / path.name).write_bytes(chunk.data)
    arrays = converted(again, tmp_path / "npy")
    (result,) = [array for name, array in arrays.items() if name.startswith("Add") and ".output." in name]
    assert np.array_equal(result, 2 * np.maximum(numbers(2, 3), 0))


def test_a_chunk_is_the_struct_of_the_interface(dump: Path, tmp_path: Path) -> None:
    received = _Received()
    _run(tmp_path, dump, received)
    for chunk, length in zip(received.chunks, received.lengths, strict=True):
        raw = bytes(chunk)
        assert length == len(raw) == len(chunk) == 4096 + 4 + 4 + 8 + 4 + len(chunk.data)
        assert raw[:4096].rstrip(b"\0").decode() == chunk.file_name
        assert int.from_bytes(raw[4096:4100], "little") == len(chunk.data)
        assert int.from_bytes(raw[4100:4104], "little") == 1
        assert DumpChunk.from_bytes(raw) == chunk
    with pytest.raises(ValueError, match="4116 bytes"):
        DumpChunk.from_bytes(bytes(100))
    with pytest.raises(ValueError, match="data"):
        DumpChunk.from_bytes(bytes(received.chunks[0])[:-1])


def test_statistics_are_text_with_a_zero_byte(dump: Path, tmp_path: Path) -> None:
    received = _Received()
    _run(tmp_path, dump, received, dump_data="stats")
    assert list(dump.iterdir()) == []
    assert len(received.chunks) == 2
    for chunk in received.chunks:
        assert chunk.file_name.endswith(".csv")
        assert chunk.data.endswith(b"\n\0")
        rows = list(csv.DictReader(io.StringIO(chunk.data[:-1].decode())))
        assert {row["Input/Output"] for row in rows} == {"Input", "Output"}


def test_a_long_name_is_reported_in_mapping_csv_which_is_appended_to(dump: Path, tmp_path: Path) -> None:
    path = write_small(tmp_path)
    model = onnx.load(path)
    model.graph.node[0].name = "n" * 300
    onnx.save(model, path)
    received = _Received()
    ok(acl.init())
    ok(acl.dump.reg_callback(received, 0))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    execute(load(path), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert list(dump.iterdir()) == []
    (line,) = [chunk for chunk in received.chunks if chunk.file_name.endswith("/mapping.csv")]
    stored, name = line.data.decode().rstrip("\n").split(",")
    assert line.offset == -1
    assert name.startswith("Relu.nnn")
    assert any(chunk.file_name.endswith(f"/{stored}") for chunk in received.chunks)


def test_after_unreg_callback_files_go_to_disk_again(dump: Path, tmp_path: Path) -> None:
    received = _Received()
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    model_id = load(write_small(tmp_path))
    ok(acl.dump.reg_callback(received))
    execute(model_id, {"x": numbers(2, 3)})
    acl.dump.unreg_callback()
    execute(model_id, {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert len(received.chunks) == 2
    assert {path.parent.name for path in dump_files(dump)} == {"1"}


def test_a_callback_that_fails_does_not_end_the_run(
    dump: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(chunk: DumpChunk, length: int) -> int:
        raise OSError("the network is gone")

    ok(acl.init())
    ok(acl.dump.reg_callback(failing))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    (y,) = execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert np.array_equal(y, 2 * np.maximum(numbers(2, 3), 0))
    assert "the network is gone" in caplog.text
