"""Hides opdump's own tensor calls from function modes and subclasses of the program.

PyTorch calls `__torch_function__` of the program's modes, and of its subclasses of tensors, for every property that Python reads and
every function that it calls. What opdump does between the program's own calls runs inside `unseen()`, in the calling thread:

    with unseen():
        tensor.shape, tensor.untyped_storage(), parameter.requires_grad

Nothing of the program may run in there. `never_seen` is that for a whole function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from opdump.adapters.torch.private_names import no_function_modes

Given = ParamSpec("Given")
Result = TypeVar("Result")

unseen = no_function_modes


def never_seen(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Has a function run inside `unseen()`."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with unseen():
            return function(*args, **kwargs)

    return inside
