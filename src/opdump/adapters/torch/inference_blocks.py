"""Keeps dispatch modes in force, or out of it, where a block of inference mode ends.

When `torch.inference_mode` ends, PyTorch sets the dispatch keys of the thread back to what they were when it began, the keys of dispatch
modes among them. A step that ended inside the block took the mode off the stack: the program's next operator would look for a mode that
is not there, and fail. A step that began inside left one on, and would see nothing of what runs after the block.
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
"""Those that a thread has while there is a mode on its stack."""


class InferenceBlocks:
    """Looks after the blocks that end, or have begun, between `attach` and `detach`."""

    def __init__(self) -> None:
        self._replacements = Replacements()

    def attach(self) -> None:
        if is_lost(OPERATORS):
            return
        # PyTorch's own guard too: of a block that began before, `with` kept the method that there was then.
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
    """Has the thread the keys of dispatch modes where there are modes on its stack, and nowhere else, as PyTorch does."""
    has_modes = dispatch_depth() > 0
    for key in _KEYS:
        if is_key_included(key) != has_modes:
            include_key(key, has_modes)
