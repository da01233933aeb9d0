"""Models behind the calls: ways to load them, descriptions, buffers that fit, and memory checks."""

from __future__ import annotations

import gc
import logging
import shutil
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from opdump import acl
from opdump.acl import Code
from opdump.acl.process import process
from tests.acl.program import execute, load, numbers, ok, write_small


@pytest.fixture(autouse=True)
def initialised(new_process: None) -> None:
    ok(acl.init())


def _described(model_id: int) -> int:
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(desc, model_id))
    return desc


def _dataset(*arrays: Any) -> int:
    dataset = acl.mdl.create_dataset()
    for array in arrays:
        buffer = acl.create_data_buffer(acl.util.numpy_to_ptr(array), array.nbytes)
        assert ok(acl.mdl.add_dataset_buffer(dataset, buffer)) == dataset
    return dataset


def _write(path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_a_description_has_names_types_and_shapes(tmp_path: Path) -> None:
    desc = _described(load(write_small(tmp_path, shape=("N", 3))))
    assert (acl.mdl.get_num_inputs(desc), acl.mdl.get_num_outputs(desc)) == (1, 1)
    assert acl.mdl.get_input_dims(desc, 0) == ({"name": "x", "dimCount": 2, "dims": [-1, 3]}, 0)
    assert acl.mdl.get_output_dims(desc, 0) == ({"name": "y", "dimCount": 2, "dims": [-1, 3]}, 0)
    assert acl.mdl.get_input_size_by_index(desc, 0) == acl.mdl.get_output_size_by_index(desc, 0) == 12
    assert (acl.mdl.get_input_name_by_index(desc, 0), acl.mdl.get_output_name_by_index(desc, 0)) == ("x", "y")
    assert acl.mdl.get_input_index_by_name(desc, "x") == (0, 0)
    assert acl.mdl.get_output_index_by_name(desc, "x") == (0, Code.INVALID_PARAM)
    assert (acl.mdl.get_input_data_type(desc, 0), acl.mdl.get_output_data_type(desc, 0)) == (0, 0)
    assert (acl.mdl.get_input_format(desc, 0), acl.mdl.get_output_format(desc, 0)) == (2, 2)
    assert acl.mdl.get_input_dims(desc, 1) == ({}, Code.INVALID_PARAM)
    assert acl.mdl.get_num_inputs(acl.mdl.create_desc()) == 0, "nothing was described"


def test_the_shape_of_an_input_follows_from_its_buffer(tmp_path: Path) -> None:
    model_id = load(write_small(tmp_path, shape=("N", 3)))
    x = numbers(4, 3)
    outputs = acl.mdl.create_dataset()
    buffer = acl.create_data_buffer(0, 0)  # the run allocates memory for it
    ok(acl.mdl.add_dataset_buffer(outputs, buffer))
    ok(acl.mdl.execute(model_id, _dataset(x), outputs))
    assert acl.get_data_buffer_size(buffer) == 48
    y = acl.util.ptr_to_numpy(acl.get_data_buffer_addr(buffer), (4, 3), np.dtype(np.float32).num)
    assert np.array_equal(y, 2 * np.maximum(x, 0))
    ok(acl.rt.free(acl.get_data_buffer_addr(buffer)))
    assert np.array_equal(y, 2 * np.maximum(x, 0)), "an array keeps its memory alive"


def test_the_shape_of_an_input_can_be_set(tmp_path: Path) -> None:
    model_id = load(write_small(tmp_path, shape=("N", "M")))
    x, y = numbers(4, 3), np.zeros((4, 3), np.float32)
    inputs, outputs = _dataset(x), _dataset(y)
    assert acl.mdl.execute(model_id, inputs, outputs) == Code.MODEL_INPUT_NOT_MATCH
    assert "set_dataset_tensor_desc" in acl.get_recent_err_msg()
    desc = acl.create_tensor_desc(0, [4, 3], 2)
    assert ok(acl.mdl.set_dataset_tensor_desc(inputs, desc, 0)) == inputs
    ok(acl.mdl.execute(model_id, inputs, outputs))
    assert np.array_equal(y, 2 * np.maximum(x, 0))
    ok(acl.mdl.set_dataset_tensor_desc(inputs, acl.create_tensor_desc(1, [4, 3], 2), 0))
    assert acl.mdl.execute(model_id, inputs, outputs) == Code.MODEL_INPUT_NOT_MATCH, "float16 is another type"


def test_buffers_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model_id = load(write_small(tmp_path))
    x, y = numbers(2, 3), np.full((2, 3), 7, np.float32)
    assert acl.mdl.execute(model_id, _dataset(x, x), _dataset(y)) == Code.MODEL_INPUT_NOT_MATCH
    assert acl.mdl.execute(model_id, _dataset(x[:1]), _dataset(y)) == Code.MODEL_INPUT_NOT_MATCH
    assert acl.mdl.execute(model_id, _dataset(x), _dataset()) == Code.MODEL_OUTPUT_NOT_MATCH
    assert acl.mdl.execute(model_id, _dataset(x), _dataset(y[:1])) == Code.MODEL_OUTPUT_NOT_MATCH
    assert acl.mdl.execute(model_id, 17, _dataset(y)) == Code.INVALID_PARAM
    constant = np.zeros((2, 3), np.float32)
    constant.flags.writeable = False
    assert acl.mdl.execute(model_id, _dataset(x), _dataset(constant)) == Code.INVALID_PARAM
    assert not constant.any()
    assert (y == 7).all()


def test_a_run_that_fails_gives_a_code_and_the_words_of_the_runtime(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "gather.onnx",
        [helper.make_node("Gather", ["x", "i"], ["y"], "pick")],
        {"x": (1, (3,)), "i": (7, (1,))},
        {"y": (1, (1,))},
    )
    model_id = load(path)
    x, far, near, y = numbers(3), np.array([9]), np.array([1]), np.zeros(1, np.float32)
    assert acl.mdl.execute(model_id, _dataset(x, far), _dataset(y)) == Code.INTERNAL_ERROR
    assert "pick" in acl.get_recent_err_msg()
    assert acl.mdl.execute(model_id, _dataset(x, near), _dataset(y)) == 0
    assert y[0] == x[1]


def test_a_bfloat16_input_is_handed_over_by_its_bits(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "cast.onnx",
        [helper.make_node("Cast", ["x"], ["y"], "cast", to=1)],
        {"x": (16, (5,))},
        {"y": (1, (5,))},
    )
    x = numbers(5).astype(ml_dtypes.bfloat16)
    (y,) = execute(load(path), {"x": x})
    assert y.tobytes() == x.astype(np.float32).tobytes()


def test_an_output_that_no_buffer_holds_is_refused_before_the_run(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "cast.onnx",
        [helper.make_node("Cast", ["x"], ["y"], "cast", to=16)],
        {"x": (1, (5,))},
        {"y": (16, (5,))},
    )
    model_id = load(path)
    x, y = numbers(5), np.zeros(5, np.uint16)
    assert acl.mdl.execute(model_id, _dataset(x), _dataset(y)) == Code.UNSUPPORTED_DATA_TYPE


def test_a_scalar_and_an_empty_tensor(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "sum.onnx",
        [
            helper.make_node("ReduceSum", ["x"], ["y"], "sum", keepdims=0),
            helper.make_node("Relu", ["x"], ["z"], "relu"),
        ],
        {"x": (1, ("N",))},
        {"y": (1, ()), "z": (1, ("N",))},
    )
    y, _ = execute(load(path), {"x": np.array([2], np.float32)})
    assert y.shape == ()
    assert float(y) == 2


# --------------------------------------------------------------------------------------------------------------- memory


def test_memory_is_copied_and_set() -> None:
    one, two = ok(acl.rt.malloc(16, 0)), ok(acl.rt.malloc_host(16))
    assert one % 64 == two % 64 == 0
    ok(acl.rt.memset(one, 16, 3, 8))
    ok(acl.rt.memcpy(two + 4, 12, one, 12, 1))
    assert acl.util.ptr_to_bytes(two, 16) == bytes(4) + b"\3" * 8 + bytes(4)
    assert acl.rt.memcpy(two, 16, one, 17, 1) == Code.INVALID_PARAM
    assert acl.rt.memcpy(two + 8, 16, one, 16, 1) == Code.INVALID_PARAM
    assert acl.rt.memset(one, 16, 0, 17) == Code.INVALID_PARAM
    ok(acl.rt.free(one))
    assert acl.rt.free(one) == Code.INVALID_PARAM
    ok(acl.rt.free_host(two))


def test_a_registered_array_is_not_kept_alive_and_was_never_allocated() -> None:
    array = numbers(100)
    address, size = acl.util.numpy_to_ptr(array), array.nbytes
    assert acl.util.ptr_to_bytes(address, size) == array.tobytes()
    assert acl.util.ptr_to_bytes(address, size + 1) == b""
    assert acl.rt.free(address) == Code.INVALID_PARAM
    gone = weakref.ref(array)
    del array
    gc.collect()
    assert gone() is None


def test_registered_bytes_are_kept_as_long_as_the_program_keeps_them() -> None:
    for number in range(1, 50):
        acl.util.bytes_to_ptr(bytes([number]) * 1000)
    kept = b"k" * 1000
    last = acl.util.bytes_to_ptr(kept)
    assert acl.util.ptr_to_bytes(last, 1000) == kept
    assert acl.util.ptr_to_bytes(last, 1001) == b""


def test_addresses_within_memory_count_and_those_behind_it_do_not() -> None:
    address = ok(acl.rt.malloc(8, 0))
    assert acl.util.ptr_to_numpy(address + 4, (1,), np.dtype(np.int32).num).tolist() == [0]
    assert acl.util.ptr_to_numpy(address + 4, (2,), np.dtype(np.int32).num).size == 0
    for wrong in (address + 8, address - 1, 0, -1, 2**70):
        assert acl.util.ptr_to_bytes(wrong, 1) == b""


def test_arrays_that_share_memory_are_each_known() -> None:
    whole = numbers(100)
    first, second = whole[:60], whole[40:]
    addresses = [acl.util.numpy_to_ptr(array) for array in (first, second, whole[50:55])]
    assert acl.util.ptr_to_bytes(addresses[0], first.nbytes) == first.tobytes()
    assert acl.util.ptr_to_bytes(addresses[1], second.nbytes) == second.tobytes()
    assert acl.util.ptr_to_bytes(addresses[2], 50 * 4) == whole[50:].tobytes(), "the whole array owns the memory"
    assert acl.util.ptr_to_bytes(addresses[0], whole.nbytes) == b"", "this size was never registered"
    allocated = ok(acl.rt.malloc(80, 0))
    inside = acl.util.ptr_to_numpy(allocated + 8, (4,), np.dtype(np.float32).num)
    assert acl.util.numpy_to_ptr(inside) == allocated + 8
    assert len(acl.util.ptr_to_bytes(allocated + 40, 40)) == 40
    ok(acl.rt.memcpy(allocated, 80, addresses[0], 80, 1))
    assert np.array_equal(inside, whole[2:6])


def test_many_short_lived_arrays_leave_no_trace() -> None:
    for number in range(1000):
        array = np.full(number + 1, number)
        assert acl.util.numpy_to_ptr(array)
    assert len(process().memory._blocks) < 200


def test_what_is_no_array_of_numbers_has_no_address() -> None:
    for wrong in (numbers(4, 4).T, np.array(["a", None], object), [1, 2]):
        assert acl.util.numpy_to_ptr(wrong) == 0
    assert acl.util.bytes_to_ptr("text") == 0
    assert acl.util.ptr_to_numpy(ok(acl.rt.malloc(8, 0)), (1,), 17).size == 0, "numpy's type number of object"


def test_there_is_one_device_and_a_context_of_it() -> None:
    assert acl.rt.get_device_count() == (1, 0)
    ok(acl.rt.set_device(0))
    assert acl.rt.get_device() == (0, 0)
    context = ok(acl.rt.create_context(0))
    ok(acl.rt.set_context(context))
    ok(acl.rt.destroy_context(context))
    assert acl.rt.set_context(context) == Code.INVALID_PARAM
    assert acl.rt.create_context(1) == (0, Code.INVALID_DEVICE_ID)
    assert acl.rt.get_run_mode() == (1, 0)
    free, total, code = acl.rt.get_mem_info(0)
    assert code == 0
    assert 0 < free <= total


LOAD_TYPE, PATH, MEMORY, MEMORY_SIZE = 1, 2, 3, 4


def _dataset_of(array: Any) -> int:
    dataset = acl.mdl.create_dataset()
    ok(acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(array.ctypes.data, array.nbytes)))
    return dataset


