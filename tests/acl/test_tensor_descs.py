"""Data buffers, tensor descriptions and the small calls of `acl`: arguments, results and return codes."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest

from opdump import acl
from opdump.acl import Code
from tests.acl.program import numbers, ok

_NO_SUCH = 5


def test_tensor_descriptions_name_what_they_were_made_of() -> None:
    desc = acl.create_tensor_desc(9, [2, -1, 3], 2)
    assert acl.get_tensor_desc_type(desc) == 9
    assert acl.get_tensor_desc_format(desc) == 2
    assert acl.get_tensor_desc_num_dims(desc) == 3
    assert [acl.get_tensor_desc_dim_v2(desc, index) for index in range(4)] == [(2, 0), (-1, 0), (3, 0), (0, 100000)]
    assert [acl.get_tensor_desc_dim(desc, index) for index in range(4)] == [2, -1, 3, -1]
    assert acl.get_tensor_desc_element_count(desc) == acl.get_tensor_desc_size(desc) == 0
    full = acl.create_tensor_desc(9, [2, 3], 2)
    assert (acl.get_tensor_desc_element_count(full), acl.get_tensor_desc_size(full)) == (6, 48)
    assert [acl.data_type_size(number) for number in (0, 1, 9, 12, 13, 27, 99)] == [4, 2, 8, 1, 0, 2, 0]


def test_names_of_descriptions_and_their_end_return_nothing() -> None:
    desc = acl.create_tensor_desc(0, [2], 2)
    assert acl.get_tensor_desc_name(desc) == ""
    assert acl.set_tensor_desc_name(desc, "x") is None
    assert acl.get_tensor_desc_name(desc) == "x"
    acl.get_recent_err_msg()
    assert acl.destroy_tensor_desc(desc) is None
    assert acl.get_recent_err_msg() == ""
    assert acl.destroy_tensor_desc(desc) is None
    assert "acl.destroy_tensor_desc" in acl.get_recent_err_msg()


def test_shape_and_format_of_a_description_are_changed() -> None:
    desc = acl.create_tensor_desc(0, [2], 2)
    ok(acl.set_tensor_shape(desc, [4, 5]))
    ok(acl.set_tensor_format(desc, 0))
    assert (acl.get_tensor_desc_size(desc), acl.get_tensor_desc_format(desc)) == (80, 0)
    for call in (acl.set_tensor_origin_shape, acl.set_tensor_storage_shape):
        ok(call(desc, [1, 2, 3]))
        assert call(desc, [-2]) == call(_NO_SUCH, [1]) == Code.INVALID_PARAM
    for other in (acl.set_tensor_origin_format, acl.set_tensor_storage_format):
        ok(other(desc, 3))
        assert other(desc, 99) == other(_NO_SUCH, 2) == Code.INVALID_PARAM
    assert (acl.get_tensor_desc_size(desc), acl.get_tensor_desc_format(desc)) == (80, 0), "the host has one shape"
    assert acl.set_tensor_shape(desc, ["4"]) == acl.set_tensor_format(desc, 99) == Code.INVALID_PARAM
    assert acl.get_tensor_desc_size(desc) == 80


def test_what_is_no_description_has_nothing_to_report() -> None:
    assert (
        acl.create_tensor_desc(5, [1], 2)
        == acl.create_tensor_desc(0, [1], 99)
        == acl.create_tensor_desc(0, [-3], 2)
        == 0
    )
    assert acl.get_tensor_desc_type(_NO_SUCH) == acl.get_tensor_desc_format(_NO_SUCH) == -1
    assert acl.get_tensor_desc_num_dims(_NO_SUCH) == acl.get_tensor_desc_size(_NO_SUCH) == 0
    assert acl.get_tensor_desc_element_count(_NO_SUCH) == 0
    assert acl.get_tensor_desc_name(_NO_SUCH) == ""
    assert acl.get_tensor_desc_dim_v2(_NO_SUCH, 0) == (0, Code.INVALID_PARAM)


def test_a_buffer_returns_its_memory_and_can_be_given_other_memory() -> None:
    one, two = numbers(4), numbers(8)
    buffer = acl.create_data_buffer(one.ctypes.data, one.nbytes)
    assert (acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size(buffer)) == (one.ctypes.data, 16)
    ok(acl.update_data_buffer(buffer, acl.util.numpy_to_ptr(two), two.nbytes))
    assert (acl.get_data_buffer_addr(buffer), acl.get_data_buffer_size_v2(buffer)) == (two.ctypes.data, 32)
    assert acl.update_data_buffer(buffer, two.ctypes.data, 33) == Code.INVALID_PARAM
    assert acl.get_data_buffer_size(buffer) == 32, "it keeps its old memory"
    ok(acl.destroy_data_buffer(buffer))
    assert acl.get_data_buffer_addr(buffer) == acl.get_data_buffer_size(buffer) == 0
    assert acl.destroy_data_buffer(buffer) == Code.INVALID_PARAM


def test_an_array_is_made_contiguous_and_handed_back() -> None:
    array = numbers(3, 4)
    address, same = acl.util.numpy_contiguous_to_ptr(array)
    assert (address, same is array) == (array.ctypes.data, True)
    address, copy = acl.util.numpy_contiguous_to_ptr(array.T)
    assert acl.util.ptr_to_bytes(address, 48) == array.T.tobytes() == copy.tobytes()
    assert acl.util.numpy_contiguous_to_ptr([1.0]) == (0, None)


def test_numbers_of_16_bits() -> None:
    assert acl.float_to_float16(1.5) == 0x3E00
    assert acl.float16_to_float(0x3E00) == 1.5
    assert math.isinf(acl.float16_to_float(acl.float_to_float16(1e6)))
    assert math.isnan(acl.float16_to_float(0x7E00))
    assert acl.float16_to_float(acl.float_to_float16(0.1)) == np.float16(0.1)


def test_versions_names_and_how_often_it_was_initialised() -> None:
    assert acl.get_version() == (1, 0, 0, 0)
    assert acl.get_soc_name() == "CPU"
    ok(acl.init())
    assert acl.init() == Code.REPEAT_INITIALIZE
    assert acl.finalize_reference() == (1, 0)
    assert acl.finalize_reference() == (0, 0)
    assert acl.finalize_reference() == (0, Code.REPEAT_FINALIZE)


def test_words_of_the_program_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "opdump.acl"):
        for level in range(4):
            acl.app_log(level, f"level {level}, 100%")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("DEBUG", "level 0, 100%"),
        ("INFO", "level 1, 100%"),
        ("WARNING", "level 2, 100%"),
        ("ERROR", "level 3, 100%"),
    ]
