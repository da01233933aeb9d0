"""Writes complete files into the output directory, and shortens long names.

Files get mode 0600, an existing file or link with the name is replaced, and nothing outside of the directory is written.
"""

from __future__ import annotations

import io
import itertools
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.interpreter.leftovers import SUFFIX, clear, own_prefix
from opdump.msaccucmp.exit_codes import CommandError, ExitCode

MAPPING_FILE: Final = "mapping.csv"
_LONGEST_NAME: Final = 254
_FILE_MODE: Final = 0o600
_temporary_numbers: Iterator[int] = itertools.count()


@dataclass(frozen=True, slots=True)
class OutputFolder:
    """A directory that exists. Names passed to it have no slash."""

    path: str

    def place(self, name: str) -> str:
        """The path of a file with that name. A name of 255 characters or more is replaced by a digest, with a line in
        `mapping.csv`.
        """
        if len(name) > _LONGEST_NAME:
            import uuid  # long names are rare

            short = uuid.uuid3(uuid.NAMESPACE_DNS, name).hex + os.path.splitext(name)[1]
            self.append(MAPPING_FILE, f"{short},{name}\n")
            name = short
        return os.path.join(self.path, name)

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> str:
        """Write the parts under that name; returns the path. Raises OSError."""
        target = self.place(name)
        write_whole(target, parts)
        return target

    def append(self, name: str, text: str) -> None:
        """Append to a file of the directory; a link with that name is replaced, not followed."""
        target = os.path.join(self.path, name)
        if os.path.islink(target):
            os.unlink(target)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
        try:
            _write(descriptor, text.encode("utf-8", "surrogateescape"))
        finally:
            os.close(descriptor)


def write_whole(target: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file under a temporary name, then rename it. Raises OSError, and leaves nothing behind then."""
    temporary = os.path.join(os.path.dirname(target), f"{own_prefix()}{next(_temporary_numbers):x}{SUFFIX}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        try:
            for part in parts:
                _write(descriptor, part)
        finally:
            os.close(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _write(descriptor: int, part: bytes | memoryview) -> None:
    rest = memoryview(part).cast("B") if len(part) else memoryview(b"")
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def npy_parts(array: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    """An npy file of format 1.0 in the memory order of the array: `fortran_order` is true for a transposed view.

    The header is that of numpy 1.23 and later, which reserves space for the first (or last) dimension to grow.
    """
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    text = f"{{'descr': '{array.dtype.str}', 'fortran_order': {bool(fortran)}, 'shape': {array.shape!r}, }}"
    if array.shape:
        text += " " * (21 - len(str(array.shape[-1 if fortran else 0])))
    padding = 64 - (10 + len(text) + 1) % 64
    yield b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) + padding + 1) + text.encode() + b" " * padding + b"\n"
    yield from raw_parts(array.T if fortran else array)


def raw_parts(array: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    """The elements in C order."""
    yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def check_torch() -> None:
    """Raise CommandError if PyTorch is not installed."""
    try:
        import_module("torch")
    except ImportError as error:
        raise CommandError(
            ExitCode.BAD_PARAMETER, "-t pt needs PyTorch, which is not installed: pip install torch, or use -t npy"
        ) from error


def pt_parts(array: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    """The array as saved by torch (`-t pt`)."""
    torch: Any = import_module("torch")
    buffer = io.BytesIO()
    torch.save(torch.from_numpy(np.array(array, order="C")), buffer)
    yield buffer.getvalue()


def make_output_folder(path: str) -> None:
    """Create the directory with mode 0700, and remove partial files of dead processes in it. Raises CommandError if that fails or
    the path is not a directory.
    """
    if os.path.isdir(path):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                clear(descriptor)
            finally:
                os.close(descriptor)
        return
    if os.path.lexists(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} is not a directory; -out must name one")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise CommandError(ExitCode.BAD_PATH, f"{path} cannot be created ({error.strerror})") from error