def _answer(model_id: int) -> bool:
    """Whether a model is the small one, which doubles positive values."""
    x, y = numbers(2, 3), np.zeros((2, 3), np.float32)
    ok(acl.mdl.execute(model_id, _dataset_of(x), _dataset_of(y)))
    return np.array_equal(y, 2 * np.maximum(x, 0))


# ----------------------------------------------------------------------------------------------------------------- files


def test_for_an_om_file_the_onnx_file_beside_it_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    onnx_file = write_small(tmp_path)
    with caplog.at_level(logging.INFO, "opdump.acl"):
        assert _answer(ok(acl.mdl.load_from_file(str(tmp_path / "small.om"))))
    assert f"{onnx_file} is loaded in its place" in caplog.text
    (tmp_path / "small.om").write_bytes(b"IMOD" + bytes(300))
    assert _answer(ok(acl.mdl.load_from_file(str(tmp_path / "small.om"))))


def test_an_onnx_file_may_be_called_om(tmp_path: Path) -> None:
    shutil.move(write_small(tmp_path), tmp_path / "small.om")
    assert _answer(ok(acl.mdl.load_from_file(str(tmp_path / "small.om"))))
    assert acl.mdl.query_size(str(tmp_path / "small.om")) == (1, (tmp_path / "small.om").stat().st_size, 0)


