"""Models for several shapes (gears): batches, image sizes, dimensions; what the calls report and what a run accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from opdump import acl
from opdump.acl import Code
from tests.acl.program import FLOAT, load, numbers, ok

SELECTOR = "ascend_mbatch_shape_data"
_WEIGHT = np.random.default_rng(5).standard_normal((3, 2)).astype(np.float32)


@pytest.fixture(autouse=True)
def initialised(new_process: None) -> None:
    ok(acl.init())


def write(path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **metadata: str) -> Path:
    """Write a model with metadata; shapes are lists in which a string is an open dimension."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, dims) for name, dims in outputs.items()],
        [onnx.numpy_helper.from_array(_WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def write_batches(folder: Path, **metadata: str) -> Path:
    """`y = x @ w`, for a batch of rows of three."""
    metadata = metadata or {"dynamic_batch_size": "1,4,2"}
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    return write(folder / "batch.onnx", [node], {"x": ["N", 3]}, {"y": ["N", 2]}, **metadata)


def write_images(folder: Path, **metadata: str) -> Path:
    """`y = pooled(x)`, for images of open height and width."""
    metadata = metadata or {"dynamic_image_size": "4,4;8,6"}
    node = helper.make_node("AveragePool", ["x"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2])
    return write(folder / "image.onnx", [node], {"x": [1, 3, "H", "W"]}, {"y": [1, 3, "h", "w"]}, **metadata)


def write_dims(folder: Path, **metadata: str) -> Path:
    """`y = x @ w` and `z = -m`, each with its own length."""
    metadata = metadata or {"input_shape": "x:-1,3;m:-1,-1", "dynamic_dims": "2,1,5;4,3,5"}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
        helper.make_node("Neg", ["m"], ["z"], "negative"),
    ]
    inputs, outputs = {"x": ["N", 3], "m": ["A", "B"]}, {"y": ["N", 2], "z": ["A", "B"]}
    return write(folder / "dims.onnx", nodes, inputs, outputs, **metadata)


def described(model_id: int) -> int:
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(desc, model_id))
    return desc


def datasets(desc: int) -> tuple[int, int]:
    """Data sets with buffers of the sizes that the model reports, as in sample programs."""
    inputs, outputs = acl.mdl.create_dataset(), acl.mdl.create_dataset()
    for dataset, count, size_of in (
        (inputs, acl.mdl.get_num_inputs(desc), acl.mdl.get_input_size_by_index),
        (outputs, acl.mdl.get_num_outputs(desc), acl.mdl.get_output_size_by_index),
    ):
        for index in range(count):
            size = size_of(desc, index)
            ok(acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(ok(acl.rt.malloc(size, 2)), size)))
    return inputs, outputs


def fill(dataset: int, index: int, array: Any) -> None:
    buffer = acl.mdl.get_dataset_buffer(dataset, index)
    size = acl.get_data_buffer_size(buffer)
    ok(acl.rt.memcpy(acl.get_data_buffer_addr(buffer), size, array.ctypes.data, array.nbytes, 1))


def result(desc: int, dataset: int, index: int) -> Any:
    """An output in its current shape."""
    dims = ok(acl.mdl.get_cur_output_dims(desc, index))["dims"]
    array = np.empty(dims, np.float32)
    buffer = acl.mdl.get_dataset_buffer(dataset, index)
    ok(acl.rt.memcpy(array.ctypes.data, array.nbytes, acl.get_data_buffer_addr(buffer), array.nbytes, 2))
    return array


