"""Records operators in callbacks of futures. These often run in a PyTorch thread, where no mode is on.

    dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0].div_(2))

Communication hooks of DistributedDataParallel end in such a callback, and so do RPC replies. The callback is captured like a thread that
the program starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.mode_stack import RecordingMode, is_on


class FutureCallbacks:
    """From `attach` to `detach`, makes callbacks of futures run inside `enter()`, unless `mode` is already on in their thread."""

    def __init__(self, mode: RecordingMode, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        self._mode = mode
        self._enter = enter
        self._replacements = Replacements()

    def attach(self) -> None:
        future: Any = torch.Future
        for name in ("then", "add_done_callback"):
            self._replacements.replace(future, name, self._with_callback_inside(getattr(future, name)))

    def detach(self) -> None:
        self._replacements.restore()

    def _with_callback_inside(self, register: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def registering(future: Any, callback: Any) -> Any:
            return register(future, self._inside(callback) if callable(callback) else callback)

        return registering

    def _inside(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        here = threading.get_ident()

        def run(future: Any) -> Any:
            # In the thread that registered it, the callback is recorded exactly if that thread records.
            if self._mode.closed or threading.get_ident() == here or is_on(self._mode):
                return callback(future)
            with self._enter():
                return callback(future)

        return run