def test_an_om_file_alone_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "small.om"
    assert acl.mdl.load_from_file(str(path)) == (0, Code.INVALID_FILE)
    assert acl.mdl.query_size(str(path)) == (0, 0, Code.INVALID_FILE)
    path.write_bytes(b"IMOD" + bytes(300))
    for call in (acl.mdl.load_from_file, lambda each: acl.mdl.load_from_file_with_mem(each, 0, 0, 0, 0)):
        assert call(str(path)) == (0, Code.PARSE_FILE)
        assert "small.onnx" in acl.get_recent_err_msg()
    renamed = shutil.copy(path, tmp_path / "renamed.model")
    assert acl.mdl.load_from_file(renamed) == (0, Code.PARSE_FILE)


def test_models_in_memory_and_their_sizes(tmp_path: Path) -> None:
    content = write_small(tmp_path).read_bytes()
    address = acl.util.bytes_to_ptr(content)
    assert _answer(ok(acl.mdl.load_from_mem(address, len(content))))
    assert _answer(ok(acl.mdl.load_from_mem_with_mem(address, len(content), 0, 0, 0, 0)))
    assert acl.mdl.query_size_from_mem(address, len(content)) == (1, len(content), 0)
    assert acl.mdl.query_size_from_mem(5, 10) == (0, 0, Code.INVALID_PARAM)
    assert acl.mdl.load_from_mem(address, len(content) + 1) == (0, Code.INVALID_PARAM)


