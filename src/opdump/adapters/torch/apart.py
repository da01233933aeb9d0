"""Work of the capture on the program's device, apart from everything that the program has switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes


def _keys_of_modes() -> torch._C.DispatchKeySet:
    """What autograd (backward and forward mode), version counters and autocast hang on."""
    names = [name for name in torch._C.DispatchKey.__members__ if name.startswith(("Autograd", "Autocast"))]
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    for name in names:
        keys = keys | torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name))
    return keys


_KEYS = _keys_of_modes()


@contextmanager
def apart() -> Iterator[None]:
    """For the length of the block no mode of the program is in force, in this thread.

    Those are: inference mode, whose tensors nobody may write into later; dispatch modes and function modes, a default device
    among them; autograd, forward-mode differentiation and autocast; `vmap` and its like. The default dtype stays: give dtypes.
    """
    with ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(torch._C._DisableFuncTorch())
        # Before the keys: it sets them anew.
        stack.enter_context(torch._C._InferenceMode(False))
        stack.enter_context(torch._C._ExcludeDispatchKeyGuard(_KEYS))
        yield
