"""Calls around the dump (`acl.dump`): its directories, and its delivery to a callback.

pyACL has no such calls; these are acldumpGetPath, acldumpRegCallback, acldumpUnregCallback, acldumpGetExceptionInfoPath and
acldumpSaveExceptionInfo of the C interface.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opdump.acl.codes import Code
from opdump.acl.delivery import APPEND, Callback, DumpChunk
from opdump.acl.failures import CallError, returns_code
from opdump.acl.own_dumps import exception_root, save_tensors
from opdump.acl.process import process
from opdump.acl.unknown_names import refuse
from opdump.onnx.recording import ModelRecording
from opdump.plan import DATA, OVERFLOW, WATCH
from opdump.sink import make_directory

__all__ = [
    "APPEND",
    "DumpChunk",
    "get_exception_info_path",
    "get_path",
    "reg_callback",
    "save_exception_info",
    "unreg_callback",
]

_DETAILS = {1: "brief", 2: "norm", 3: "detail"}
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
        return f"{plan.path}/{_time(recording)}"
    return None


@returns_code
def get_exception_info_path(address: int, size: int) -> None:
    """Write the directory of failing operators, and a zero byte, into memory.

    Returns 100000 for missing or insufficient memory, 500001 if failing operators are not dumped.
    """
    where = "acl.dump.get_exception_info_path"
    if not address or size <= 1:
        raise CallError(Code.INVALID_PARAM, f"{where}: found address {address!r} and size {size!r}, expected memory")
    text = f"{exception_root(process(), where)}/".encode("utf-8", "surrogateescape") + b"\0"
    if len(text) > size:
        raise CallError(Code.INVALID_PARAM, f"{where}: the path takes {len(text)} bytes, and {size} are there")
    process().memory.at(address, len(text), where=where, write=True)[:] = np.frombuffer(text, np.uint8)


@returns_code
def save_exception_info(file: str | None, tag: str, tensors: Sequence[tuple[int, int]]) -> None:
    """Write tensors, pairs of a description and a buffer, to `{directory of failing operators}/{file}.custom.{time}`.

    The file has `tag` as the attribute `user_tag`. Returns 100000 for an invalid name or one with "..", for no tensors, more than
    25 dimensions and missing memory; 500001 if failing operators are not dumped.
    """
    save_tensors(process(), file, tag, tensors, "acl.dump.save_exception_info")


def _time(recording: ModelRecording) -> str:
    return str(getattr(recording.writer, "time", ""))


__getattr__ = refuse(__name__, __all__)
