"""Addresses that a program took from numpy, PyTorch or ctypes itself: what is known of their memory, and what is not."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from opdump import acl
from opdump.acl import Code
from opdump.acl.memory import bounds, is_mapped
from opdump.acl.process import start_anew
from tests.acl.program import numbers, ok

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say what is mapped")


def _copied(source: int, count: int) -> tuple[int, bytes]:
    """The code of a copy from an address, and what arrived."""
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


def test_more_bytes_than_the_array_of_a_caller_has_are_refused() -> None:
    array = numbers(3, 4)
    assert _copied(array.ctypes.data, array.nbytes + 4)[0] == Code.INVALID_PARAM
    assert "52 bytes were asked for and 48 are there" in acl.get_recent_err_msg()
    assert _copied(array.ctypes.data + 40, 12)[0] == Code.INVALID_PARAM
    assert acl.create_data_buffer(array.ctypes.data, array.nbytes + 1) == 0


class _Model:
    def __init__(self) -> None:
        self.slots = [{"host": numbers(5), "size": 20}]


def test_an_array_that_an_object_of_the_caller_holds_is_found() -> None:
    model = _Model()
    assert _copied(model.slots[0]["host"].ctypes.data, 20)[0] == 0  # type: ignore[attr-defined]
    assert _copied(model.slots[0]["host"].ctypes.data, 24)[0] == Code.INVALID_PARAM  # type: ignore[attr-defined]


def test_a_view_has_the_bounds_of_the_array_whose_memory_it_is() -> None:
    batch = numbers(4, 6)
    assert _copied(batch[1].ctypes.data, 24) == (0, batch[1].tobytes())
    assert _copied(batch[3].ctypes.data, 28)[0] == Code.INVALID_PARAM


def test_of_two_arrays_at_an_address_that_one_counts_which_has_the_bytes() -> None:
    content = bytearray(numbers(25).tobytes())
    header, body = np.frombuffer(content, np.uint8, 16), np.frombuffer(content, np.uint8)
    assert header.ctypes.data == body.ctypes.data
    assert _copied(header.ctypes.data, 16) == (0, bytes(content[:16]))
    assert _copied(body.ctypes.data, 100) == (0, bytes(content))
    assert _copied(body.ctypes.data, 101)[0] == Code.INVALID_PARAM


def test_bounds_go_from_the_lowest_to_the_highest_element() -> None:
    whole = numbers(4, 6)
    start = whole.ctypes.data
    assert bounds(whole[::-1]) == bounds(whole.T) == bounds(whole) == (start, 96)
    assert bounds(whole[1:3, ::2]) == (start + 24, 44)
    assert bounds(whole[:0]) == (start, 0)


def test_an_array_in_another_order_is_told(caplog: pytest.LogCaptureFixture) -> None:
    image = numbers(4, 6, 3)
    content = image.tobytes()
    assert _copied(image.ctypes.data, image.nbytes) == (0, content)
    assert not caplog.text
    start_anew()
    image = image.transpose(2, 0, 1)
    assert _copied(image.ctypes.data, image.nbytes) == (0, content), "the memory, as on a device"
    assert "do not lie in C order" in caplog.text


def test_an_array_that_may_not_be_written_to_is_refused() -> None:
    array = numbers(4)
    array.flags.writeable = False
    other = numbers(4)
    assert acl.rt.memcpy(array.ctypes.data, 16, other.ctypes.data, 16, 0) == Code.INVALID_PARAM
    assert "constant" in acl.get_recent_err_msg()


def test_a_buffer_of_an_array_that_is_gone_is_refused() -> None:
    array = numbers(1000)
    buffer = acl.create_data_buffer(array.ctypes.data, array.nbytes)
    address = array.ctypes.data
    assert buffer
    del array
    gc.collect()
    assert acl.util.ptr_to_bytes(address, 4) == b""
    assert "keep the array" in acl.get_recent_err_msg()


def test_looking_for_an_array_keeps_no_local_variable_alive() -> None:
    array, other = numbers(10), numbers(20)
    gone = weakref.ref(other)
    assert _copied(array.ctypes.data, 40)[0] == 0
    del other
    gc.collect()
    assert gone() is None


def test_short_lived_arrays_at_the_same_address_are_each_found() -> None:
    device = ok(acl.rt.malloc(4000, 0))
    for number in range(300):
        array = np.full(1000, number, np.float32)
        ok(acl.rt.memcpy(device, 4000, array.ctypes.data, array.nbytes, 1))
        assert acl.util.ptr_to_bytes(device, 4) == np.float32(number).tobytes()


@linux
def test_memory_of_which_nothing_is_known_is_used_where_it_is_mapped() -> None:
    protect = ctypes.CDLL(None).mprotect
    size = 3 * mmap.PAGESIZE
    with mmap.mmap(-1, size) as memory:
        place = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(place)
        del place
        memory[:4] = b"abcd"
        assert _copied(address, 4) == (0, b"abcd")
        other = numbers(1)
        ok(acl.rt.memcpy(address + 8, 4, other.ctypes.data, 4, 0))
        assert memory[8:12] == other.tobytes()
        assert protect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
        assert _copied(address + mmap.PAGESIZE, 4)[0] == Code.INVALID_PARAM, "nobody may read it"
        assert _copied(address + mmap.PAGESIZE - 2, 4)[0] == Code.INVALID_PARAM
        assert protect(ctypes.c_void_p(address), size, mmap.PROT_READ) == 0
        assert _copied(address + mmap.PAGESIZE, 4)[0] == 0
        assert acl.rt.memcpy(address, 4, other.ctypes.data, 4, 0) == Code.INVALID_PARAM, "it may be read alone"


@linux
def test_what_is_mapped_is_what_the_system_says() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
        address = np.frombuffer(memory, np.uint8).ctypes.data
        assert is_mapped(address, mmap.PAGESIZE, write=False)
        assert not is_mapped(address, 1, write=True)
    assert not is_mapped(0, 1, write=False)
    assert not is_mapped(2**62, 1, write=False)


def test_an_address_that_is_nowhere_is_refused() -> None:
    for address in (1, 4096, 2**62, 2**64 - 8, -8, 2**70):
        assert _copied(address, 8)[0] == Code.INVALID_PARAM
        assert acl.create_data_buffer(address, 8) == 0


def test_memory_beside_what_malloc_gave_and_what_was_freed_is_nobodys() -> None:
    address = ok(acl.rt.malloc(100, 0))
    for wrong in (address - 1, address - 64, address + 100, address + 163):
        assert _copied(wrong, 1)[0] == Code.INVALID_PARAM, wrong - address
    ok(acl.rt.free(address))
    assert _copied(address, 1)[0] == Code.INVALID_PARAM


def test_results_are_copied_into_bytes_as_sample_programs_do() -> None:
    result = np.zeros(4, np.float32).tobytes()
    array = numbers(4)
    ok(acl.rt.memcpy(acl.util.bytes_to_ptr(result), len(result), array.ctypes.data, array.nbytes, 2))
    assert np.array_equal(np.frombuffer(result, np.float32), array)


def test_a_single_byte_is_every_programs_and_not_written_to() -> None:
    one = np.zeros(1, np.uint8).tobytes()
    array = np.ones(1, np.uint8)
    assert acl.rt.memcpy(acl.util.bytes_to_ptr(one), 1, array.ctypes.data, 1, 2) == Code.INVALID_PARAM
    assert one == b"\0"


class _Refusing:
    """An object of a program that answers no questions."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_objects_that_answer_no_questions_do_not_disturb() -> None:
    refusing = _Refusing()
    array = numbers(4)
    assert _copied(array.ctypes.data, 16) == (0, array.tobytes())
    assert type(refusing) is _Refusing


