"""JAX arrays as tensors in the memory of this process.

The memory of an array is read at its address. `numpy.asarray` would leave a reference in the array, and JAX could then no longer donate
its memory to a function.
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

from opdump.adapters.host import BY_DTYPE, ElementType, HostTensor

Array = npt.NDArray[Any]
Memory: TypeAlias = HostTensor | Array | str
"""A value in memory. It is a numpy array if its elements have less than 8 bits, and a text (its type) if it is not an array."""


@functools.cache
def _element_of(dtype: np.dtype[Any]) -> ElementType | None:
    """The element type; None if it is unknown. Cached, because numpy takes long to form the name of a type."""
    return BY_DTYPE.get(dtype.name)


def copied(array: Any, dtype: Any = None) -> Array | str:
    """A copy of the elements of an array of the program, from all of its devices.

    If the value is not an array, or other processes have some of its elements, its type as text.
    """
    found = borrowed(array, dtype)
    return np.array(found) if isinstance(found, np.ndarray) else found


def given_again(copy: Array | str, given: Any) -> Any:
    """An array like a donated one, made from a copy of its elements. Raises ValueError if there is no copy."""
    if isinstance(copy, str):
        raise ValueError(f"no copy of a donated argument: {copy}")
    if not isinstance(given, jax.Array):
        return copy
    if not isinstance(given.dtype, np.dtype):
        return jax.random.wrap_key_data(copy, impl=jax.random.key_impl(given))
    return jax.device_put(copy, given.sharding)


def borrowed(array: Any, dtype: Any = None) -> Array | str:
    """Like `copied`, but without a copy if the memory can be read in place; use it before the program continues.

    Python numbers and numpy arrays are converted to `dtype`, the type in which the function takes them.
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
    """The platform of the only device; empty if there are several."""
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
    """The array as `Memory`. `stays`: as in `host_tensor`."""
    if isinstance(array, str):
        return array
    element = _element_of(array.dtype)
    return array if element is not None and element.bits < 8 else host_tensor(array, stays=stays)


def row_of(memory: Memory, row: int) -> Memory:
    """A row of a value, along its first axis."""
    if isinstance(memory, str):
        return memory
    if not isinstance(memory, HostTensor):
        return memory[row, ...]
    element, shape = memory.element, memory.shape[1:]
    place = memory.pointer + row * element.size(math.prod(shape))
    return HostTensor(element, shape, place, memory.owner, stays=memory.stays)


class Facts(NamedTuple):
    """The properties of a value that are the same in every run. `element` is None if the value cannot be read in place."""

    element: ElementType | None
    shape: tuple[int, ...]


def facts_of(array: Any) -> Facts:
    """The facts of a value. If it is not a JAX array, both are empty."""
    if not isinstance(array, jax.Array):
        return Facts(None, ())
    if not isinstance(array.dtype, np.dtype):
        return Facts(None, array.shape)
    element = _element_of(array.dtype)
    devices = array.sharding.device_set
    is_read_in_place = (
        element is not None
        and (element.code is not None or element.known_to_numpy)  # other types are widened first
        and array.nbytes > 0
        and len(devices) == 1
        and next(iter(devices)).platform == "cpu"
    )
    return Facts(element if is_read_in_place else None, array.shape)


def pointers_of(arrays: Sequence[Any], facts: Sequence[Facts]) -> npt.NDArray[np.int64]:
    """The addresses of arrays whose results are ready; 0 for those without an element."""
    if all(each.element is not None for each in facts):
        return np.array([array.unsafe_buffer_pointer() for array in arrays], np.int64)
    found = [
        0 if each.element is None else array.unsafe_buffer_pointer() for array, each in zip(arrays, facts, strict=True)
    ]
    return np.array(found, np.int64)


def host_tensor(array: Array | str, *, stays: bool = True) -> HostTensor | str:
    """The array for a reader. `stays`: its elements will not change. Otherwise a reader copies what it keeps."""
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
    """Packs elements below 8 bits, the first in the lowest bits. numpy uses one byte per element."""
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    per_byte = 8 // bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % per_byte, np.uint8)]).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed: Array = np.bitwise_or.reduce(codes << shifts, axis=1)
    return packed