def plain(path: Path, **feeds: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


# ---------------------------------------------------------------------------------------------------- descriptions


def test_a_model_with_batches_has_one_input_more(tmp_path: Path) -> None:
    desc = described(load(write_batches(tmp_path)))
    assert (acl.mdl.get_num_inputs(desc), acl.mdl.get_num_outputs(desc)) == (2, 1)
    assert acl.mdl.get_input_index_by_name(desc, SELECTOR) == (1, 0)
    assert acl.mdl.get_input_name_by_index(desc, 1) == SELECTOR
    assert acl.mdl.get_input_dims(desc, 1) == ({"name": SELECTOR, "dimCount": 1, "dims": [1]}, 0)
    assert (acl.mdl.get_input_data_type(desc, 1), acl.mdl.get_input_size_by_index(desc, 1)) == (3, 4)
    assert ok(acl.mdl.get_input_dims(desc, 0))["dims"] == ok(acl.mdl.get_input_dims_v2(desc, 0))["dims"] == [-1, 3]
    assert acl.mdl.get_input_size_by_index(desc, 0) == 4 * 3 * 4, "the size of the largest gear"
    assert ok(acl.mdl.get_output_dims(desc, 0))["dims"] == [4, 2]
    assert acl.mdl.get_output_size_by_index(desc, 0) == 4 * 2 * 4
    assert acl.mdl.get_dynamic_batch(desc) == ({"batchCount": 3, "batch": [1, 4, 2]}, 0)
    assert acl.mdl.get_dynamic_hw(desc, -1) == ({"hwCount": 0, "hw": []}, 0)
    assert acl.mdl.get_input_dynamic_gear_count(desc, -1) == (0, 0)
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 0) == ([], 0)


def test_a_model_of_images_tells_height_and_width(tmp_path: Path) -> None:
    desc = described(load(write_images(tmp_path)))
    assert acl.mdl.get_dynamic_hw(desc, -1) == ({"hwCount": 2, "hw": [[4, 4], [8, 6]]}, 0)
    assert acl.mdl.get_dynamic_batch(desc) == ({"batchCount": 0, "batch": []}, 0)
    assert ok(acl.mdl.get_input_dims(desc, 0))["dims"] == [1, 3, -1, -1]
    assert ok(acl.mdl.get_output_dims(desc, 0))["dims"] == [1, 3, 4, 3]
    assert (acl.mdl.get_input_size_by_index(desc, 0), acl.mdl.get_input_size_by_index(desc, 1)) == (3 * 8 * 6 * 4, 8)


def test_a_model_of_dimensions_has_the_shapes_of_all_inputs(tmp_path: Path) -> None:
    desc = described(load(write_dims(tmp_path)))
    count = ok(acl.mdl.get_input_dynamic_gear_count(desc, -1))
    assert count == 2
    wholes = [{"name": "", "dimCount": 4, "dims": [2, 3, 1, 5]}, {"name": "", "dimCount": 4, "dims": [4, 3, 3, 5]}]
    assert acl.mdl.get_input_dynamic_dims(desc, -1, count) == (wholes, 0)
    assert acl.mdl.get_input_dynamic_dims(desc, -1, 1) == ([], Code.INVALID_PARAM)
    assert acl.mdl.get_input_size_by_index(desc, 2) == 12


def test_dimensions_are_reported_in_the_order_of_input_shape(tmp_path: Path) -> None:
    path = write_dims(tmp_path, input_shape="m:-1,-1;x:-1,3", dynamic_dims="1,5,2;3,5,4")
    desc = described(load(path))
    assert [gear["dims"] for gear in ok(acl.mdl.get_input_dynamic_dims(desc, -1, 2))] == [[1, 5, 2, 3], [3, 5, 4, 3]]
    assert [ok(acl.mdl.get_output_dims(desc, index))["dims"] for index in (0, 1)] == [[4, 2], [3, 5]]


def test_a_model_without_gears_says_where_they_would_be(tmp_path: Path) -> None:
    path = write_batches(tmp_path, something="else")
    desc = described(load(path))
    assert acl.mdl.get_num_inputs(desc) == 1
    assert acl.mdl.get_input_index_by_name(desc, SELECTOR) == (0, Code.INVALID_PARAM)
    assert "dynamic_batch_size" in acl.get_recent_err_msg()
    assert acl.mdl.get_dynamic_batch(desc) == ({"batchCount": 0, "batch": []}, 0)


def test_input_shape_alone_fixes_shapes(tmp_path: Path) -> None:
    desc = described(load(write_batches(tmp_path, input_shape="x:5,3")))
    assert acl.mdl.get_num_inputs(desc) == 1
    assert (ok(acl.mdl.get_input_dims(desc, 0))["dims"], acl.mdl.get_input_size_by_index(desc, 0)) == ([5, 3], 60)


