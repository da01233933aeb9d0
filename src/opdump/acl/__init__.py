"""The calls of inference programs for Ascend devices (pyACL), over ONNX Runtime, with their dumps.

    from opdump import acl

    acl.init()
    acl.mdl.init_dump()
    acl.mdl.set_dump()                        # applies to models loaded from here on
    model_id, ret = acl.mdl.load_from_file("resnet.onnx")
    ...
    ret = acl.mdl.execute(model_id, inputs, outputs)
    acl.mdl.finalize_dump()
    acl.mdl.unload(model_id)
    acl.finalize()

A model file is ONNX, memory is the host's, and work is executed synchronously. Calls return like those of pyACL: only the code (0
for success), or a value and the code. `acl.get_recent_err_msg()` returns the message of the last failure.

docs/acl.md lists every call: same, different, missing.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from opdump.acl import dump as dump
from opdump.acl import mdl as mdl
from opdump.acl import op as op
from opdump.acl import rt as rt
from opdump.acl import util as util
from opdump.acl.handles import (
    DTYPES,
    FORMATS,
    LOG,
    MESSAGES,
    CallError,
    DataBuffer,
    TensorDesc,
    refuse,
    returns_code,
    returns_plain,
    returns_value,
    size_of,
    storage,
)
from opdump.acl.handles import Code as Code
from opdump.acl.process import process

_LEVELS: Final = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


@returns_code
def init(config_path: str | os.PathLike[str] | None = None) -> None:
    """Initialise. `config_path` is an acl.json whose dump applies to all models loaded afterwards; None or "" for no dump. A
    relative path is looked up beside the program first, then in the current directory.

    A repeated call is counted and returns 100002; an equal number of `finalize` calls is needed. Codes for the file: 100003 if it
    cannot be read, 100006 for brackets nested too deeply, 100009 for invalid content; 100000 if an earlier configuration of this
    process had other content.
    """
    process().init(config_path)


@returns_code
def finalize() -> None:
    """Undo `init`: everything is on disk, models are unloaded. One call too many returns 100037."""
    process().finalize()


def finalize_reference() -> tuple[int, int]:
    """The same; returns the number of `finalize` calls that are still needed, and the code."""
    code = finalize()
    return process().references, code


def get_recent_err_msg() -> str:
    """The message of this thread's last failed call; empty if none has failed since it was last requested."""
    return MESSAGES.take()


def get_soc_name() -> str:
    """The processor in use, which is not an Ascend device."""
    return "CPU"


def get_version() -> tuple[int, int, int, int]:
    """Major, minor and patch number of the interface, and the code: 1.0.0. Use `hasattr` to test for newer calls."""
    return 1, 0, 0, Code.SUCCESS.value


def app_log(level: int, message: str) -> None:
    """Log a message to the logger `opdump.acl`: 0 debug, 1 info, 2 warning, 3 error."""
    LOG.log(_LEVELS[level] if level in range(len(_LEVELS)) else logging.ERROR, "%s", message)


def float16_to_float(value: int) -> float:
    """The number whose 16 bits are those of `value`."""
    return float(np.uint16(value).view(np.float16))


def float_to_float16(value: float) -> int:
    """The bits of a number as float16, rounded to the nearest."""
    with np.errstate(over="ignore"):
        return int(np.float16(value).view(np.uint16))


# --------------------------------------------------------------------------------------------------------- data buffers


@returns_plain(0)
def create_data_buffer(address: int, size: int) -> int:
    """A buffer of `size` bytes from an address on; 0 for invalid memory. Address 0 and size 0: a run allocates it."""
    if address or size:
        process().memory.at(address, size)
    return process().handles.add(DataBuffer(address, size))


@returns_code
def destroy_data_buffer(buffer: int) -> None:
    """Forget a buffer; its memory stays."""
    process().handles.remove(buffer, DataBuffer)


@returns_code
def update_data_buffer(buffer: int, address: int, size: int) -> None:
    """Replace the memory of a buffer."""
    found = process().handles.get(buffer, DataBuffer)
    process().memory.at(address, size)
    found.address, found.size = address, size


@returns_plain(0)
def get_data_buffer_addr(buffer: int) -> int:
    """The address of a buffer's memory; 0 for an invalid buffer."""
    return process().handles.get(buffer, DataBuffer).address


@returns_plain(0)
def get_data_buffer_size(buffer: int) -> int:
    """The bytes of a buffer; 0 for an invalid buffer."""
    return process().handles.get(buffer, DataBuffer).size


get_data_buffer_size_v2 = get_data_buffer_size

# --------------------------------------------------------------------------------------------------------- descriptions


