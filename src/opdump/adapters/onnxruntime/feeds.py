"""Raw elements as what ONNX Runtime is fed with, and what its inputs and outputs are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from opdump.adapters.host.element_types import BY_DTYPE, element_of_type


def feed_of(elements: npt.NDArray[Any], dtype: str) -> Any:
    """An array as it is, or, where numpy lacks the element type, a value of the runtime over the same bits."""
    element = BY_DTYPE[dtype]
    if element.known_to_numpy:
        return elements
    contiguous = np.ascontiguousarray(elements).view(element.storage)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(contiguous, element.number)


def dtype_and_dims(value: Any) -> tuple[str, tuple[int, ...]]:
    """Element type, as in records, and shape of an input or output of a session; -1 for what is not known."""
    element = element_of_type(value.type)
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else -1 for dim in value.shape or ())
    return (value.type if element is None else element.dtype), dims
