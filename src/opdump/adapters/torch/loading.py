"""Patches parts of PyTorch that are imported late, such as its compiler, once the program imports them.

    loading = Loading()
    loading.when_there("torch._dynamo", attach)     now, or right after the program imports it
    loading.forget()

Importing the compiler takes a second or more, and most inference programs never do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from opdump.adapters.torch.mode_stack import suspended
from opdump.interpreter.first_import import after_import

Stopped = Callable[[Exception], None]


def raised(error: Exception) -> None:
    raise error


class Loading:
    """Functions to call when modules of PyTorch are imported. Errors of late calls go to `stopped`, not to the importing program."""

    def __init__(self, stopped: Stopped = raised) -> None:
        self._stopped = stopped
        self._forget: list[Callable[[], None]] = []

    def when_there(self, module: str, function: Callable[[], None]) -> None:
        """Call `function` as soon as `module` is imported. Operators that the import runs are not recorded."""
        if module in sys.modules:
            function()
        else:
            self._forget.append(after_import(module, lambda _: self._late(function), inside=suspended))

    def _late(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  whatever the error is, it is not the program's
            self._stopped(error)

    def forget(self) -> None:
        """Drop the functions that are still waiting."""
        while self._forget:
            self._forget.pop()()