def test_a_description_of_a_file_that_is_not_loaded(tmp_path: Path) -> None:
    path = write_batches(tmp_path)
    content = path.read_bytes()
    of_file, of_memory = acl.mdl.create_desc(), acl.mdl.create_desc()
    ok(acl.mdl.get_desc_from_file(of_file, str(path)))
    ok(acl.mdl.get_desc_from_mem(of_memory, acl.util.bytes_to_ptr(content), len(content)))
    for desc in (of_file, of_memory):
        assert acl.mdl.get_dynamic_batch(desc) == ({"batchCount": 3, "batch": [1, 4, 2]}, 0)
        assert ok(acl.mdl.get_cur_output_dims(desc, 0))["dims"] == [4, 2]
    assert acl.mdl.get_desc_from_file(of_file, str(tmp_path / "none.onnx")) == Code.INVALID_FILE
    assert load(path) == 1, "no model was loaded"


# ------------------------------------------------------------------------------------------------------------- runs


def test_each_batch_gives_what_the_runtime_gives(tmp_path: Path) -> None:
    path = write_batches(tmp_path)
    model_id = load(path)
    desc = described(model_id)
    inputs, outputs = datasets(desc)
    selector = ok(acl.mdl.get_input_index_by_name(desc, SELECTOR))
    for batch in (1, 2, 4, 1):
        x = numbers(batch, 3, seed=batch)
        ok(acl.mdl.set_dynamic_batch_size(model_id, inputs, selector, batch))
        assert ok(acl.mdl.get_cur_output_dims(desc, 0))["dims"] == [batch, 2], "before the run"
        fill(inputs, 0, x)
        ok(acl.mdl.execute(model_id, inputs, outputs))
        assert np.array_equal(result(desc, outputs, 0), plain(path, x=x)[0])


def test_each_size_of_images_gives_what_the_runtime_gives(tmp_path: Path) -> None:
    path = write_images(tmp_path)
    model_id = load(path)
    desc = described(model_id)
    inputs, outputs = datasets(desc)
    for height, width in ((8, 6), (4, 4)):
        x = numbers(1, 3, height, width)
        ok(acl.mdl.set_dynamic_hw_size(model_id, inputs, 1, height, width))
        fill(inputs, 0, x)
        ok(acl.mdl.execute(model_id, inputs, outputs))
        assert np.array_equal(result(desc, outputs, 0), plain(path, x=x)[0])


def test_each_set_of_dimensions_gives_what_the_runtime_gives(tmp_path: Path) -> None:
    path = write_dims(tmp_path)
    model_id = load(path)
    desc = described(model_id)
    inputs, outputs = datasets(desc)
    for gear in ok(acl.mdl.get_input_dynamic_dims(desc, -1, 2)):
        x, m = numbers(*gear["dims"][:2]), numbers(*gear["dims"][2:])
        ok(acl.mdl.set_input_dynamic_dims(model_id, inputs, 2, gear))
        fill(inputs, 0, x)
        fill(inputs, 1, m)
        ok(acl.mdl.execute(model_id, inputs, outputs))
        assert all(map(np.array_equal, [result(desc, outputs, index) for index in (0, 1)], plain(path, x=x, m=m)))


def test_the_choice_stands_in_the_buffer(tmp_path: Path) -> None:
    model_id = load(write_images(tmp_path))
    inputs, _ = datasets(described(model_id))
    ok(acl.mdl.set_dynamic_hw_size(model_id, inputs, 1, 8, 6))
    address = acl.get_data_buffer_addr(acl.mdl.get_dataset_buffer(inputs, 1))
    assert np.frombuffer(acl.util.ptr_to_bytes(address, 8), np.int32).tolist() == [8, 6]
    wide = np.zeros(2, np.int64)
    ok(acl.update_data_buffer(acl.mdl.get_dataset_buffer(inputs, 1), wide.ctypes.data, 16))
    ok(acl.mdl.set_dynamic_hw_size(model_id, inputs, 1, 4, 4))
    assert wide.tolist() == [4, 4]


