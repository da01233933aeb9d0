"""Hides opdump's own tensor calls from function modes and tensor subclasses of the program.

PyTorch calls `__torch_function__` of the program's modes and tensor subclasses for every tensor property that Python
reads and every function that it calls. What opdump does between the program's own calls runs inside `unseen()`:

    with unseen():
        tensor.shape, tensor.untyped_storage(), parameter.requires_grad

User code must not run inside it. `never_seen` applies it to a whole function. `apart()` is for work on the program's
device: it switches off everything that the program has switched on.
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
# The dispatch keys of autograd (backward and forward mode), version counters and autocast.
_without_kernels = without_keys(("Autograd", "Autocast"), "ADInplaceOrView")


def never_seen(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: run the function inside `unseen()`."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with unseen():
            return function(*args, **kwargs)

    return inside


@contextmanager
def apart() -> Iterator[None]:
    """Deactivate the program's modes in this thread inside the block.

    These are inference mode, whose tensors cannot be written later; dispatch modes and function modes, including a default
    device; autograd, forward-mode differentiation and autocast; `vmap` and other transforms. The default dtype remains, so
    pass dtypes explicitly.
    """
    with ExitStack() as stack:
        stack.enter_context(no_function_modes())
        if dispatch_depth():
            stack.enter_context(without_modes())
        stack.enter_context(without_transforms())
        # Before the dispatch keys, because it resets them.
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(_without_kernels())
        yield
