"""Rebuilds recorded tensors, with their strides, in their own or another dtype."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from opdump.adapters.replay import Array
from opdump.records import Memory, TensorRecord
from opdump.tensor_elements import torch_tensor

_ALIGNED: Final = 64
"""Offsets are reduced modulo this number of elements: every kernel sees the same alignment."""
_MOST_MEMORY: Final = 64
"""If the strides need more than this many times the memory of the values, the tensor is made contiguous."""


def empty_as(record: TensorRecord) -> Array:
    """Zeros for memory that was not written before the operator."""
    return np.zeros(record.shape, "float32" if record.dtype.startswith(("bfloat16", "float8")) else record.dtype)


def tensor_of(values: Array, record: TensorRecord, floating: torch.dtype | None) -> torch.Tensor:
    """The recorded tensor with these values, in memory of its own; floats as `floating`, or as recorded if that is None."""
    kind = getattr(torch, record.dtype, None)
    if floating is None:
        made = torch_tensor(values, record.dtype)
    else:
        # A copy, because operators may write to their arguments, and `values` must not change.
        made = torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), copy=True))
        if made.is_floating_point():
            kind = floating
        elif made.is_complex():
            kind = torch.complex128 if floating is torch.float64 else torch.complex64
        elif isinstance(kind, torch.dtype) and kind.is_floating_point:
            kind = made.dtype
    return _laid_out(made.to(kind) if isinstance(kind, torch.dtype) else made, record.memory)


def layout_of(values: torch.Tensor, memory: Memory | None) -> tuple[torch.Tensor, tuple[int, ...], int]:
    """The memory layout of a tensor, on which kernels depend: values (expanded ones once), strides, and an offset.

    The offset preserves the alignment. If the layout is unknown, or gaps need too much memory, the tensor is contiguous.
    """
    if memory is not None and len(memory.strides) == values.dim() and 0 not in values.shape:
        once = values[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in memory.strides)]
        offset = memory.offset % _ALIGNED
        if _extent(once, memory.strides, offset) <= _MOST_MEMORY * once.numel() + _ALIGNED:
            return once, memory.strides, offset
    values = values.contiguous()
    return values, values.stride(), 0


def _extent(values: torch.Tensor, strides: tuple[int, ...], offset: int) -> int:
    return offset + 1 + sum((size - 1) * stride for size, stride in zip(values.shape, strides, strict=True))


def _laid_out(values: torch.Tensor, memory: Memory | None) -> torch.Tensor:
    once, strides, offset = layout_of(values, memory)
    if offset == 0 and strides == values.stride():
        return values
    view = values.new_zeros(_extent(once, strides, offset)).as_strided(once.shape, strides, offset)
    return view.copy_(once).expand(values.shape)


def array_of(tensor: torch.Tensor) -> Array:
    """The values as a numpy array: floats that numpy lacks widened to float32, quantised tensors dequantised."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    elif tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    found: Array = tensor.resolve_conj().resolve_neg().numpy()
    return found
