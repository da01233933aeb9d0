"""The calls of an inference program for Ascend devices, over ONNX Runtime: such a program dumps here as it does there.

    from opdump import acl

    acl.init()
    acl.mdl.init_dump()
    acl.mdl.set_dump("acl.json")                        # counts for models that are loaded from here on
    model_id, ret = acl.mdl.load_from_file("resnet.onnx")
    ...
    ret = acl.mdl.execute(model_id, inputs, outputs)
    acl.mdl.finalize_dump()
    acl.mdl.unload(model_id)
    acl.finalize()

A model file is ONNX, memory is that of the host, work is done when it is asked for. Calls return as those of pyACL do: the code
alone (0 where all went well), or a value and the code. `acl.get_recent_err_msg()` says what was wrong.

Source: section 1 of the dump specification; names, arguments and results of the other calls are facts of pyACL's reference.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from opdump.acl import dump, mdl, op, rt, util
from opdump.acl.codes import Code
from opdump.acl.data_types import DTYPES, FORMATS, storage
from opdump.acl.failures import MESSAGES, CallError, returns_code, returns_plain
from opdump.acl.handles import DataBuffer, TensorDesc
from opdump.acl.process import process
from opdump.acl.tensors import size_of

__all__ = [
    "Code",
    "create_data_buffer",
    "create_tensor_desc",
    "data_type_size",
    "destroy_data_buffer",
    "destroy_tensor_desc",
    "dump",
    "finalize",
    "get_data_buffer_addr",
    "get_data_buffer_size",
    "get_data_buffer_size_v2",
    "get_recent_err_msg",
    "get_soc_name",
    "get_tensor_desc_dim_v2",
    "get_tensor_desc_element_count",
    "get_tensor_desc_format",
    "get_tensor_desc_num_dims",
    "get_tensor_desc_size",
    "get_tensor_desc_type",
    "init",
    "mdl",
    "op",
    "rt",
    "set_tensor_desc_name",
    "update_data_buffer",
    "util",
]


@returns_code
def init(config_path: str | os.PathLike[str] | None = None) -> None:
    """Begins. `config_path` is an acl.json whose dump counts for all models loaded afterwards; None or "" for no dump.

    Called again it counts, and returns 100002: as many `finalize` are needed. Codes of the file: 100003 where there is none that
    can be read, 100006 for brackets that are nested too deep, 100009 for what is wrong in it; 100000 where an earlier
    configuration of this process had another content.
    """
    process().init(config_path)


@returns_code
def finalize() -> None:
    """Ends what `init` began: everything is on disk, models are unloaded. Called once too often it returns 100037."""
    process().finalize()


def get_recent_err_msg() -> str:
    """What was wrong with the last call that failed; empty where none has since it was asked for."""
    return MESSAGES.take()


def get_soc_name() -> str:
    """What computes: no device of Ascend."""
    return "CPU"


@returns_plain(0)
def create_data_buffer(address: int, size: int) -> int:
    """A buffer of `size` bytes from an address on; 0 for what is no memory. Address 0 and size 0: a run allocates it."""
    if address or size:
        process().memory.at(address, size, where="acl.create_data_buffer")
    return process().handles.add(DataBuffer(address, size))


@returns_code
def destroy_data_buffer(buffer: int) -> None:
    """Forgets a buffer; its memory stays."""
    process().handles.remove(buffer, DataBuffer, "acl.destroy_data_buffer")


@returns_code
def update_data_buffer(buffer: int, address: int, size: int) -> None:
    """Gives a buffer other memory."""
    found = process().handles.get(buffer, DataBuffer, "acl.update_data_buffer")
    process().memory.at(address, size, where="acl.update_data_buffer")
    found.address, found.size = address, size


@returns_plain(0)
def get_data_buffer_addr(buffer: int) -> int:
    """The address of a buffer's memory; 0 for no buffer."""
    return process().handles.get(buffer, DataBuffer, "acl.get_data_buffer_addr").address


@returns_plain(0)
def get_data_buffer_size(buffer: int) -> int:
    """The bytes of a buffer; 0 for no buffer."""
    return process().handles.get(buffer, DataBuffer, "acl.get_data_buffer_size").size


get_data_buffer_size_v2 = get_data_buffer_size


@returns_plain(0)
def create_tensor_desc(data_type: int, dims: Sequence[Any], tensor_format: int = 2) -> int:
    """A description of a tensor; 0 for a type or a format that there is not. A dimension of -1 is not known."""
    if data_type not in DTYPES or tensor_format not in FORMATS:
        raise CallError(
            Code.INVALID_PARAM,
            f"acl.create_tensor_desc: found type {data_type!r} and format {tensor_format!r}, expected numbers of aclDataType "
            "(0 float, 1 float16, 3 int32, 9 int64) and aclFormat (2 ND)",
        )
    if not all(isinstance(dim, int) and dim >= -1 for dim in dims):
        raise CallError(
            Code.INVALID_PARAM, f"acl.create_tensor_desc: the shape is {dims!r}, expected numbers from -1 on"
        )
    return process().handles.add(TensorDesc(data_type, list(dims), tensor_format))


@returns_code
def destroy_tensor_desc(desc: int) -> None:
    process().handles.remove(desc, TensorDesc, "acl.destroy_tensor_desc")


@returns_code
def set_tensor_desc_name(desc: int, name: str) -> None:
    process().handles.get(desc, TensorDesc, "acl.set_tensor_desc_name").name = name


@returns_plain(-1)
def get_tensor_desc_type(desc: int) -> int:
    """Number of aclDataType; -1 for no description."""
    return process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_type").data_type


@returns_plain(-1)
def get_tensor_desc_format(desc: int) -> int:
    """Number of aclFormat; -1 for no description."""
    return process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_format").format


@returns_plain(0)
def get_tensor_desc_num_dims(desc: int) -> int:
    return len(process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_num_dims").dims)


def get_tensor_desc_dim_v2(desc: int, index: int) -> tuple[int, int]:
    """One dimension, and the code."""
    try:
        dims = process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_dim_v2").dims
    except CallError as error:
        MESSAGES.keep(str(error))
        return 0, error.code
    if not 0 <= index < len(dims):
        MESSAGES.keep(f"acl.get_tensor_desc_dim_v2: there is no dimension {index} in {dims}")
        return 0, Code.INVALID_PARAM.value
    return dims[index], Code.SUCCESS.value


@returns_plain(0)
def get_tensor_desc_element_count(desc: int) -> int:
    """Elements, where every dimension that is not known is 0."""
    count = 1
    for dim in process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_element_count").dims:
        count *= max(dim, 0)
    return count


@returns_plain(0)
def get_tensor_desc_size(desc: int) -> int:
    """Bytes of the tensor."""
    found = process().handles.get(desc, TensorDesc, "acl.get_tensor_desc_size")
    return size_of(DTYPES[found.data_type], [max(dim, 0) for dim in found.dims])


def data_type_size(data_type: int) -> int:
    """Bytes of an element; 0 for text, for what is packed, and for a number that stands for nothing."""
    kind = storage(DTYPES.get(data_type, "string"))
    return 0 if kind is None else kind.itemsize
