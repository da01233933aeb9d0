"""Addresses that a program got from numpy, PyTorch or ctypes are used as they are if their pages are mapped."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from opdump import acl
from opdump.acl import Code
from opdump.acl.memory import is_mapped
from tests.acl.program import numbers, ok


def _copied(source: int, count: int) -> tuple[int, bytes]:
    """The return code of a copy from an address, and the bytes that arrived."""
    device = ok(acl.rt.malloc(max(count, 1), 0))
    code = acl.rt.memcpy(device, count, source, count, 1)
    return code, acl.util.ptr_to_bytes(device, count)


@pytest.mark.parametrize("of", ["ctypes", "array interface"])
def test_the_address_of_an_array_is_memory(of: str) -> None:
    array = numbers(3, 4)
    address = array.ctypes.data if of == "ctypes" else array.__array_interface__["data"][0]
    assert _copied(address, array.nbytes) == (0, array.tobytes())
    result = np.zeros((3, 4), np.float32)
    target = result.ctypes.data if of == "ctypes" else result.__array_interface__["data"][0]
    ok(acl.rt.memcpy(target, result.nbytes, address, array.nbytes, 2))
    assert np.array_equal(result, array)


def test_short_lived_arrays_at_the_same_address_are_each_found() -> None:
    device = ok(acl.rt.malloc(4000, 0))
    for number in range(300):
        array = np.full(1000, number, np.float32)
        ok(acl.rt.memcpy(device, 4000, array.ctypes.data, array.nbytes, 1))
        assert acl.util.ptr_to_bytes(device, 4) == np.float32(number).tobytes()


def test_an_address_that_is_nowhere_is_refused() -> None:
    for address in (1, 4096, 2**62, 2**64 - 8, -8, 2**70):
        assert _copied(address, 8)[0] == Code.INVALID_PARAM
        assert acl.create_data_buffer(address, 8) == 0


def test_results_are_copied_into_bytes_as_sample_programs_do() -> None:
    result = np.zeros(4, np.float32).tobytes()
    array = numbers(4)
    ok(acl.rt.memcpy(acl.util.bytes_to_ptr(result), len(result), array.ctypes.data, array.nbytes, 2))
    assert np.array_equal(np.frombuffer(result, np.float32), array)


def test_a_single_byte_is_shared_by_the_interpreter_and_not_written_to() -> None:
    one = np.zeros(1, np.uint8).tobytes()
    array = np.ones(1, np.uint8)
    assert acl.rt.memcpy(acl.util.bytes_to_ptr(one), 1, array.ctypes.data, 1, 2) == Code.INVALID_PARAM
    assert one == b"\0"


def test_an_array_found_at_the_address_of_one_that_is_gone_is_memory() -> None:
    array = numbers(1000)
    address = acl.util.numpy_to_ptr(array)
    kept = array[:]
    assert _copied(address, 4004)[0] == Code.INVALID_PARAM, "the bounds of a registered array apply"
    base = memoryview(bytearray(array.tobytes()))
    other = np.frombuffer(base, np.float32)
    assert _copied(other.ctypes.data, 4000) == (0, kept.tobytes())


def test_an_array_may_lie_where_freed_memory_was() -> None:
    address = ok(acl.rt.malloc(4000, 0))
    ok(acl.rt.free(address))
    arrays = [np.full(1000, number, np.float32) for number in range(50)]
    assert all(_copied(array.ctypes.data, 4000) == (0, array.tobytes()) for array in arrays)


def test_all_pages_of_an_address_must_be_mapped() -> None:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory:
        place = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(place)
        del place
        memory[:4] = b"abcd"
        assert _copied(address, 4) == (0, b"abcd")
        ok(acl.rt.memcpy(address + 8, 4, address, 4, 0))
        assert memory[8:12] == b"abcd"
        assert is_mapped(address, 2 * mmap.PAGESIZE)
    assert not is_mapped(address, 1)
    assert _copied(address, 4)[0] == Code.INVALID_PARAM
    assert not is_mapped(0, 1)
    assert not is_mapped(2**62, 1)


def test_memory_beside_an_allocated_block_is_refused() -> None:
    address = ok(acl.rt.malloc(100, 0))
    for wrong in (address - 1, address - 64, address + 100, address + 163):
        assert _copied(wrong, 1)[0] == Code.INVALID_PARAM, wrong - address


@pytest.mark.torch
def test_the_address_of_a_tensor_is_memory() -> None:
    import torch

    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert _copied(tensor.data_ptr(), tensor.nbytes) == (0, tensor.numpy().tobytes())
    assert acl.create_data_buffer(tensor.data_ptr(), tensor.nbytes)
    result = torch.zeros(3, 4)
    ok(acl.rt.memcpy(result.data_ptr(), 48, tensor.data_ptr(), 48, 2))
    assert torch.equal(result, tensor)