# ------------------------------------------------------------------------------------------------ configuration handles


@pytest.mark.parametrize("load_type", [1, 2])
def test_a_handle_loads_a_file(load_type: int, tmp_path: Path) -> None:
    handle = acl.mdl.create_config_handle()
    ok(acl.mdl.set_config_opt(handle, LOAD_TYPE, load_type))
    ok(acl.mdl.set_config_opt(handle, PATH, str(write_small(tmp_path))))
    for attribute, value in ((0, 1), (5, 4096), (6, 100), (7, 0), (8, 100), (13, 1)):
        ok(acl.mdl.set_config_opt(handle, attribute, value))
    assert _answer(ok(acl.mdl.load_with_config(handle)))
    assert _answer(ok(acl.mdl.load_with_config(handle))), "a handle can be used again"
    ok(acl.mdl.destroy_config_handle(handle))
    assert acl.mdl.load_with_config(handle) == (0, Code.INVALID_PARAM)
    assert acl.mdl.destroy_config_handle(handle) == Code.INVALID_PARAM


@pytest.mark.parametrize("load_type", [3, 4])
def test_a_handle_loads_from_memory(load_type: int, tmp_path: Path) -> None:
    content = write_small(tmp_path).read_bytes()
    handle = acl.mdl.create_config_handle()
    ok(acl.mdl.set_config_opt(handle, LOAD_TYPE, load_type))
    ok(acl.mdl.set_config_opt(handle, MEMORY, acl.util.bytes_to_ptr(content)))
    assert acl.mdl.load_with_config(handle) == (0, Code.INVALID_PARAM)
    assert "a size (4)" in acl.get_recent_err_msg()
    ok(acl.mdl.set_config_opt(handle, MEMORY_SIZE, len(content)))
    assert _answer(ok(acl.mdl.load_with_config(handle)))


