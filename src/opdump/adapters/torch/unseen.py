"""Hides opdump's own tensor calls from function modes and subclasses of the program.

PyTorch calls `__torch_function__` of the program's modes, and of its subclasses of tensors, for every property that Python reads and
every function that it calls. What opdump does between the program's own calls runs inside `unseen()`, in the calling thread:

    with unseen():
        tensor.shape, tensor.untyped_storage(), parameter.requires_grad

Nothing of the program may run in there. `never_seen` is that for a whole function. `apart()` is for work on the program's device:
everything that the program has switched on is off there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from opdump.adapters.torch.private_names import (
    dispatch_depth,
    no_function_modes,
    without_keys,
    without_modes,
    without_transforms,
)

Given = ParamSpec("Given")
Result = TypeVar("Result")

unseen = no_function_modes
# What autograd (backward and forward mode), version counters and autocast hang on.
_without_kernels = without_keys(("Autograd", "Autocast"), "ADInplaceOrView")


def never_seen(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Has a function run inside `unseen()`."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with unseen():
            return function(*args, **kwargs)

    return inside


@contextmanager
def apart() -> Iterator[None]:
    """For the length of the block no mode of the program is in force, in this thread.

    Those are: inference mode, whose tensors nobody may write into later; dispatch modes and function modes, a default device
    among them; autograd, forward-mode differentiation and autocast; `vmap` and its like. The default dtype stays: give dtypes.
    """
    with ExitStack() as stack:
        stack.enter_context(no_function_modes())
        if dispatch_depth():
            stack.enter_context(without_modes())
        stack.enter_context(without_transforms())
        # Before the keys: it sets them anew.
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(_without_kernels())
        yield
