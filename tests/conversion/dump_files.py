"""Dump files for the tests of conversions."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.dtypes import BY_NAME
from opdump.dump_file import DumpFile, DumpTensor, HeldBytes, write_dump_file
from opdump.dump_file.dump_file import FORMAT_NUMBERS
from opdump.dump_file.elements import encode_elements
from opdump.records import IO

TIME = 1700000000000000


def tensor(
    array: npt.NDArray[Any], dtype: str = "", *, io: IO = "output", slot: int = 0, format_name: str = "ND", **more: Any
) -> DumpTensor:
    """A tensor with the elements of `array`, written as the named type."""
    number = BY_NAME[dtype or array.dtype.name].number
    shape = more.pop("shape", array.shape)
    data = HeldBytes(encode_elements(array, number))
    return DumpTensor(
        io=io, slot=slot, data_type=number, format=FORMAT_NUMBERS[format_name], shape=shape, data=data, **more
    )


def dump(directory: Path, name: str = f"Add.add.1.2.{TIME}", *outputs: DumpTensor, **more: Any) -> Path:
    """A dump file of these outputs; by default one output of six floats."""
    directory.mkdir(parents=True, exist_ok=True)
    outputs = outputs or (tensor(np.arange(6, dtype=np.float32).reshape(2, 3)),)
    path = directory / name
    write_dump_file(path, DumpFile(outputs=outputs, op_name="net/add", **more))
    return path


def overflow_record(*, task: int, stream: int, status: int) -> bytes:
    """The 2048 bytes of an old-layout record in which the AI Core reports one task."""
    record = bytearray(2048)
    struct.pack_into("<6Q", record, 256, 514, stream, task, 0, 0, 0)
    struct.pack_into("<3Q", record, 1024, 0, 1, status)
    return bytes(record)


def overflow_file(directory: Path, name: str, **numbers: int) -> Path:
    record = np.frombuffer(overflow_record(**numbers), np.uint8)
    return dump(directory, name, tensor(record))


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }
