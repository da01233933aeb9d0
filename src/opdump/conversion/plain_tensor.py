"""Finds tensors whose bytes can be copied unchanged, without numpy.

Importing numpy takes longer than all other work on a small file, and most tensors do not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from opdump.conversion.plan import ConversionPlan
from opdump.dump_file import DumpTensor

# Keys are the type names of records, which equal numpy's names. Dump files are little-endian.
_DESCRS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bool": "|b1",
        "int8": "|i1",
        "uint8": "|u1",
        "int16": "<i2",
        "uint16": "<u2",
        "int32": "<i4",
        "uint32": "<u4",
        "int64": "<i8",
        "uint64": "<u8",
        "float16": "<f2",
        "float32": "<f4",
        "float64": "<f8",
        "complex64": "<c8",
        "complex128": "<c16",
    }
)
_MOST_DIMENSIONS: Final = 32


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """The first `size` bytes of the tensor in the file are its elements in C order, of numpy type `descr`."""

    tensor: DumpTensor
    descr: str
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype_name(self) -> str:
        return self.tensor.dtype

    @property
    def format_name(self) -> str:
        return self.tensor.format_name


def plain_tensor(tensor: DumpTensor, plan: ConversionPlan) -> PlainTensor | None:
    """The tensor as a `PlainTensor`; None if its file needs other bytes, or if it is unusual in any way."""
    if plan.format or plan.layout != "dumps" or plan.file_type not in ("npy", "bin"):
        return None
    descr = _DESCRS.get(tensor.dtype)
    # The meaning of an empty shape depends on the bytes, and the code that makes arrays reports invalid shapes.
    if descr is None or not 0 < len(tensor.shape) <= _MOST_DIMENSIONS or min(tensor.shape) <= 0:
        return None
    size = math.prod(tensor.shape) * int(descr[2:])
    return PlainTensor(tensor, descr, size) if size <= tensor.size else None
