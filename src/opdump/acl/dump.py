"""Calls around the dump (`acl.dump`): its directories, and its delivery to a callback.

pyACL has no such calls; these are acldumpGetPath, acldumpRegCallback, acldumpUnregCallback, acldumpGetExceptionInfoPath and
acldumpSaveExceptionInfo of the C interface.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np

from opdump.acl.handles import DTYPES, CallError, Code, DataBuffer, TensorDesc, refuse, returns_code
from opdump.acl.process import APPEND as APPEND  # noqa: PLC0414  # callbacks import it from here
from opdump.acl.process import Callback, process
from opdump.acl.process import DumpChunk as DumpChunk  # noqa: PLC0414  # callbacks import it from here
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, data_type_number
from opdump.dump_file.dump_file import FORMAT_NUMBERS, encode_dump_file
from opdump.errors import DumpPathError
from opdump.plan import DATA, OVERFLOW, WATCH
from opdump.sink import make_directory

_DETAILS = {1: "brief", 2: "norm", 3: "detail"}
_MOST_DIMS: Final = 25
_MODE: Final = 0o400
_MODES = {4: (DATA, WATCH), 5: (OVERFLOW,)}


@returns_code
def reg_callback(callback: Callback | None, flag: int = 0) -> None:
    """From now on nothing is written to disk: `callback(chunk, length)` receives each piece of a file, and returns 0 or None.

    Returns 500001 if it is not a function, or for another flag than 0. A second registration is ignored, and returns 0.
    """
    process().delivery.register(callback, flag)


def unreg_callback() -> None:
    """Write files to disk again."""
    process().delivery.unregister()


def get_path(dump_type: int) -> str | None:
    """The directory of a kind of dump: 1, 2, 3 failing operators (brief, norm, detail), 4 data, 5 overflow; None if it is off.

    The directory of failing operators is created.
    """
    recording = process().recording
    if recording is None:
        return None
    plan = recording.plan
    if plan.mode.failures_only and plan.exception_detail == _DETAILS.get(dump_type):
        path = plan.path / "extra-info" / "data-dump"
        make_directory(path)
        return f"{path}/"
    if plan.mode in _MODES.get(dump_type, ()) and not plan.enables_nothing:
        return f"{plan.path}/{getattr(recording.writer, 'time', '')}"
    return None


@returns_code
def get_exception_info_path(address: int, size: int) -> None:
    """Write the directory of failing operators, and a zero byte, into memory.

    Returns 100000 for missing or insufficient memory, 500001 if failing operators are not dumped.
    """
    if not address or size <= 1:
        raise CallError(Code.INVALID_PARAM, f"found address {address!r} and size {size!r}, expected memory")
    text = f"{_exception_root()}/".encode("utf-8", "surrogateescape") + b"\0"
    if len(text) > size:
        raise CallError(Code.INVALID_PARAM, f"the path has {len(text)} bytes, but the memory only {size}")
    process().memory.at(address, len(text), write=True)[:] = np.frombuffer(text, np.uint8)


@returns_code
def save_exception_info(file: str | None, tag: str, tensors: Sequence[tuple[int, int]]) -> None:
    """Write tensors, pairs of a description and a buffer, to `{directory of failing operators}/{file}.custom.{time}`.

    The file has `tag` as the attribute `user_tag`. Returns 100000 for an invalid name or one with "..", for no tensors, more than
    25 dimensions and missing memory; 500001 if failing operators are not dumped.
    """
    if not isinstance(file, str) or not file or ".." in PurePosixPath(file).parts or file.startswith("/"):
        raise CallError(Code.INVALID_PARAM, f"the file is {file!r}, expected a path below the dump, without '..'")
    if not tensors:
        raise CallError(Code.INVALID_PARAM, "there are no tensors")
    found = tuple(_tensor(slot, *each) for slot, each in enumerate(tensors))
    root = _exception_root()
    moment = time.time_ns() // 1_000_000
    stamp = f"{time.strftime('%Y%m%d%H%M%S', time.localtime(moment / 1000))}{moment % 1000:03d}"
    path = root / f"{file}.custom.{stamp}"
    dump = DumpFile(
        inputs=found,
        op_name=PurePosixPath(file).name,
        dump_time=moment * 1000,
        attributes=(("user_tag", tag),) if tag else (),
    )
    make_directory(path.parent)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as stream:
            stream.writelines(encode_dump_file(dump))
    except OSError as error:
        raise DumpPathError(f"{path}: cannot be written ({error.strerror})") from error


def _exception_root() -> Path:
    """The directory for failing operators. Raises CallError (500001) if no configuration requests them."""
    state = process()
    recording = state.recording
    if recording is None or not recording.plan.mode.failures_only:
        raise CallError(Code.FAILURE, 'failing operators are not dumped; set "dump_scene": "aic_err_norm_dump"')
    return recording.plan.path / "extra-info" / "data-dump" / str(state.device_id)


def _tensor(slot: int, desc: int, buffer: int) -> DumpTensor:
    state = process()
    described = state.handles.get(desc, TensorDesc)
    data = state.handles.get(buffer, DataBuffer)
    if len(described.dims) > _MOST_DIMS or any(dim < 0 for dim in described.dims):
        raise CallError(
            Code.INVALID_PARAM,
            f"tensor {slot} has the shape {described.dims}, expected {_MOST_DIMS} known dimensions at most",
        )
    if not data.address or not data.size:
        raise CallError(Code.INVALID_PARAM, f"tensor {slot} has no memory")
    return DumpTensor(
        io="input",
        slot=slot,
        data_type=data_type_number(DTYPES[described.data_type]),
        format=FORMAT_NUMBERS["ND"],
        shape=tuple(described.dims),
        data=HeldBytes(state.memory.at(data.address, data.size).tobytes()),
        original_shape=tuple(described.dims),
    )


__getattr__ = refuse(__name__)