@pytest.mark.torch
def test_the_address_of_a_tensor_is_memory() -> None:
    import torch

    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert _copied(tensor.data_ptr(), tensor.nbytes) == (0, tensor.numpy().tobytes())
    assert _copied(tensor.data_ptr(), tensor.nbytes + 1)[0] == Code.INVALID_PARAM
    assert acl.create_data_buffer(tensor.data_ptr(), tensor.nbytes)
    result = torch.zeros(3, 4)
    ok(acl.rt.memcpy(result.data_ptr(), 48, tensor.data_ptr(), 48, 2))
    assert torch.equal(result, tensor)


@pytest.mark.torch
def test_tensors_without_memory_of_the_host_do_not_disturb(caplog: pytest.LogCaptureFixture) -> None:
    import torch

    around = [torch.empty(3, device="meta"), torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(2))]
    turned = torch.ones(2, 3).t()
    assert _copied(turned.data_ptr(), 24)[0] == 0
    assert "do not lie in C order" in caplog.text
    assert _copied(around[2].data_ptr(), 9)[0] == Code.INVALID_PARAM


@pytest.mark.torch
def test_modes_of_the_program_do_not_see_who_looks_for_a_tensor() -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    calls: list[Any] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(function)
            return function(*args, **(kwargs or {}))

    tensor = torch.ones(4)
    address = tensor.data_ptr()
    with Mode():
        assert _copied(address, 16)[0] == 0
        assert _copied(address, 17)[0] == Code.INVALID_PARAM
    assert calls == []
