"""Arrays of JAX as tensors in the memory of this process.

The memory of an array is read through its address. `numpy.asarray` of it would leave a reference in the array, and with that JAX could not
give its memory to the function that the program donates it to.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
import numpy.typing as npt

from opdump.adapters.host import HostTensor
from opdump.adapters.host.element_types import BY_DTYPE, ElementType

Array = npt.NDArray[Any]
Memory: TypeAlias = HostTensor | Array | str
"""Where a value lies: an array where several of its elements would lie in a byte, a text where no array stands for it."""


@functools.cache
def _element_of(dtype: np.dtype[Any]) -> ElementType | None:
    """What is known of a type; None where no array stands for it. numpy takes long to tell the name."""
    return BY_DTYPE.get(dtype.name)


def copied(array: Any, dtype: Any = None) -> Array | str:
    """The elements of an array that the program holds, in memory of their own; its type as text where no array stands for it.

    Of an array that lies on several devices, all of it. Elements that other processes hold are not there: then it is a text, too.
    """
    found = borrowed(array, dtype)
    return np.array(found) if isinstance(found, np.ndarray) else found


def given_again(copy: Array | str, given: Any) -> Any:
    """An array like one that the program gave away, of a copy of its elements. Raises ValueError where there is no copy."""
    if isinstance(copy, str):
        raise ValueError(f"no copy of what was given away: {copy}")
    if not isinstance(given, jax.Array):
        return copy
    if not isinstance(given.dtype, np.dtype):
        return jax.random.wrap_key_data(copy, impl=jax.random.key_impl(given))
    return jax.device_put(copy, given.sharding)


def borrowed(array: Any, dtype: Any = None) -> Array | str:
    """The same in the memory of the array where it can be read there: to be used before the program goes on.

    What is no array of JAX, a number of Python or an array of numpy, is given in the type that a function takes it in.
    """
    if not isinstance(array, jax.Array):
        aval = jax.typeof(array)
        return str(aval) if "Ref" in type(aval).__name__ else np.asarray(array, dtype)
    if not isinstance(array.dtype, np.dtype):
        array = jax.random.key_data(array)
    array.block_until_ready()
    element = _element_of(array.dtype)
    if element is None or element.bits < 8:
        return np.array(array)
    platform = _platform_of_one(array.sharding)
    if platform:
        return _at_address(array, platform)
    if not array.is_fully_addressable:
        return f"{array.dtype.name} of several processes"
    shards = array.addressable_shards
    if len(shards) == 1 or array.is_fully_replicated:
        return _shard(shards[0].data)
    whole = np.empty(array.shape, array.dtype)
    for shard in shards:
        whole[shard.index] = _shard(shard.data)
    return whole


@functools.lru_cache(maxsize=64)
def _platform_of_one(sharding: Any) -> str:
    """The platform of the only device; empty where there are several."""
    devices = sharding.device_set
    return str(next(iter(devices)).platform) if len(devices) == 1 else ""


def _shard(array: Any) -> Array:
    return _at_address(array, array.device.platform)


def _at_address(array: Any, platform: str) -> Array:
    if platform != "cpu" or array.nbytes == 0:
        return np.array(array)
    memory = (ctypes.c_char * array.nbytes).from_address(array.unsafe_buffer_pointer())
    found: Array = np.frombuffer(memory, array.dtype).reshape(array.shape)
    return found


def memory_of(array: Array | str, *, stays: bool = True) -> Memory:
    """Where a value lies. `stays`: as in `host_tensor`."""
    if isinstance(array, str):
        return array
    element = _element_of(array.dtype)
    return array if element is not None and element.bits < 8 else host_tensor(array, stays=stays)


def row_of(memory: Memory, row: int) -> Memory:
    """A row of a value with an axis in front."""
    if isinstance(memory, str):
        return memory
    if not isinstance(memory, HostTensor):
        return memory[row, ...]
    element, shape = memory.element, memory.shape[1:]
    place = memory.pointer + row * element.size(math.prod(shape))
    return HostTensor(element, shape, place, memory.owner, stays=memory.stays)


class Facts(NamedTuple):
    """What is the same of a value in every run. Without an element its memory is looked at each time."""

    element: ElementType | None
    shape: tuple[int, ...]


def facts_of(array: Any) -> Facts:
    """Of an array of JAX; of what is none, nothing is known."""
    if not isinstance(array, jax.Array):
        return Facts(None, ())
    if not isinstance(array.dtype, np.dtype):
        return Facts(None, array.shape)
    element = _element_of(array.dtype)
    devices = array.sharding.device_set
    is_read_in_place = (
        element is not None
        and (element.code is not None or element.known_to_numpy)  # others are widened first
        and array.nbytes > 0
        and len(devices) == 1
        and next(iter(devices)).platform == "cpu"
    )
    return Facts(element if is_read_in_place else None, array.shape)


def pointers_of(arrays: Sequence[Any], facts: Sequence[Facts]) -> npt.NDArray[np.int64]:
    """The addresses of the elements of arrays that are there; 0 of those without an element."""
    if all(each.element is not None for each in facts):
        return np.array([array.unsafe_buffer_pointer() for array in arrays], np.int64)
    found = [
        0 if each.element is None else array.unsafe_buffer_pointer() for array, each in zip(arrays, facts, strict=True)
    ]
    return np.array(found, np.int64)


def host_tensor(array: Array | str, *, stays: bool = True) -> HostTensor | str:
    """For a reader. An array that does not stay as it is, since its memory is the program's, is copied where that is needed later."""
    if isinstance(array, str):
        return array
    element = _element_of(array.dtype)
    if element is None:
        return str(array.dtype.name)
    if element.bits >= 8:
        return HostTensor.of_array(array, element, stays=stays)
    packed = _packed(array, element.bits)
    return HostTensor(element, array.shape, packed.ctypes.data, packed, stays=True)


def _packed(array: Array, bits: int) -> Array:
    """Elements below 8 bits, of which numpy keeps one in each byte: the first one in the lowest bits."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    per_byte = 8 // bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % per_byte, np.uint8)]).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: Array = np.bitwise_or.reduce(codes << shifts, axis=1)
    return packed
