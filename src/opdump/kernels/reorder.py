"""Copies of elements from one order in memory to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def copy_elements(source: NDArray[Any], destination: NDArray[Any]) -> None:
    """Copy every element to the same place of `destination`: same shape and dtype, any strides, no memory in common."""
    if source.shape != destination.shape or source.dtype != destination.dtype:
        raise ValueError(
            f"elements of {source.dtype} {source.shape} cannot be copied to {destination.dtype} {destination.shape}"
        )
    np.copyto(destination, source, casting="no")
