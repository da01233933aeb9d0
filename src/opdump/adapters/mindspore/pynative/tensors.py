"""MindSpore tensors as tensors in the memory of this process."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from mindspore import Tensor

from opdump.adapters.host import BY_DTYPE, ElementType, HostTensor

_NAMES: Final = {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}
"""MindSpore's names of types, if opdump has different ones."""


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, in order."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)


def host_tensor(tensor: Tensor) -> HostTensor | str:
    """The current elements of a tensor; its type as text if they cannot be read.

    Reading the address waits for the operator that writes the tensor, and raises its error.
    """
    element = _element_of(str(tensor.dtype))
    if element is None:
        return str(tensor.dtype).lower()
    shape = tuple(tensor.shape)
    if 0 in shape:
        return HostTensor(element, shape, 0, None, stays=True)
    if not is_on_host(tensor):
        return (
            str(tensor.dtype).lower() if not element.known_to_numpy else HostTensor.of_array(tensor.asnumpy(), element)
        )
    pointer = tensor.data_ptr()
    if tensor.is_contiguous():
        return HostTensor(element, shape, pointer, tensor, stays=False)
    return _gathered(tensor, element, shape, pointer)


def is_on_host(tensor: Tensor) -> bool:
    """Whether the tensor can be read at its address."""
    return str(tensor.device).startswith("CPU")


@functools.cache
def _element_of(name: str) -> ElementType | None:
    name = name.lower()
    return BY_DTYPE.get(_NAMES.get(name, name))


def storage_of(tensor: Tensor) -> int:
    """The address of the storage of a tensor."""
    return int(tensor.untyped_storage().data_ptr())


def _gathered(tensor: Tensor, element: ElementType, shape: tuple[int, ...], pointer: int) -> HostTensor:
    """A copy of the elements of a view."""
    strides = tuple(step * element.storage.itemsize for step in tensor.stride())
    size = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + element.storage.itemsize
    memory = (ctypes.c_char * size).from_address(pointer)
    flat = np.frombuffer(memory, element.storage, 1)
    array = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False).copy()
    return HostTensor(element, shape, array.ctypes.data, array, stays=True)
