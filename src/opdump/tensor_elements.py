"""Converts elements between the numpy arrays in which they are stored and PyTorch tensors of the recorded type."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from opdump.errors import PackageMissingError

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor as Tensor  # noqa: PLC0414  # for `records`, which imports no framework

_WIDENED: Final = {
    **dict.fromkeys(("bfloat16", "hifloat8", "qint8", "quint8", "qint32"), "float32"),
    **dict.fromkeys(("int4", "int2"), "int8"),
    **dict.fromkeys(("uint4", "uint2", "uint1"), "uint8"),
    "complex32": "complex64",
}
_HIGH: Final = int(sys.byteorder == "little")
"""Index of the upper half of a float32, which is the bfloat16."""
_SMALL_FLOATS: Final = ("float4", "float6", "float8")


def empty_elements(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the array for a tensor without elements, in numpy's type for it."""
    import numpy as np

    return np.empty(shape, "float32" if dtype.startswith(_SMALL_FLOATS) else _WIDENED.get(dtype, dtype))


def torch_tensor(array: npt.NDArray[Any], dtype: str) -> Tensor:
    """Return the elements as a tensor of that type, exactly, or of the array's type if PyTorch lacks it. The memory is a copy.

    Raises PackageMissingError if PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise PackageMissingError(
            f"torch() returns a PyTorch tensor, and PyTorch cannot be imported here ({error}); type: pip install torch, or use numpy()"
        ) from error
    import numpy as np

    own = np.array(array, array.dtype.newbyteorder("="), order="C")  # PyTorch warns about read-only memory
    made: Tensor = torch.from_numpy(own)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        return made
    if dtype == "bfloat16" and own.dtype == np.float32:
        # The rounding of PyTorch would map every NaN to the same bits.
        halves = own.reshape(-1).view(np.uint16)[_HIGH::2].copy()
        return torch.from_numpy(halves.view(np.int16)).view(kind).reshape(own.shape)
    if dtype == "complex32":
        parts = own.reshape(-1).view(np.float32).astype(np.float16)
        return torch.from_numpy(parts.view(np.int32)).view(kind).reshape(own.shape)
    return made.to(kind) if dtype.startswith("float8") else made
