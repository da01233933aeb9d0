"""Writes tensors that a program selects itself, while it handles a failure.

See docs/acl.md#the-dump-in-memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from opdump.acl.codes import Code
from opdump.acl.data_types import DTYPES
from opdump.acl.failures import CallError
from opdump.acl.handles import DataBuffer, TensorDesc
from opdump.acl.process import Process
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, data_type_number
from opdump.dump_file.tensor_formats import FORMAT_NUMBERS
from opdump.dump_file.writing import encode_dump_file
from opdump.errors import DumpPathError
from opdump.sink import make_directory

MOST_DIMS: Final = 25
_MODE: Final = 0o400


def exception_root(process: Process, where: str) -> Path:
    """The directory for failing operators. Raises CallError (500001) if no configuration requests them."""
    recording = process.recording
    if recording is None or not recording.plan.mode.failures_only:
        raise CallError(
            Code.FAILURE, f'{where}: failing operators are not dumped; set "dump_scene": "aic_err_norm_dump"'
        )
    return recording.plan.path / "extra-info" / "data-dump" / str(process.device_id)


def save_tensors(process: Process, name: Any, tag: str, tensors: Sequence[tuple[int, int]], where: str) -> Path:
    """Write tensors, each a description and a buffer, as the inputs of one dump file; returns its path.

    Raises CallError (100000) for an invalid name or one that leads upwards, no tensors, more than 25 dimensions, missing memory.
    """
    if not isinstance(name, str) or not name or ".." in PurePosixPath(name).parts or name.startswith("/"):
        raise CallError(
            Code.INVALID_PARAM, f"{where}: the file is {name!r}, expected a path below the dump, without '..'"
        )
    if not tensors:
        raise CallError(Code.INVALID_PARAM, f"{where}: there are no tensors")
    found = tuple(_tensor(process, slot, *each, where) for slot, each in enumerate(tensors))
    root = exception_root(process, where)
    moment = time.time_ns() // 1_000_000
    stamp = f"{time.strftime('%Y%m%d%H%M%S', time.localtime(moment / 1000))}{moment % 1000:03d}"
    path = root / f"{name}.custom.{stamp}"
    file = DumpFile(
        inputs=found,
        op_name=PurePosixPath(name).name,
        dump_time=moment * 1000,
        attributes=(("user_tag", tag),) if tag else (),
    )
    make_directory(path.parent)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as stream:
            stream.writelines(encode_dump_file(file))
    except OSError as error:
        raise DumpPathError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def _tensor(process: Process, slot: int, desc: int, buffer: int, where: str) -> DumpTensor:
    described = process.handles.get(desc, TensorDesc, where)
    data = process.handles.get(buffer, DataBuffer, where)
    if len(described.dims) > MOST_DIMS or any(dim < 0 for dim in described.dims):
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: tensor {slot} has the shape {described.dims}, expected {MOST_DIMS} known dimensions at most",
        )
    if not data.address or not data.size:
        raise CallError(Code.INVALID_PARAM, f"{where}: tensor {slot} has no memory")
    return DumpTensor(
        io="input",
        slot=slot,
        data_type=data_type_number(DTYPES[described.data_type]),
        format=FORMAT_NUMBERS["ND"],
        shape=tuple(described.dims),
        data=HeldBytes(process.memory.at(data.address, data.size, where=where).tobytes()),
        original_shape=tuple(described.dims),
    )