def test_a_run_without_a_choice_is_refused(tmp_path: Path) -> None:
    model_id = load(write_batches(tmp_path))
    inputs, outputs = datasets(described(model_id))
    assert acl.mdl.execute(model_id, inputs, outputs) == Code.DYNAMIC_BATCH_SIZE
    assert "acl.mdl.set_dynamic_batch_size" in acl.get_recent_err_msg()
    ok(acl.mdl.set_dynamic_batch_size(model_id, inputs, 1, 2))
    ok(acl.mdl.execute(model_id, inputs, outputs))
    other, _ = datasets(described(model_id))
    assert acl.mdl.execute(model_id, other, outputs) == 145013, "each data set has its own choice"


def test_a_gear_and_a_description_are_two_ways_to_say_a_shape(tmp_path: Path) -> None:
    model_id = load(write_batches(tmp_path))
    inputs, outputs = datasets(described(model_id))
    ok(acl.mdl.set_dynamic_batch_size(model_id, inputs, 1, 2))
    ok(acl.mdl.set_dataset_tensor_desc(inputs, acl.create_tensor_desc(0, [2, 3], 2), 0))
    assert acl.mdl.execute(model_id, inputs, outputs) == Code.MODEL_INPUT_NOT_MATCH
    assert "leave out" in acl.get_recent_err_msg()


