"""Tensors that are written without creating an array produce the same files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from opdump.conversion import ConversionPlan
from opdump.conversion.convert_file import WRITERS, write_plain
from opdump.conversion.formatted import plain_tensor
from opdump.conversion.output_directory import tensor_ending
from opdump.conversion.stored_tensor import stored_tensor
from opdump.dump_file import DATA_TYPES, DumpTensor, HeldBytes, UnreadableBytes

_PLAIN = frozenset(
    [
        "FLOAT",
        "FLOAT16",
        "INT8",
        "UINT8",
        "INT16",
        "UINT16",
        "INT32",
        "INT64",
        "UINT32",
        "UINT64",
        "BOOL",
        "DOUBLE",
        "COMPLEX64",
        "COMPLEX128",
    ]
)


def _tensor(number: int, shape: tuple[int, ...], size: int) -> DumpTensor:
    data = HeldBytes(bytes(index % 251 for index in range(size)))
    return DumpTensor(io="output", slot=3, data_type=number, format=2, shape=shape, data=data)


def _written(path: Path, write: Callable[[int], int]) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        return write(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("file_type", ["npy", "bin"])
@pytest.mark.parametrize("number", DATA_TYPES, ids=lambda number: DATA_TYPES[number].name)
@pytest.mark.parametrize("shape", [(2, 3), (5,), (1, 1, 4, 1)], ids=str)
def test_the_file_is_that_of_the_array(
    file_type: Literal["npy", "bin"], number: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    plan = ConversionPlan(file_type)
    tensor = _tensor(number, shape, math.prod(shape) * 16 + 7)
    plain = plain_tensor(tensor, plan)
    assert (plain is not None) == (DATA_TYPES[number].name in _PLAIN)
    if plain is None:
        return
    stored = stored_tensor(tensor)
    written = [
        _written(tmp_path / "a", partial(write_plain, plain, file_type)),
        _written(tmp_path / "b", partial(WRITERS[file_type], stored)),
    ]
    assert written[0] == written[1] == (tmp_path / "a").stat().st_size
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert tensor_ending(plain, plan) == tensor_ending(stored, plan)


@pytest.mark.parametrize(
    "plan",
    [
        ConversionPlan("txt"),
        ConversionPlan("pt"),
        ConversionPlan("npy", format="NCHW"),
        ConversionPlan("npy", layout="mindspore"),
    ],
    ids=["txt", "pt", "format", "layout"],
)
def test_other_files_need_an_array(plan: ConversionPlan) -> None:
    assert plain_tensor(_tensor(1, (2, 3), 24), plan) is None


@pytest.mark.parametrize(
    "shape", [(), (0,), (2, 0), (7,), (1,) * 33, (2**62, 2**62)], ids=lambda shape: str(shape)[:20]
)
def test_an_unusual_shape_is_checked_where_arrays_are_made(shape: tuple[int, ...]) -> None:
    assert plain_tensor(_tensor(1, shape, 24), ConversionPlan()) is None


def test_bytes_that_cannot_be_read_are_reported_by_their_reader() -> None:
    tensor = DumpTensor(
        io="output", slot=0, data_type=1, format=2, shape=(1,), data=UnreadableBytes(None, "not copied")
    )
    assert plain_tensor(tensor, ConversionPlan()) is None
