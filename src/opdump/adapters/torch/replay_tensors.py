"""Makes recorded tensors again: their elements, in the type and with the strides that they had, or in another type."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from opdump.adapters.replay import Array
from opdump.records import Memory, TensorRecord
from opdump.tensor_elements import torch_tensor

_ALIGNED: Final = 64
"""Elements after which addresses are aligned alike for every kernel: an offset counts by what it leaves of so many."""
_MOST_MEMORY: Final = 64
"""Where the strides would take more than so many times the memory of the elements, the tensor is made contiguous."""


def empty_as(record: TensorRecord) -> Array:
    """Elements for memory that nobody wrote before the operator: zeros."""
    return np.zeros(record.shape, "float32" if record.dtype.startswith(("bfloat16", "float8")) else record.dtype)


def tensor_of(values: Array, record: TensorRecord, floating: torch.dtype | None) -> torch.Tensor:
    """These elements as the recorded tensor, floats as `floating`, or as they were where that is None. Its memory is its own."""
    kind = getattr(torch, record.dtype, None)
    if floating is None:
        made = torch_tensor(values, record.dtype)
    else:
        # A copy: operators write into their arguments, and numpy's views are of memory that is to stay as it is.
        made = torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), copy=True))
        if made.is_floating_point():
            kind = floating
        elif made.is_complex():
            kind = torch.complex128 if floating is torch.float64 else torch.complex64
        elif isinstance(kind, torch.dtype) and kind.is_floating_point:
            kind = made.dtype
    return _laid_out(made.to(kind) if isinstance(kind, torch.dtype) else made, record.memory)


def layout_of(values: torch.Tensor, memory: Memory | None) -> tuple[torch.Tensor, tuple[int, ...], int]:
    """How the tensor lay: its elements, once where they were expanded, their strides, and an offset that aligns them alike.

    Kernels go by these. Where that is not known, or gaps would take too much memory, the strides are those of a contiguous tensor.
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
    """The elements as numpy holds them: narrow floats widened to float32, and nothing else changed."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.float()
    elif tensor.dtype == torch.complex32:
        tensor = tensor.to(torch.complex64)
    found: Array = tensor.resolve_conj().resolve_neg().numpy()
    return found
