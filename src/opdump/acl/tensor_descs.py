"""Data buffers and descriptions of tensors of `acl`, and the arrays over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.acl.handles import (
    DTYPES,
    FORMATS,
    CallError,
    Code,
    DataBuffer,
    TensorDesc,
    TensorInfo,
    returns_code,
    returns_plain,
    returns_value,
    size_of,
    storage,
)
from opdump.acl.memory import Memory
from opdump.acl.process import process

# Descriptions.

# --------------------------------------------------------------------------------------------------------- data buffers


@returns_plain(0)
def create_data_buffer(address: int, size: int) -> int:
    """A buffer of `size` bytes from an address on; 0 for invalid memory. Address 0 and size 0: a run allocates it."""
    if address or size:
        process().memory.at(address, size, where="acl.create_data_buffer")
    return process().handles.add(DataBuffer(address, size))


@returns_code
def destroy_data_buffer(buffer: int) -> None:
    """Forget a buffer; its memory stays."""
    process().handles.remove(buffer, DataBuffer, "acl.destroy_data_buffer")


@returns_code
def update_data_buffer(buffer: int, address: int, size: int) -> None:
    """Replace the memory of a buffer."""
    found = process().handles.get(buffer, DataBuffer, "acl.update_data_buffer")
    process().memory.at(address, size, where="acl.update_data_buffer")
    found.address, found.size = address, size


@returns_plain(0)
def get_data_buffer_addr(buffer: int) -> int:
    """The address of a buffer's memory; 0 for an invalid buffer."""
    return process().handles.get(buffer, DataBuffer, "acl.get_data_buffer_addr").address


@returns_plain(0)
def get_data_buffer_size(buffer: int) -> int:
    """The bytes of a buffer; 0 for an invalid buffer."""
    return process().handles.get(buffer, DataBuffer, "acl.get_data_buffer_size").size


get_data_buffer_size_v2 = get_data_buffer_size

# --------------------------------------------------------------------------------------------------------- descriptions


@returns_plain(0)
def create_tensor_desc(data_type: int, dims: Sequence[Any], tensor_format: int = 2) -> int:
    """A description of a tensor; 0 for an unknown type or format. A dimension of -1 is unknown."""
    if data_type not in DTYPES or tensor_format not in FORMATS:
        raise CallError(
            Code.INVALID_PARAM,
            f"acl.create_tensor_desc: found type {data_type!r} and format {tensor_format!r}, expected numbers of aclDataType "
            "(0 float, 1 float16, 3 int32, 9 int64) and aclFormat (2 ND)",
        )
    return process().handles.add(TensorDesc(data_type, _checked(dims, "acl.create_tensor_desc"), tensor_format))


@returns_plain(None)
def destroy_tensor_desc(desc: int) -> None:
    """Returns nothing, like pyACL: `acl.get_recent_err_msg()` has the message for an invalid description."""
    process().handles.remove(desc, TensorDesc, "acl.destroy_tensor_desc")


@returns_plain(None)
def set_tensor_desc_name(desc: int, name: str) -> None:
    """Returns nothing, like pyACL."""
    process().handles.get(desc, TensorDesc, "acl.set_tensor_desc_name").name = str(name)


@returns_plain("")
def get_tensor_desc_name(desc: int) -> str:
    """The name that was set; empty if none was."""
    return process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_name").name


@returns_plain(-1)
def get_tensor_desc_type(desc: int) -> int:
    """Number of aclDataType; -1 for an invalid description."""
    return process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_type").data_type


@returns_plain(-1)
def get_tensor_desc_format(desc: int) -> int:
    """Number of aclFormat; -1 for an invalid description."""
    return process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_format").format


