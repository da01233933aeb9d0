"""Makes arrays over memory at addresses, for the inputs and outputs of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.acl.codes import Code
from opdump.acl.data_types import TensorInfo, size_of, storage
from opdump.acl.failures import CallError
from opdump.acl.handles import DataBuffer
from opdump.acl.memory import Memory

Array = npt.NDArray[Any]


def array_over(memory: Memory, buffer: DataBuffer, info: TensorInfo, dims: Sequence[int], where: str) -> Array:
    """The elements in a buffer, without a copy, in the type of their bits."""
    kind = storage(info.dtype)
    if kind is None:
        raise CallError(
            Code.UNSUPPORTED_DATA_TYPE, f"{where}: elements of type {info.dtype} cannot be handed over here"
        )
    size = math.prod(dims) * kind.itemsize
    if buffer.size < size:
        raise CallError(
            Code.MODEL_INPUT_NOT_MATCH,
            f"{where}: {info.name!r} is {info.dtype} {tuple(dims)}, {size} bytes, and its buffer has {buffer.size}",
        )
    if size == 0:
        return np.empty(dims, kind)
    elements: Array = memory.at(buffer.address, size, where=where).view(kind).reshape(tuple(dims))
    return elements


def dims_of(info: TensorInfo, size: int, where: str) -> tuple[int, ...]:
    """The shape of a tensor of `size` bytes: one unknown dimension follows from the size."""
    unknown = [place for place, dim in enumerate(info.dims) if dim < 0]
    if not unknown:
        return info.dims
    dims = [1 if dim < 0 else dim for dim in info.dims]
    known = size_of(info.dtype, dims)
    if len(unknown) == 1 and known and size % known == 0:
        dims[unknown[0]] = size // known
        return tuple(dims)
    if size == known:
        return tuple(dims)
    raise CallError(
        Code.MODEL_INPUT_NOT_MATCH,
        f"{where}: {info.name!r} has the shape {info.dims}, and {size} bytes do not determine -1; "
        "set it with acl.mdl.set_dataset_tensor_desc(dataset, acl.create_tensor_desc(...), index)",
    )


def check_outputs(buffers: Sequence[DataBuffer], arrays: Sequence[Array], where: str, code: Code) -> None:
    """Raises CallError if a result does not fit into its buffer; nothing was written then."""
    for number, (buffer, array) in enumerate(zip(buffers, arrays, strict=True)):
        if buffer.address and buffer.size < array.nbytes:
            raise CallError(
                code,
                f"{where}: output {number} is {array.dtype} {array.shape}, {array.nbytes} bytes, and its buffer has {buffer.size}",
            )


def write_outputs(memory: Memory, buffers: Sequence[DataBuffer], arrays: Sequence[Array], where: str) -> None:
    """Copy results into their buffers. A buffer without memory gets some, which the program frees."""
    for buffer, array in zip(buffers, arrays, strict=True):
        if not buffer.address:
            buffer.size = max(array.nbytes, 1)
            buffer.address = memory.allocate(buffer.size)
        if array.nbytes:
            target = memory.at(buffer.address, array.nbytes, where=where, write=True)
            target[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
