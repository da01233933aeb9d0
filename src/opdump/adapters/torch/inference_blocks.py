"""Keeps the dispatch keys of modes consistent with the mode stack when an inference-mode block ends.

When a `torch.inference_mode` block ends, PyTorch resets the dispatch keys of the thread to their state at its start, including the keys
of dispatch modes. If a step ended inside the block, the mode is off the stack: the program's next operator would look for the missing
mode and fail. If a step began inside, the mode is on the stack but would not see what runs after the block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.dynamo_frames import never_compile
from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import (
    OPERATORS,
    dispatch_depth,
    include_key,
    inference_guard,
    is_key_included,
)

_KEYS: Final = ("Python", "PythonTLSSnapshot")
"""The dispatch keys that are set in a thread while a mode is on its stack."""


class InferenceBlocks:
    """Corrects the keys at the end of every block that ends between `attach` and `detach`, including blocks that began earlier."""

    def __init__(self) -> None:
        self._replacements = Replacements()

    def attach(self) -> None:
        if is_lost(OPERATORS):
            return
        # PyTorch's internal guard, too: in a block that began before `attach`, `with` has already looked up the old `__exit__` of
        # `torch.inference_mode`, which calls the guard's.
        for owner in (torch.inference_mode, inference_guard):
            leave = _with_keys_matched(owner.__exit__)
            self._replacements.replace(owner, "__exit__", leave)
            never_compile(leave.__code__)

    def detach(self) -> None:
        self._replacements.restore()


def _with_keys_matched(leave: Callable[..., Any]) -> Callable[..., Any]:
    def leave_and_match(block: Any, *error: Any) -> Any:
        try:
            return leave(block, *error)
        finally:
            _match_keys()

    return leave_and_match


def _match_keys() -> None:
    """Set the keys of dispatch modes in the thread exactly if modes are on its stack, as PyTorch does."""
    has_modes = dispatch_depth() > 0
    for key in _KEYS:
        if is_key_included(key) != has_modes:
            include_key(key, has_modes)