@returns_plain(0)
def create_tensor_desc(data_type: int, dims: Sequence[Any], tensor_format: int = 2) -> int:
    """A description of a tensor; 0 for an unknown type or format. A dimension of -1 is unknown."""
    if data_type not in DTYPES or tensor_format not in FORMATS:
        raise CallError(
            Code.INVALID_PARAM,
            f"found type {data_type!r} and format {tensor_format!r}, expected numbers of aclDataType "
            "(0 float, 1 float16, 3 int32, 9 int64) and aclFormat (2 ND)",
        )
    return process().handles.add(TensorDesc(data_type, _checked(dims), tensor_format))


@returns_plain(None)
def destroy_tensor_desc(desc: int) -> None:
    """Returns nothing, like pyACL: `acl.get_recent_err_msg()` has the message for an invalid description."""
    process().handles.remove(desc, TensorDesc)


@returns_plain(None)
def set_tensor_desc_name(desc: int, name: str) -> None:
    """Returns nothing, like pyACL."""
    process().handles.get(desc, TensorDesc).name = str(name)


@returns_plain("")
def get_tensor_desc_name(desc: int) -> str:
    """The name that was set; empty if none was."""
    return process().handles.get(desc, TensorDesc).name


@returns_plain(-1)
def get_tensor_desc_type(desc: int) -> int:
    """Number of aclDataType; -1 for an invalid description."""
    return process().handles.get(desc, TensorDesc).data_type


@returns_plain(-1)
def get_tensor_desc_format(desc: int) -> int:
    """Number of aclFormat; -1 for an invalid description."""
    return process().handles.get(desc, TensorDesc).format


@returns_plain(0)
def get_tensor_desc_num_dims(desc: int) -> int:
    return len(process().handles.get(desc, TensorDesc).dims)


@returns_value(0)
def get_tensor_desc_dim_v2(desc: int, index: int) -> int:
    """One dimension, and the code."""
    return _dim(desc, index)


@returns_plain(-1)
def get_tensor_desc_dim(desc: int, index: int) -> int:
    """One dimension; -1 if it does not exist."""
    return _dim(desc, index)


@returns_plain(0)
def get_tensor_desc_element_count(desc: int) -> int:
    """Number of elements, where every unknown dimension counts as 0."""
    return math.prod(max(dim, 0) for dim in process().handles.get(desc, TensorDesc).dims)


@returns_plain(0)
def get_tensor_desc_size(desc: int) -> int:
    """Bytes of the tensor."""
    found = process().handles.get(desc, TensorDesc)
    return size_of(DTYPES[found.data_type], [max(dim, 0) for dim in found.dims])


@returns_code
def set_tensor_shape(desc: int, dims: Sequence[Any]) -> None:
    """Change the shape of the tensor."""
    process().handles.get(desc, TensorDesc).dims = _checked(dims)


@returns_code
def set_tensor_format(desc: int, tensor_format: int) -> None:
    """Change the format of the tensor, which has no effect on a run."""
    process().handles.get(desc, TensorDesc).format = _known_format(tensor_format)


@returns_code
def set_tensor_origin_shape(desc: int, dims: Sequence[Any]) -> None:
    """Checked, without an effect: tensors of the host have one shape."""
    process().handles.get(desc, TensorDesc)
    _checked(dims)


@returns_code
def set_tensor_storage_shape(desc: int, dims: Sequence[Any]) -> None:
    """Checked, without an effect: tensors of the host have one shape."""
    process().handles.get(desc, TensorDesc)
    _checked(dims)


@returns_code
def set_tensor_origin_format(desc: int, tensor_format: int) -> None:
    """Checked, without an effect: tensors of the host have one format."""
    process().handles.get(desc, TensorDesc)
    _known_format(tensor_format)


@returns_code
def set_tensor_storage_format(desc: int, tensor_format: int) -> None:
    """Checked, without an effect: tensors of the host have one format."""
    process().handles.get(desc, TensorDesc)
    _known_format(tensor_format)


def data_type_size(data_type: int) -> int:
    """Bytes of an element; 0 for text, for packed types, and for an unknown number."""
    kind = storage(DTYPES.get(data_type, "string"))
    return 0 if kind is None else kind.itemsize


def _dim(desc: int, index: Any) -> int:
    dims = process().handles.get(desc, TensorDesc).dims
    if not isinstance(index, int) or not 0 <= index < len(dims):
        raise CallError(Code.INVALID_PARAM, f"there is no dimension {index!r} in {dims}")
    return dims[index]


def _checked(dims: Sequence[Any]) -> list[int]:
    if not all(isinstance(dim, int) and dim >= -1 for dim in dims):
        raise CallError(Code.INVALID_PARAM, f"the shape is {dims!r}, expected numbers from -1 on")
    return list(dims)


def _known_format(tensor_format: Any) -> int:
    if tensor_format not in FORMATS:
        raise CallError(Code.INVALID_PARAM, f"found format {tensor_format!r}, expected a number of aclFormat (2 ND)")
    return int(tensor_format)


__getattr__ = refuse(__name__)