@returns_plain(0)
def get_tensor_desc_num_dims(desc: int) -> int:
    return len(process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_num_dims").dims)


@returns_value(0)
def get_tensor_desc_dim_v2(desc: int, index: int) -> int:
    """One dimension, and the code."""
    return _dim(desc, index, "acl.get_tensor_desc_dim_v2")


@returns_plain(-1)
def get_tensor_desc_dim(desc: int, index: int) -> int:
    """One dimension; -1 if it does not exist."""
    return _dim(desc, index, "acl.get_tensor_desc_dim")


@returns_plain(0)
def get_tensor_desc_element_count(desc: int) -> int:
    """Number of elements, where every unknown dimension counts as 0."""
    count = 1
    for dim in process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_element_count").dims:
        count *= max(dim, 0)
    return count


@returns_plain(0)
def get_tensor_desc_size(desc: int) -> int:
    """Bytes of the tensor."""
    found = process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_size")
    return size_of(DTYPES[found.data_type], [max(dim, 0) for dim in found.dims])


@returns_code
def set_tensor_shape(desc: int, dims: Sequence[Any]) -> None:
    """Change the shape of the tensor."""
    where = "acl.set_tensor_shape"
    process().handles.get(desc, TensorDesc, where).dims = _checked(dims, where)


@returns_code
def set_tensor_format(desc: int, tensor_format: int) -> None:
    """Change the format of the tensor, which has no effect on a run."""
    where = "acl.set_tensor_format"
    process().handles.get(desc, TensorDesc, where).format = _known_format(tensor_format, where)


@returns_code
def set_tensor_origin_shape(desc: int, dims: Sequence[Any]) -> None:
    """Checked, without an effect: tensors of the host have one shape."""
    process().handles.get(desc, TensorDesc, "acl.set_tensor_origin_shape")
    _checked(dims, "acl.set_tensor_origin_shape")


@returns_code
def set_tensor_storage_shape(desc: int, dims: Sequence[Any]) -> None:
    """Checked, without an effect: tensors of the host have one shape."""
    process().handles.get(desc, TensorDesc, "acl.set_tensor_storage_shape")
    _checked(dims, "acl.set_tensor_storage_shape")


@returns_code
def set_tensor_origin_format(desc: int, tensor_format: int) -> None:
    """Checked, without an effect: tensors of the host have one format."""
    process().handles.get(desc, TensorDesc, "acl.set_tensor_origin_format")
    _known_format(tensor_format, "acl.set_tensor_origin_format")


@returns_code
def set_tensor_storage_format(desc: int, tensor_format: int) -> None:
    """Checked, without an effect: tensors of the host have one format."""
    process().handles.get(desc, TensorDesc, "acl.set_tensor_storage_format")
    _known_format(tensor_format, "acl.set_tensor_storage_format")


def data_type_size(data_type: int) -> int:
    """Bytes of an element; 0 for text, for packed types, and for an unknown number."""
    kind = storage(DTYPES.get(data_type, "string"))
    return 0 if kind is None else kind.itemsize


def _dim(desc: int, index: Any, where: str) -> int:
    dims = process().handles.get(desc, TensorDesc, where).dims
    if not isinstance(index, int) or not 0 <= index < len(dims):
        raise CallError(Code.INVALID_PARAM, f"{where}: there is no dimension {index!r} in {dims}")
    return dims[index]


def _checked(dims: Sequence[Any], where: str) -> list[int]:
    if not all(isinstance(dim, int) and dim >= -1 for dim in dims):
        raise CallError(Code.INVALID_PARAM, f"{where}: the shape is {dims!r}, expected numbers from -1 on")
    return list(dims)


def _known_format(tensor_format: Any, where: str) -> int:
    if tensor_format not in FORMATS:
        raise CallError(
            Code.INVALID_PARAM, f"{where}: found format {tensor_format!r}, expected a number of aclFormat (2 ND)"
        )
    return int(tensor_format)


# Makes arrays over memory at addresses, for the inputs and outputs of a run.

Array = npt.NDArray[Any]


def array_over(memory: Memory, buffer: DataBuffer, info: TensorInfo, dims: Sequence[int], where: str) -> Array:
    """The elements in a buffer, without a copy, in the type of their bits."""
    kind = storage(info.dtype)
    if kind is None:
        raise CallError(Code.UNSUPPORTED_DATA_TYPE, f"{where}: elements of type {info.dtype} cannot be passed here")
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
