"""Reads values of dense host tensors into numpy through their address, without running a torch operator."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from opdump.kernels import DTYPE_CODES

NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        *("float16", "bfloat16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("complex32", "complex64", "complex128", "qint8", "quint8", "qint32"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
_QUANTISED = frozenset(dtype for dtype, name in NAMES.items() if name in ("qint8", "quint8", "qint32"))
CODES = {dtype: DTYPE_CODES[name] for dtype, name in NAMES.items() if name in DTYPE_CODES}
# numpy has no bfloat16, so its values are read as raw bits.
_NUMPY: dict[torch.dtype, npt.DTypeLike] = {
    dtype: (np.uint16 if name == "bfloat16" else np.dtype(name))
    for dtype, name in NAMES.items()
    if name in DTYPE_CODES or name in ("complex64", "complex128")
}


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32` for torch.float32."""
    return NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


def is_opaque(tensor: torch.Tensor) -> bool:
    """Whether the values are unknown: a dtype without numbers, or a quantised dtype without scale and zero point."""
    return tensor.dtype not in NAMES or (tensor.dtype in _QUANTISED and not tensor.is_quantized)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape; empty for a lazy tensor (no shape yet) and a nested one (several shapes)."""
    return () if tensor.is_nested or is_lazy(tensor) else tuple(tensor.shape)


def elements_of(dense: torch.Tensor) -> npt.NDArray[Any]:
    """A view of the memory, which keeps the tensor alive; bfloat16 as its 16 raw bits."""
    dtype = np.dtype(_NUMPY[dense.dtype])
    shape, strides = tuple(dense.shape), dense.stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(dense.data_ptr())
    # The array keeps `memory` alive, and `memory` keeps the tensor.
    memory.owner = dense  # type: ignore[attr-defined]  # a ctypes object takes attributes
    elements: npt.NDArray[Any] = np.ndarray(
        shape, dtype, memoryview(memory), strides=tuple(stride * dtype.itemsize for stride in strides)
    )
    return elements


def copy_of_elements(dense: torch.Tensor) -> npt.NDArray[Any]:
    """A C-contiguous copy of the memory; bfloat16 as its 16 raw bits."""
    return np.array(elements_of(dense), order="C", copy=True)


def widened(raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raw bits of bfloat16 as float32, of which they are the upper half."""
    return (raw.astype(np.uint32) << 16).view(np.float32)
