"""Ways to load a model (files named like an OM file, memory, configuration handles) and ways to run it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump import acl
from opdump.acl import Code
from tests.acl.program import numbers, ok, write_small

LOAD_TYPE, PATH, MEMORY, MEMORY_SIZE = 1, 2, 3, 4


@pytest.fixture(autouse=True)
def initialised(new_process: None) -> None:
    ok(acl.init())


def _dataset(array: Any) -> int:
    dataset = acl.mdl.create_dataset()
    ok(acl.mdl.add_dataset_buffer(dataset, acl.create_data_buffer(array.ctypes.data, array.nbytes)))
    return dataset


def _answer(model_id: int) -> bool:
    """Whether a model is the small one, which doubles positive values."""
    x, y = numbers(2, 3), np.zeros((2, 3), np.float32)
    ok(acl.mdl.execute(model_id, _dataset(x), _dataset(y)))
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
    ok(acl.mdl.execute_v2(model_id, _dataset(x), _dataset(y), stream, handle))
    assert np.array_equal(y, 2 * np.maximum(x, 0))
    assert acl.mdl.execute_v2(model_id, _dataset(x), _dataset(y), stream, 5) == Code.INVALID_PARAM
    assert acl.mdl.execute_v2(model_id, _dataset(x), _dataset(y), 5, handle) == Code.INVALID_PARAM
    ok(acl.mdl.destroy_exec_config_handle(handle))
    assert acl.mdl.destroy_exec_config_handle(handle) == Code.INVALID_PARAM


def test_data_sets_tell_their_buffers(tmp_path: Path) -> None:
    x = numbers(2, 3)
    dataset = _dataset(x)
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
