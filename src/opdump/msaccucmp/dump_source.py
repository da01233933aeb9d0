"""Reads dump files, and rejects those that the original rejects, with its exit codes.

A file of eight bytes or fewer counts as one without tensors; a file whose name ends in `.npy` counts as one output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import numpy as np

from opdump.dump_file import DATA_TYPES, FORMAT_NUMBERS, DumpFile, DumpTensor, HeldBytes, read_dump_file
from opdump.errors import CorruptDumpError, WrongSizeError
from opdump.msaccucmp.exit_codes import CommandError, ExitCode
from opdump.msaccucmp.journal import log
from opdump.sink.npy import read_npy

OPDEBUG_PREFIX: Final = "Opdebug.Node_OpDebug."
"""In exactly this case; the original accepts no other spelling."""

_ALLOWED_NAME: Final = re.compile(r"[A-Za-z0-9_./:()=\\-]+")
_LONGEST_COMPONENT: Final = 254
_LONGEST_PATH: Final = 4095
_WARNING_SIZE: Final = 1 << 30
_NOT_IN_NANO: Final = frozenset({0, 33, 34, 35})
"""Types that are read only from other dumps."""
_NPY_TYPES: Final[Mapping[str, int]] = MappingProxyType(
    {DATA_TYPES[number].dtype: number for number in (*range(1, 13), 16, 17)}
)
"""The types that numpy has."""


def check_path(path: str) -> None:
    """Raise CommandError if the original rejects the spelling of a path."""
    if len(path) > _LONGEST_PATH:
        raise CommandError(ExitCode.BAD_PATH, f"a path of {len(path)} characters; the longest is {_LONGEST_PATH}")
    longest = max(len(part) for part in path.split("/"))
    if longest > _LONGEST_COMPONENT:
        raise CommandError(
            ExitCode.BAD_PATH, f"a file name of {longest} characters in a path; the longest is {_LONGEST_COMPONENT}"
        )
    if not _ALLOWED_NAME.fullmatch(path):
        raise CommandError(
            ExitCode.BAD_PARAMETER,
            f"{path}: only letters, digits and the characters _./:()=\\- may be in a path; rename it",
        )


def read_source(path: str) -> DumpFile:
    """The dump file at `path`. Raises CommandError with the exit code of the original."""
    check_path(path)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        raise CommandError(
            ExitCode.BAD_PATH, f"{path} does not exist or cannot be reached ({error.strerror})"
        ) from error
    if size == 0:
        raise CommandError(ExitCode.BAD_DUMP, f"{path} is empty; a dump file was expected")
    if path.endswith(".npy"):
        return _from_npy(path)
    if size <= 8:
        log("ERROR", f"{path} holds {size} bytes, and a dump file more than 8; it is taken for one without tensors")
        return DumpFile()
    if size > _WARNING_SIZE:
        log("WARNING", f"{path} holds {size} bytes; this may take a while")
    try:
        file = read_dump_file(path)
    except CorruptDumpError as error:
        if _starts_with_no_header(path):
            return DumpFile()
        code = ExitCode.BAD_SIZE if isinstance(error, WrongSizeError) else ExitCode.BAD_DUMP
        raise CommandError(code, str(error)) from error
    if file.variant == "1.0":
        raise CommandError(
            ExitCode.BAD_DUMP,
            f"{path} is a dump of version 1.0, which this command does not read; `opdump convert` does",
        )
    if file.variant == "nano":
        return _named_nano(path, file)
    for text in _texts(file):
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise CommandError(ExitCode.BAD_DUMP, f"{path}: its header holds text that is no UTF-8, {text!r}")
    return file


def _starts_with_no_header(path: str) -> bool:
    """Whether the file announces a header of no bytes, which is a message without fields."""
    try:
        with open(path, "rb") as file:
            return file.read(8) == bytes(8)
    except OSError:
        return False


def _texts(file: DumpFile) -> Iterator[str]:
    yield from (file.version, file.op_name, file.dfx_message)
    for pair in file.attributes:
        yield from pair
    for tensor in file.outputs:
        if tensor.original_op is not None:
            yield tensor.original_op.name


def _named_nano(path: str, file: DumpFile) -> DumpFile:
    """A nano file does not contain the name of its operator; the original uses the last of the five parts of the file's name."""
    parts = os.path.basename(path).split(".")
    if len(parts) < 5:
        raise CommandError(
            ExitCode.BAD_DUMP,
            f"{path} is a nano dump, whose name must have five parts: op_type.op_name.task_id.stream_id.timestamp",
        )
    for tensor in file.tensors:
        if tensor.data_type in _NOT_IN_NANO:
            raise CommandError(
                ExitCode.BAD_DATA_TYPE,
                f"{path}: {tensor.name} has elements of type {tensor.dtype}, unknown in nano dumps",
            )
    return replace(file, op_name=parts[4])


def _from_npy(path: str) -> DumpFile:
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            dtype = read_header(file)[2]
    except Exception as error:  # numpy evaluates the header, and does not catch all resulting exceptions
        raise CommandError(ExitCode.BAD_DUMP, f"{path} is no npy file ({error})") from error
    if dtype.name not in _NPY_TYPES:
        raise CommandError(
            ExitCode.BAD_DATA_TYPE, f"{path} has elements of type {dtype}, which this command does not read"
        )
    try:
        array = read_npy(path)
    except CorruptDumpError as error:
        raise CommandError(ExitCode.BAD_DUMP, str(error)) from error
    data = HeldBytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    number = _NPY_TYPES[dtype.name]
    return DumpFile(outputs=(DumpTensor("output", 0, number, FORMAT_NUMBERS["RESERVED"], array.shape, data),))