def test_a_handle_that_says_too_little(tmp_path: Path) -> None:
    handle = acl.mdl.create_config_handle()
    ok(acl.mdl.set_config_opt(handle, PATH, str(write_small(tmp_path))))
    assert acl.mdl.load_with_config(handle) == (0, Code.INVALID_PARAM)
    assert "attribute 1 is 1 (file) or 3 (memory)" in acl.get_recent_err_msg()
    ok(acl.mdl.set_config_opt(handle, LOAD_TYPE, 3))
    assert acl.mdl.load_with_config(handle) == (0, Code.INVALID_PARAM)
    assert "an address (3) and a size (4)" in acl.get_recent_err_msg()
    ok(acl.mdl.set_config_opt(handle, LOAD_TYPE, 5))
    assert acl.mdl.load_with_config(handle) == (0, Code.INVALID_PARAM)
    assert "queues are not simulated" in acl.get_recent_err_msg()
    ok(acl.mdl.set_config_opt(handle, LOAD_TYPE, 1))
    ok(acl.mdl.set_config_opt(handle, PATH, str(tmp_path / "none.onnx")))
    assert acl.mdl.load_with_config(handle) == (0, Code.INVALID_FILE)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        (LOAD_TYPE, 0),
        (LOAD_TYPE, 7),
        (PATH, ""),
        (PATH, 5),
        (MEMORY, 0),
        (MEMORY_SIZE, "5"),
        (9, 1),
        (12, 1),
        (14, 1),
        (15, 1),
        (-1, 1),
    ],
)
def test_what_is_no_option_is_refused(attribute: int, value: Any) -> None:
    handle = acl.mdl.create_config_handle()
    assert acl.mdl.set_config_opt(handle, attribute, value) == Code.INVALID_PARAM
    assert acl.get_recent_err_msg().startswith("acl.mdl.set_config_opt: ")
    assert acl.mdl.set_config_opt(5, LOAD_TYPE, 1) == Code.INVALID_PARAM


# ---------------------------------------------------------------------------------------------------------------- runs


def test_a_run_with_a_handle(tmp_path: Path) -> None:
    model_id = ok(acl.mdl.load_from_file(str(write_small(tmp_path))))
    handle, stream = acl.mdl.create_exec_config_handle(), ok(acl.rt.create_stream())
    ok(acl.mdl.set_exec_config_opt(handle, 0, 1000))
    ok(acl.mdl.set_exec_config_opt(handle, 1, -1))
    assert acl.mdl.set_exec_config_opt(handle, 2, 1) == acl.mdl.set_exec_config_opt(handle, 0, -2) == Code.INVALID_PARAM
    x, y = numbers(2, 3), np.zeros((2, 3), np.float32)
    ok(acl.mdl.execute_v2(model_id, _dataset_of(x), _dataset_of(y), stream, handle))
    assert np.array_equal(y, 2 * np.maximum(x, 0))
    assert acl.mdl.execute_v2(model_id, _dataset_of(x), _dataset_of(y), stream, 5) == Code.INVALID_PARAM
    assert acl.mdl.execute_v2(model_id, _dataset_of(x), _dataset_of(y), 5, handle) == Code.INVALID_PARAM
    ok(acl.mdl.destroy_exec_config_handle(handle))
    assert acl.mdl.destroy_exec_config_handle(handle) == Code.INVALID_PARAM


def test_data_sets_list_their_buffers(tmp_path: Path) -> None:
    x = numbers(2, 3)
    dataset = _dataset_of(x)
    buffer = acl.mdl.get_dataset_buffer(dataset, 0)
    assert (acl.mdl.get_dataset_num_buffers(dataset), acl.get_data_buffer_addr(buffer)) == (1, x.ctypes.data)
    assert acl.mdl.get_dataset_buffer(dataset, 1) == acl.mdl.get_dataset_num_buffers(5) == 0
    assert acl.mdl.add_dataset_buffer(dataset, 5) == (0, Code.INVALID_PARAM)
    assert acl.mdl.get_dataset_tensor_desc(dataset, 0) == 0
    desc = acl.create_tensor_desc(0, [2, 3], 2)
    assert acl.mdl.set_dataset_tensor_desc(dataset, desc, 0) == (dataset, 0)
    assert acl.mdl.get_dataset_tensor_desc(dataset, 0) == desc
    assert acl.mdl.set_dataset_tensor_desc(dataset, desc, 1) == (0, Code.INVALID_PARAM)
    ok(acl.mdl.destroy_dataset(dataset))
    assert acl.mdl.destroy_dataset(dataset) == Code.INVALID_PARAM


def test_names_of_tensors_are_never_shortened(tmp_path: Path) -> None:
    model_id = ok(acl.mdl.load_from_file(str(write_small(tmp_path))))
    desc = acl.mdl.create_desc()
    ok(acl.mdl.get_desc(desc, model_id))
    assert [acl.mdl.get_tensor_real_name(desc, name) for name in ("x", "y", "z")] == ["x", "y", ""]
    ok(acl.mdl.destroy_desc(desc))
    assert acl.mdl.destroy_desc(desc) == Code.INVALID_PARAM
    assert acl.mdl.get_desc(acl.mdl.create_desc(), 7) == Code.INVALID_MODEL_ID
