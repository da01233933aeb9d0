"""Build dumps in the form that Ascend devices write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.dtypes.data_types import BY_NAME
from opdump.dump_file import FORMAT_NUMBERS, DumpFile, DumpTensor, HeldBytes, write_dump_file
from opdump.dump_file.elements import encode_elements
from opdump.records import IO

TIME = "20241120120000"
LATER = "20241120130000"
STAMP = 1_732_082_705_016_774


def tensor(
    io: IO, slot: int, array: npt.NDArray[Any], *, dtype: str = "", layout: str = "ND", short: int = 0
) -> DumpTensor:
    """A tensor of a dump file, with the last `short` bytes missing."""
    number = BY_NAME[dtype or array.dtype.name].number
    data = encode_elements(array, number)
    return DumpTensor(
        io=io,
        slot=slot,
        data_type=number,
        format=FORMAT_NUMBERS[layout],
        shape=array.shape,
        data=HeldBytes(data[: len(data) - short]),
    )


def add_dump_file(
    directory: Path,
    name: str = "",
    op_name: str = "net/conv1",
    *,
    inputs: tuple[DumpTensor, ...] = (),
    outputs: tuple[DumpTensor, ...] | None = None,
) -> Path:
    """Write a dump file into `directory`, which is created; the default is one output [0, 1, 2] of float32."""
    directory.mkdir(parents=True, exist_ok=True)
    name = name or f"Conv2D.{op_name.replace('/', '_')}.1.5.{STAMP}"
    if outputs is None:
        outputs = (tensor("output", 0, np.arange(3, dtype="float32")),)
    path = directory / name
    write_dump_file(path, DumpFile(inputs=inputs, outputs=outputs, op_name=op_name, dump_time=STAMP))
    return path


def add_npy(directory: Path, name: str, array: npt.NDArray[Any]) -> Path:
    """Write a npy file into `directory`, which is created."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    np.save(path, array)
    return path
