"""Reads a tensor of a dump file as the codes in the file, so that formats are converted before elements are widened.

bfloat16 stays two bytes until it is written, piece by piece, as float32: a conversion never has more in memory than the codes of
one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor, HeldBytes, data_type
from opdump.dump_file.elements import encode_elements
from opdump.errors import UndecodableTensorError

PIECE = 1 << 20
"""Bytes of a tensor that are processed at a time."""

# An unsigned type of the same size represents a type that numpy lacks.
_UNSIGNED = {8: 4, 16: 6, 32: 9}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`codes` are elements of `host_type` if `widened` is false, otherwise the raw codes of the file."""

    tensor: DumpTensor
    codes: npt.NDArray[Any]
    host_type: np.dtype[Any]
    widened: bool
    format_name: str
    is_untouched: bool = False
    """Whether the codes are the first bytes of the tensor in the file, in their order."""

    slabs: Callable[[], Iterator[npt.NDArray[Any]]] | None = None
    """The codes in another format, part by part: they replace `codes`, and `slab_shape` its shape."""
    slab_shape: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape if self.slabs is None else self.slab_shape

    @property
    def dtype_name(self) -> str:
        """The element type in the file: numpy's name if it has one."""
        return self.tensor.dtype if self.widened or self.is_packed else self.host_type.name

    @property
    def is_packed(self) -> bool:
        """Whether a byte of the file contains several elements."""
        return 0 < data_type(self.tensor.data_type).bits < 8

    def values(self) -> Iterator[npt.NDArray[Any]]:
        """The elements in C order as one-dimensional arrays of `host_type`.

        An array that the caller keeps also keeps its slab in memory, beside the next one.
        """
        pieces = self._all_pieces()
        return map(self._widen, pieces) if self.widened else pieces

    def raw(self) -> Iterator[npt.NDArray[Any]]:
        """The elements in C order as stored in the file; several to a byte for types of fewer than 8 bits."""
        if not self.is_packed:
            yield from self._all_pieces()
            return
        kind = data_type(self.tensor.data_type)
        left = np.empty(0, self.codes.dtype)
        for piece in self._all_pieces():
            together = np.concatenate([left, piece])
            del piece
            whole = len(together) // 8 * 8  # in whole bytes, for any type
            yield np.frombuffer(encode_elements(together[:whole], kind.number), np.uint8)
            left = together[whole:]
        yield np.frombuffer(encode_elements(left, kind.number), np.uint8)

    def _all_pieces(self) -> Iterator[npt.NDArray[Any]]:
        for array in (self.codes,) if self.slabs is None else self.slabs():
            yield from _pieces(array)
            del array  # frees it before the next one is made

    def _widen(self, piece: npt.NDArray[Any]) -> npt.NDArray[Any]:
        data = HeldBytes(np.ascontiguousarray(piece).view(np.uint8).data)
        return replace(self.tensor, shape=(len(piece),), data=data).to_host()


def stored_tensor(tensor: DumpTensor) -> StoredTensor:
    """The codes of a tensor, in the device's format and shape.

    Raises UndecodableTensorError if there are fewer bytes than the shape needs, or if no array can have the shape.
    """
    kind = data_type(tensor.data_type)
    host_type = _host_type(kind.number)
    widened = kind.bits in _UNSIGNED and host_type.itemsize * 8 != kind.bits
    try:
        if not widened:
            codes = tensor.to_host()
        else:
            if tensor.size * 8 < math.prod(tensor.shape) * kind.bits:
                tensor.to_host()  # raises, with the name of the true type
            codes = replace(tensor, data_type=_UNSIGNED[kind.bits]).to_host()
    except (ValueError, OverflowError) as error:
        raise UndecodableTensorError(f"{tensor.name}: no array has the shape {tensor.shape} ({error})") from error
    packed = 0 < kind.bits < 8
    return StoredTensor(tensor, codes, host_type, widened, tensor.format_name, not widened and not packed)


@cache
def _host_type(number: int) -> np.dtype[Any]:
    """The element type of a decoded tensor."""
    nothing = DumpTensor(io="input", slot=0, data_type=number, format=2, shape=(0,), data=HeldBytes(b""))
    return nothing.to_host().dtype


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The elements in C order, a few at a time."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        step = PIECE // array.itemsize
        for start in range(0, len(flat), step):
            yield flat[start : start + step]
    elif array.nbytes <= PIECE:
        yield np.ascontiguousarray(array).reshape(-1)
    elif len(array) == 1:
        yield from _pieces(array[0])
    else:
        step = max(1, PIECE * len(array) // array.nbytes)
        for start in range(0, len(array), step):
            yield from _pieces(array[start : start + step])
