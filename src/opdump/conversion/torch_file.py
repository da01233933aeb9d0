"""Writes tensors to PyTorch files: the only place outside of the adapters that imports PyTorch, and only when such a file is
requested.
"""

from __future__ import annotations

import importlib
import os

import numpy as np

from opdump.conversion.formatted import forget
from opdump.conversion.plan import ConversionError
from opdump.conversion.stored_tensor import StoredTensor

_OWN_TYPES = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu")


def require_torch() -> None:
    """Raises ConversionError if PyTorch cannot be imported."""
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise ConversionError(
            f"--to pt writes files of PyTorch, which cannot be imported ({error}): pip install torch, or use --to npy"
        ) from error


def write_torch(stored: StoredTensor, descriptor: int) -> int:
    """Write a tensor with the element type of the device if PyTorch has it, otherwise with the widened one; returns the number of
    bytes written.
    """
    import torch

    own = stored.dtype_name in _OWN_TYPES and hasattr(torch, stored.dtype_name)
    kind = getattr(torch, stored.dtype_name) if own else torch.from_numpy(np.empty(0, stored.host_type)).dtype
    tensor = torch.empty(stored.shape, dtype=kind)
    flat = tensor.reshape(-1)
    done = 0
    for piece in stored.values():
        count = len(piece)
        if own:
            flat[done : done + count] = torch.from_numpy(piece.copy())  # a writable copy, or PyTorch warns
        else:
            flat.numpy()[done : done + count] = piece  # PyTorch would turn a bool of byte 7 into 1
        done += count
        del piece
        forget(stored.tensor)
    with os.fdopen(os.dup(descriptor), "wb") as output:
        torch.save(tensor, output)
    return os.fstat(descriptor).st_size
