"""The overflow, exception and watcher modes through the calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from opdump import acl
from opdump.dump_file import read_dump_file
from tests.acl.program import config, dump_files, execute, load, numbers, ok


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
