"""Single operators: models of one node, which `dump_op_switch` dumps without a model name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from opdump import acl
from opdump.acl import Code
from opdump.dump_file import read_dump_file
from tests.acl.program import config, converted, dump_files, execute, load, numbers, ok, write_small

_TYPES = {"float32": 0, "int64": 9}


def _tensor(array: Any) -> tuple[int, int]:
    """A tensor description, and a buffer over the array."""
    desc = acl.create_tensor_desc(_TYPES[array.dtype.name], list(array.shape), 2)
    return desc, acl.create_data_buffer(acl.util.numpy_to_ptr(array), array.nbytes)


def _run(op_type: str, inputs: list[Any], outputs: list[Any], attr: int = 0) -> int:
    into, out = [_tensor(array) for array in inputs], [_tensor(array) for array in outputs]
    code: int = acl.op.execute_v2(
        op_type, [desc for desc, _ in into], [data for _, data in into],
        [desc for desc, _ in out], [data for _, data in out], attr, 0,
    )  # fmt: skip
    return code


def test_an_operator_runs_with_its_attributes() -> None:
    ok(acl.init())
    attr = acl.op.create_attr()
    ok(acl.op.set_attr_int(attr, "axis", 0))
    x, y = numbers(3, 4), np.zeros((3, 4), np.float32)
    ok(_run("Softmax", [x], [y], attr))
    wanted = np.exp(x) / np.exp(x).sum(0)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    ok(acl.op.destroy_attr(attr))
    assert _run("Softmax", [x], [y], attr) == Code.INVALID_PARAM, "the attributes were destroyed"


def test_the_description_of_an_output_gets_the_shape_that_came_out() -> None:
    ok(acl.init())
    x, y = numbers(3, 4), np.zeros(20, np.float32)
    (into, data), (out, result) = _tensor(x), _tensor(y)
    ok(acl.op.execute_v2("Transpose", [into], [data], [out], [result], 0, 0))
    assert [acl.get_tensor_desc_dim_v2(out, index)[0] for index in range(2)] == [4, 3]
    assert np.array_equal(y[:12].reshape(4, 3), x.T)


def test_the_older_call_leaves_the_description_of_an_output_as_it_is() -> None:
    ok(acl.init())
    x, y = numbers(3, 4), np.zeros(20, np.float32)
    (into, data), (out, result) = _tensor(x), _tensor(y)
    ok(acl.op.execute("Transpose", [into], [data], [out], [result], 0, 0))
    assert np.array_equal(y[:12].reshape(4, 3), x.T)
    assert acl.get_tensor_desc_num_dims(out) == 1
    assert acl.op.execute("NoSuchOperator", [into], [data], [out], [result], 0, 0) == Code.OP_NOT_FOUND
    assert acl.get_recent_err_msg().startswith("acl.op.execute: ")


def test_an_operator_is_dumped_below_the_device_alone(dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=[], dump_op_switch="on"))))
    x, y = numbers(3, 4), np.zeros((3, 4), np.float32)
    ok(_run("Add", [x, x], [y]))
    ok(_run("Add", [x, y], [y]))
    execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    files = dump_files(dump)
    assert len(files) == 2
    assert {path.parent.name for path in files} == {"0"}
    assert all(path.name.startswith("Add.Add.") for path in files)
    arrays = converted(files[0].parent, tmp_path / "npy")
    first, second = (path.name for path in files)
    assert np.array_equal(arrays[f"{first}.output.0.npy"], 2 * x)
    assert np.array_equal(arrays[f"{second}.input.1.npy"], 2 * x)
    assert np.array_equal(arrays[f"{second}.output.0.npy"], 3 * x) or np.allclose(arrays[f"{second}.output.0.npy"], y)


@pytest.mark.parametrize(
    ("keys", "dumped"),
    [
        ({"dump_list": [{}], "dump_op_switch": "off"}, False),
        ({"dump_list": [{}], "dump_op_switch": "on"}, True),
        ({"dump_list": []}, False),
        ({"dump_list": [{"model_name": "small"}], "dump_op_switch": "off"}, False),
        ({"dump_list": [{"model_name": "small"}], "dump_op_switch": "on"}, True),
        ({"dump_list": [], "dump_op_switch": "on", "dump_step": "0"}, False),
    ],
)
def test_the_switch_decides_and_a_step_filter_leaves_nothing(
    keys: dict[str, Any], dumped: bool, dump: Path, tmp_path: Path
) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, **keys))))
    ok(_run("Relu", [numbers(3)], [np.zeros(3, np.float32)]))
    ok(acl.mdl.finalize_dump())
    assert bool(dump_files(dump)) is dumped


def test_an_operator_runs_on_without_dump_after_finalize_dump(dump: Path, tmp_path: Path) -> None:
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=[], dump_op_switch="on"))))
    ok(_run("Relu", [numbers(3)], [np.zeros(3, np.float32)]))
    ok(acl.mdl.finalize_dump())
    y = np.zeros(3, np.float32)
    ok(_run("Relu", [numbers(3)], [y]))
    assert np.array_equal(y, np.maximum(numbers(3), 0))
    assert len(dump_files(dump)) == 1


def test_a_model_of_one_node_is_taken_by_its_name(dump: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    graph = helper.make_graph(
        [helper.make_node("Gelu", ["x"], ["y"], "my_gelu", approximate="tanh")],
        "graph",
        [helper.make_tensor_value_info("x", 1, ("N",))],
        [helper.make_tensor_value_info("y", 1, ("N",))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, models / "gelu.onnx")
    ok(acl.init())
    ok(acl.op.set_model_dir(str(models)))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, dump_list=[], dump_op_switch="on"))))
    ok(_run("Gelu", [numbers(5)], [np.zeros(5, np.float32)]))
    ok(acl.mdl.finalize_dump())
    (path,) = dump_files(dump)
    assert read_dump_file(path).op_name == "my_gelu"
    data = model.SerializeToString()
    ok(acl.op.load(acl.util.bytes_to_ptr(data), len(data)))


def test_operators_that_do_not_exist(tmp_path: Path) -> None:
    x, y = numbers(3), np.zeros(3, np.float32)
    assert _run("Relu", [x], [y]) == Code.UNINITIALIZE
    ok(acl.init())
    assert _run("Reelu", [x], [y]) == Code.OP_NOT_FOUND
    attr = acl.op.create_attr()
    ok(acl.op.set_attr_float(attr, "no_such", 1.0))
    assert _run("Relu", [x], [y], attr) == Code.OP_NOT_FOUND
    assert _run("Relu", [x, x], [y]) == Code.OP_NOT_FOUND
    assert _run("Relu", [np.arange(3)], [y]) == Code.OP_NOT_FOUND, "int64 in, float32 out"
    assert _run("Relu", [x], [y[:2]]) == Code.OP_OUTPUT_NOT_MATCH
    desc = acl.create_tensor_desc(0, [30], 2)
    _, data = _tensor(x)
    out, result = _tensor(y)
    assert acl.op.execute_v2("Relu", [desc], [data], [out], [result], 0, 0) == Code.OP_INPUT_NOT_MATCH
    assert acl.op.execute_v2("Relu", [desc], [], [out], [result], 0, 0) == Code.OP_INPUT_NOT_MATCH
    assert acl.op.set_model_dir(str(tmp_path / "none")) == Code.INVALID_FILE
    write_small(tmp_path)
    assert acl.op.set_model_dir(str(tmp_path)) == Code.PARSE_FILE, "a model of two nodes"


def test_update_params_makes_a_model_ready(tmp_path: Path) -> None:
    ok(acl.init())
    desc = acl.create_tensor_desc(0, [3], 2)
    assert acl.op.update_params("Relu", [desc], [desc], 0) == 0
    assert acl.op.update_params("Reelu", [desc], [desc], 0) == Code.OP_NOT_FOUND


def test_every_kind_of_attribute_can_be_set() -> None:
    attr = acl.op.create_attr()
    calls: list[tuple[Any, Any]] = [
        (acl.op.set_attr_bool, True),
        (acl.op.set_attr_int, 1),
        (acl.op.set_attr_float, 1.0),
        (acl.op.set_attr_string, "a"),
        (acl.op.set_attr_list_bool, [True]),
        (acl.op.set_attr_list_int, [1]),
        (acl.op.set_attr_list_float, [1.0]),
        (acl.op.set_attr_list_string, ["a"]),
    ]
    for call, value in calls:
        assert call(attr, "name", value) == 0
        assert call(attr + 1, "name", value) == Code.INVALID_PARAM
