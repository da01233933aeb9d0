"""A toy framework: eager operators on numpy arrays, which all go through one function.

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
    """Call `function(*arrays)` for the operator with that name. Replace this to observe operators."""
    return function(*arrays)


def ended_step() -> None:
    """Called where a step ends. Replace this to be notified."""


def matmul(one: Array, other: Array) -> Array:
    """The matrix product."""
    return run_operator("MatMul", np.matmul, one, other)


def multiply(one: Array, other: Array) -> Array:
    """The elementwise product."""
    return run_operator("Multiply", np.multiply, one, other)


def relu(array: Array) -> Array:
    """Replace numbers below zero with zero."""
    return run_operator("Relu", lambda given: np.maximum(given, 0), array)


def add_(array: Array, other: Array) -> Array:
    """Add in place."""
    return run_operator("Add_", lambda into, given: np.add(into, given, out=into), array, other)


def flatten(array: Array) -> Array:
    """A one-dimensional view of the same memory."""
    return run_operator("Flatten", lambda given: given.reshape(-1), array)


def end_step() -> None:
    """End a step of the program."""
    ended_step()
