"""The calls of inference programs for Ascend devices (pyACL), over ONNX Runtime, with their dumps.

    from opdump import acl

    acl.init()
    acl.mdl.init_dump()
    acl.mdl.set_dump("acl.json")                        # applies to models loaded from here on
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
import os
from typing import Final

import numpy as np

from opdump.acl import dump, mdl, op, rt, util
from opdump.acl.handles import LOG, MESSAGES, Code, refuse, returns_code
from opdump.acl.process import process
from opdump.acl.tensor_descs import (
    create_data_buffer,
    create_tensor_desc,
    data_type_size,
    destroy_data_buffer,
    destroy_tensor_desc,
    get_data_buffer_addr,
    get_data_buffer_size,
    get_data_buffer_size_v2,
    get_tensor_desc_dim,
    get_tensor_desc_dim_v2,
    get_tensor_desc_element_count,
    get_tensor_desc_format,
    get_tensor_desc_name,
    get_tensor_desc_num_dims,
    get_tensor_desc_size,
    get_tensor_desc_type,
    set_tensor_desc_name,
    set_tensor_format,
    set_tensor_origin_format,
    set_tensor_origin_shape,
    set_tensor_shape,
    set_tensor_storage_format,
    set_tensor_storage_shape,
    update_data_buffer,
)

__all__ = [
    "Code",
    "app_log",
    "create_data_buffer",
    "create_tensor_desc",
    "data_type_size",
    "destroy_data_buffer",
    "destroy_tensor_desc",
    "dump",
    "finalize",
    "finalize_reference",
    "float16_to_float",
    "float_to_float16",
    "get_data_buffer_addr",
    "get_data_buffer_size",
    "get_data_buffer_size_v2",
    "get_recent_err_msg",
    "get_soc_name",
    "get_tensor_desc_dim",
    "get_tensor_desc_dim_v2",
    "get_tensor_desc_element_count",
    "get_tensor_desc_format",
    "get_tensor_desc_name",
    "get_tensor_desc_num_dims",
    "get_tensor_desc_size",
    "get_tensor_desc_type",
    "get_version",
    "init",
    "mdl",
    "op",
    "rt",
    "set_tensor_desc_name",
    "set_tensor_format",
    "set_tensor_origin_format",
    "set_tensor_origin_shape",
    "set_tensor_shape",
    "set_tensor_storage_format",
    "set_tensor_storage_shape",
    "update_data_buffer",
    "util",
]

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


__getattr__ = refuse(__name__, __all__)
