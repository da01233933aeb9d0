"""Runs work of the capture on the program's device, apart from everything that the program has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from opdump.adapters.torch.private_names import (
    dispatch_depth,
    no_function_modes,
    without_keys,
    without_modes,
    without_transforms,
)

# What autograd (backward and forward mode), version counters and autocast hang on.
_without_kernels = without_keys(("Autograd", "Autocast"), "ADInplaceOrView")


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
