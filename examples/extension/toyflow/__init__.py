"""A toy framework: eager operators on numpy arrays, with one place through which they all go.

x = toyflow.relu(toyflow.matmul(a, b))
toyflow.add_(x, b)
toyflow.end_step()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__version__ = "0.1"

Array = npt.NDArray[Any]


def run_operator(_name: str, function: Callable[..., Array], *arrays: Array) -> Array:
    """Calls `function(*arrays)`, for the operator of that name. Whoever wants to see operators replaces it."""
    return function(*arrays)


def ended_step() -> None:
    """Is called where a step ends. Whoever wants to know replaces it."""


def matmul(one: Array, other: Array) -> Array:
    """The product of matrices."""
    return run_operator("MatMul", np.matmul, one, other)


def multiply(one: Array, other: Array) -> Array:
    """The product, element by element."""
    return run_operator("Multiply", np.multiply, one, other)


def relu(array: Array) -> Array:
    """Numbers below zero become zero."""
    return run_operator("Relu", lambda given: np.maximum(given, 0), array)


def add_(array: Array, other: Array) -> Array:
    """Adds in place."""
    return run_operator("Add_", lambda into, given: np.add(into, given, out=into), array, other)


def flatten(array: Array) -> Array:
    """Another look at the same memory."""
    return run_operator("Flatten", lambda given: given.reshape(-1), array)


def end_step() -> None:
    """The program is done with one step."""
    ended_step()
