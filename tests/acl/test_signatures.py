"""The number of arguments and the form of the result of every call in public sample programs, as in pyACL.

`code` is a bare return code, `value, code` both, `value` a result without a code, `None` nothing. The numbers after a
call are its arguments.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from opdump import acl

_FACTS: dict[str, tuple[int, str]] = {
    "init": (1, "code"),
    "finalize": (0, "code"),
    "get_recent_err_msg": (0, "value"),
    "get_soc_name": (0, "value"),
    "get_version": (0, "value, value, value, code"),
    "app_log": (2, "None"),
    "create_data_buffer": (2, "value"),
    "destroy_data_buffer": (1, "code"),
    "update_data_buffer": (3, "code"),
    "get_data_buffer_addr": (1, "value"),
    "get_data_buffer_size": (1, "value"),
    "get_data_buffer_size_v2": (1, "value"),
    "create_tensor_desc": (3, "value"),
    "destroy_tensor_desc": (1, "None"),
    "get_tensor_desc_type": (1, "value"),
    "get_tensor_desc_format": (1, "value"),
    "get_tensor_desc_size": (1, "value"),
    "get_tensor_desc_element_count": (1, "value"),
    "get_tensor_desc_num_dims": (1, "value"),
    "get_tensor_desc_dim": (2, "value"),
    "get_tensor_desc_dim_v2": (2, "value, code"),
    "get_tensor_desc_name": (1, "value"),
    "set_tensor_desc_name": (2, "None"),
    "set_tensor_shape": (2, "code"),
    "set_tensor_format": (2, "code"),
    "data_type_size": (1, "value"),
    "float16_to_float": (1, "value"),
    "float_to_float16": (1, "value"),
    "rt.set_device": (1, "code"),
    "rt.reset_device": (1, "code"),
    "rt.get_device": (0, "value, code"),
    "rt.get_device_count": (0, "value, code"),
    "rt.get_run_mode": (0, "value, code"),
    "rt.create_context": (1, "value, code"),
    "rt.destroy_context": (1, "code"),
    "rt.set_context": (1, "code"),
    "rt.get_context": (0, "value, code"),
    "rt.create_stream": (0, "value, code"),
    "rt.destroy_stream": (1, "code"),
    "rt.synchronize_stream": (1, "code"),
    "rt.synchronize_device": (0, "code"),
    "rt.create_event": (0, "value, code"),
    "rt.destroy_event": (1, "code"),
    "rt.record_event": (2, "code"),
    "rt.reset_event": (2, "code"),
    "rt.query_event": (1, "value, code"),
    "rt.synchronize_event": (1, "code"),
    "rt.stream_wait_event": (2, "code"),
    "rt.event_elapsed_time": (2, "value, code"),
    "rt.subscribe_report": (2, "code"),
    "rt.unsubscribe_report": (2, "code"),
    "rt.launch_callback": (4, "code"),
    "rt.process_report": (1, "code"),
    "rt.malloc": (2, "value, code"),
    "rt.malloc_cached": (2, "value, code"),
    "rt.malloc_host": (1, "value, code"),
    "rt.free": (1, "code"),
    "rt.free_host": (1, "code"),
    "rt.memcpy": (5, "code"),
    "rt.memcpy_async": (6, "code"),
    "rt.memset": (4, "code"),
    "rt.memset_async": (5, "code"),
    "rt.get_mem_info": (1, "value, value, code"),
    "mdl.load_from_file": (1, "value, code"),
    "mdl.load_from_file_with_mem": (5, "value, code"),
    "mdl.load_from_mem": (2, "value, code"),
    "mdl.load_from_mem_with_mem": (6, "value, code"),
    "mdl.query_size": (1, "value, value, code"),
    "mdl.query_size_from_mem": (2, "value, value, code"),
    "mdl.unload": (1, "code"),
    "mdl.execute": (3, "code"),
    "mdl.execute_async": (4, "code"),
    "mdl.execute_v2": (5, "code"),
    "mdl.create_desc": (0, "value"),
    "mdl.destroy_desc": (1, "code"),
    "mdl.get_desc": (2, "code"),
    "mdl.get_desc_from_file": (2, "code"),
    "mdl.get_desc_from_mem": (3, "code"),
    "mdl.get_num_inputs": (1, "value"),
    "mdl.get_num_outputs": (1, "value"),
    "mdl.get_input_size_by_index": (2, "value"),
    "mdl.get_output_size_by_index": (2, "value"),
    "mdl.get_input_dims": (2, "value, code"),
    "mdl.get_input_dims_v2": (2, "value, code"),
    "mdl.get_output_dims": (2, "value, code"),
    "mdl.get_cur_output_dims": (2, "value, code"),
    "mdl.get_input_name_by_index": (2, "value"),
    "mdl.get_output_name_by_index": (2, "value"),
    "mdl.get_input_index_by_name": (2, "value, code"),
    "mdl.get_output_index_by_name": (2, "value, code"),
    "mdl.get_input_data_type": (2, "value"),
    "mdl.get_output_data_type": (2, "value"),
    "mdl.get_input_format": (2, "value"),
    "mdl.get_output_format": (2, "value"),
    "mdl.get_tensor_real_name": (2, "value"),
    "mdl.get_dynamic_batch": (1, "value, code"),
    "mdl.get_dynamic_hw": (2, "value, code"),
    "mdl.get_input_dynamic_gear_count": (2, "value, code"),
    "mdl.get_input_dynamic_dims": (3, "value, code"),
    "mdl.set_dynamic_batch_size": (4, "code"),
    "mdl.set_dynamic_hw_size": (5, "code"),
    "mdl.set_input_dynamic_dims": (4, "code"),
    "mdl.create_dataset": (0, "value"),
    "mdl.destroy_dataset": (1, "code"),
    "mdl.add_dataset_buffer": (2, "value, code"),
    "mdl.get_dataset_buffer": (2, "value"),
    "mdl.get_dataset_num_buffers": (1, "value"),
    "mdl.set_dataset_tensor_desc": (3, "value, code"),
    "mdl.get_dataset_tensor_desc": (2, "value"),
    "mdl.create_config_handle": (0, "value"),
    "mdl.set_config_opt": (3, "code"),
    "mdl.load_with_config": (1, "value, code"),
    "mdl.destroy_config_handle": (1, "code"),
    "mdl.create_exec_config_handle": (0, "value"),
    "mdl.set_exec_config_opt": (3, "code"),
    "mdl.destroy_exec_config_handle": (1, "code"),
    "mdl.init_dump": (0, "code"),
    "mdl.set_dump": (1, "code"),
    "mdl.finalize_dump": (0, "code"),
    "op.set_model_dir": (1, "code"),
    "op.load": (2, "code"),
    "op.create_attr": (0, "value"),
    "op.destroy_attr": (1, "code"),
    "op.set_attr_bool": (3, "code"),
    "op.set_attr_int": (3, "code"),
    "op.set_attr_float": (3, "code"),
    "op.set_attr_string": (3, "code"),
    "op.set_attr_list_int": (3, "code"),
    "op.set_attr_list_float": (3, "code"),
    "op.execute": (7, "code"),
    "op.execute_v2": (7, "code"),
    "op.update_params": (4, "code"),
    "util.bytes_to_ptr": (1, "value"),
    "util.ptr_to_bytes": (2, "value"),
    "util.numpy_to_ptr": (1, "value"),
    "util.numpy_contiguous_to_ptr": (1, "value, value"),
    "util.ptr_to_numpy": (3, "value"),
    "util.stop_thread": (1, "code"),
}
_NOWHERE = -7
"""An invalid handle, address or number."""
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "app_log": (1, "a word"),
    "data_type_size": (0,),
    "set_tensor_shape": (_NOWHERE, [1]),
    "float16_to_float": (0,),
    "float_to_float16": (0.5,),
    "init": ("nowhere.json",),
    "mdl.load_from_file": ("nowhere.onnx",),
    "mdl.load_from_file_with_mem": ("nowhere.onnx", 0, 0, 0, 0),
    "mdl.query_size": ("nowhere.onnx",),
    "op.set_model_dir": ("nowhere",),
    "op.set_attr_list_int": (_NOWHERE, "name", [1]),
    "op.set_attr_list_float": (_NOWHERE, "name", [1.0]),
    "op.execute": ("Add", [_NOWHERE], [_NOWHERE], [], [], 0, 0),
    "op.execute_v2": ("Add", [_NOWHERE], [_NOWHERE], [], [], 0, 0),
    "op.update_params": ("Add", [_NOWHERE], [], 0),
}


def _call(name: str) -> Any:
    part, _, own = name.rpartition(".")
    return getattr(getattr(acl, part) if part else acl, own)


@pytest.mark.parametrize("name", _FACTS)
def test_a_call_takes_as_many_arguments_as_that_of_pyacl(name: str) -> None:
    signature, (count, _) = inspect.signature(_call(name)), _FACTS[name]
    signature.bind(*range(count))
    if name not in ("rt.get_context", "mdl.set_dump"):  # in pyACL too, these accept fewer and more
        with pytest.raises(TypeError):
            signature.bind(*range(count + 1))


@pytest.mark.parametrize("name", _FACTS)
def test_a_call_gives_back_what_that_of_pyacl_does(name: str) -> None:
    count, returned = _FACTS[name]
    found = _call(name)(*_ARGUMENTS.get(name, (_NOWHERE,) * count))
    if returned == "None":
        assert found is None
        return
    values = found if isinstance(found, tuple) else (found,)
    assert len(values) == len(returned.split(", "))
    assert isinstance(found, tuple) == ("," in returned)
    if returned.endswith("code"):
        assert type(values[-1]) is int
        needs_nothing = count == 0 and name not in ("finalize", "mdl.init_dump", "mdl.finalize_dump", "rt.get_context")
        assert (values[-1] == 0) == (needs_nothing or name == "rt.get_mem_info"), acl.get_recent_err_msg()