def test_weights_and_small_constants_say_the_shapes_of_outputs(tmp_path: Path) -> None:
    """A reshape by a constant, an initialiser that may be fed, and weights in a separate file."""
    path = tmp_path / "reshape.onnx"
    weight = numbers(3, 2000)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
            helper.make_node("Reshape", ["p", "shape"], ["y"], "reshape"),
        ],
        "graph",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", FLOAT, ["A", "B", "C"])],
        [
            onnx.numpy_helper.from_array(weight, "w"),
            onnx.numpy_helper.from_array(np.array([-1, 20, 100]), "shape"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(model, {"dynamic_batch_size": "1,4"})
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1000)
    model_id = load(path)
    desc = described(model_id)
    inputs, outputs = datasets(desc)
    assert ok(acl.mdl.get_output_dims(desc, 0))["dims"] == [4, 20, 100]
    ok(acl.mdl.set_dynamic_batch_size(model_id, inputs, 1, 1))
    x = numbers(1, 3)
    fill(inputs, 0, x)
    ok(acl.mdl.execute(model_id, inputs, outputs))
    assert np.array_equal(result(desc, outputs, 0), plain(path, x=x)[0])


def test_what_is_no_gear_is_refused(tmp_path: Path) -> None:
    model_id = load(write_batches(tmp_path))
    desc = described(model_id)
    inputs, _ = datasets(desc)
    call = acl.mdl.set_dynamic_batch_size
    assert call(model_id, inputs, 1, 3) == 145013
    assert "[[1], [4], [2]]" in acl.get_recent_err_msg()
    assert call(model_id, inputs, 1, 0) == call(model_id, inputs, 2, 1) == call(model_id, 5, 1, 1) == Code.INVALID_PARAM
    assert call(model_id, inputs, 0, 1) == Code.INVALID_PARAM
    assert SELECTOR in acl.get_recent_err_msg()
    assert call(7, inputs, 1, 1) == Code.INVALID_MODEL_ID
    assert acl.mdl.set_dynamic_hw_size(model_id, inputs, 1, 4, 4) == 145013
    assert "it has dynamic_batch_size" in acl.get_recent_err_msg()
    assert ok(acl.mdl.get_cur_output_dims(desc, 0))["dims"] == [4, 2], "no gear was set"


def test_dimensions_that_are_none_are_refused(tmp_path: Path) -> None:
    model_id = load(write_dims(tmp_path))
    inputs, _ = datasets(described(model_id))
    for wrong in (
        None,
        {},
        {"dimCount": 0, "dims": []},
        {"dimCount": 5, "dims": [2, 3, 1, 5]},
        {"dimCount": 4, "dims": (2, 3, 1, 5)},
    ):
        assert acl.mdl.set_input_dynamic_dims(model_id, inputs, 2, wrong) == Code.INVALID_PARAM
    assert acl.mdl.set_input_dynamic_dims(model_id, inputs, 2, {"dimCount": 4, "dims": [2, 3, 3, 5]}) == 145013
    short = np.zeros(2, np.int32)
    ok(acl.update_data_buffer(acl.mdl.get_dataset_buffer(inputs, 2), short.ctypes.data, 8))
    assert acl.mdl.set_input_dynamic_dims(model_id, inputs, 2, {"dimCount": 4, "dims": [2, 3, 1, 5]}) == 145012


def test_an_output_whose_shape_is_known_only_after_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = helper.make_node("Compress", ["x", "c"], ["y"], "some", axis=0)
    compress = helper.make_node("Greater", ["s", "w0"], ["c"], "positive")
    reduced = helper.make_node("ReduceSum", ["x", "axes"], ["s"], "sum", keepdims=0)
    constants = [
        helper.make_node("Constant", [], ["w0"], "zero", value_float=0.0),
        helper.make_node("Constant", [], ["axes"], "axes", value_ints=[1]),
    ]
    path = write(
        tmp_path / "some.onnx",
        [*constants, reduced, compress, node],
        {"x": ["N", 3]},
        {"y": ["M", 3]},
        dynamic_batch_size="2,4",
    )
    model_id = load(path)
    desc = described(model_id)
    assert ok(acl.mdl.get_output_dims(desc, 0))["dims"] == [-1, 3]
    assert "known only after a run" in caplog.text
    inputs, outputs = datasets(desc)
    x = np.array([[1, 1, 1], [-1, -1, -1], [2, 2, 2], [3, 3, 3]], np.float32)
    y = np.zeros((4, 3), np.float32)
    ok(acl.update_data_buffer(acl.mdl.get_dataset_buffer(outputs, 0), y.ctypes.data, y.nbytes))
    ok(acl.mdl.set_dynamic_batch_size(model_id, inputs, 1, 4))
    fill(inputs, 0, x)
    ok(acl.mdl.execute(model_id, inputs, outputs))
    assert ok(acl.mdl.get_cur_output_dims(desc, 0))["dims"] == [3, 3]
    assert np.array_equal(y[:3], x[[0, 2, 3]])
    ok(acl.mdl.set_dynamic_batch_size(model_id, inputs, 1, 2))
    assert ok(acl.mdl.get_cur_output_dims(desc, 0))["dims"] == [-1, 3], "that run used another gear"


# ------------------------------------------------------------------------------------------------------ invalid
# metadata

_WRONG: dict[str, tuple[Any, dict[str, str], str]] = {
    "two kinds": (write_batches, {"dynamic_batch_size": "1,2", "dynamic_dims": "1;2"}, "may have only one of them"),
    "no number": (write_batches, {"dynamic_batch_size": "1,two"}, "expected whole numbers"),
    "a gear of 0": (write_batches, {"dynamic_batch_size": "0,2"}, "numbers, 1 or more"),
    "nothing is open": (
        write_batches,
        {"dynamic_batch_size": "1,2", "input_shape": "x:5,3"},
        "no input has a dimension of -1",
    ),
    "another shape": (write_batches, {"dynamic_batch_size": "1,2", "input_shape": "x:-1,4"}, "expected [-1, 3]"),
    "another rank": (write_batches, {"input_shape": "x:-1,3,1"}, "expected [-1, 3]"),
    "no such input": (write_batches, {"input_shape": "z:1,3"}, "expected each of x once"),
    "an input twice": (write_batches, {"input_shape": "x:1,3;x:1,3"}, "expected each of x once"),
    "two open dimensions for a batch": (write_dims, {"dynamic_batch_size": "1,2"}, '"input_shape"'),
    "one open dimension for an image": (write_batches, {"dynamic_image_size": "4,4;5,5"}, "expected height and width"),
    "a size without a width": (write_images, {"dynamic_image_size": "4;8"}, "height,width"),
    "gears of two lengths": (write_dims, {"dynamic_dims": "1,2,3;1,2"}, "as many numbers in each gear"),
    "fewer numbers than open dimensions": (write_dims, {"dynamic_dims": "1,2;3,4"}, "3 dimensions of -1"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_metadata_that_cannot_be_meant_is_refused(name: str, tmp_path: Path) -> None:
    make, metadata, message = _WRONG[name]
    assert acl.mdl.load_from_file(str(make(tmp_path, **metadata))) == (0, Code.PARSE_FILE)
    assert message in acl.get_recent_err_msg()
    assert load(write_batches(tmp_path)), "the next model loads"
