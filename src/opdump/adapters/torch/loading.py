"""Prepares parts of PyTorch that are loaded late, such as its compiler, once the program loads them.

    loading = Loading()
    loading.when_there("torch._dynamo", attach)     now, or right after the program's import of it
    loading.forget()

To import the compiler takes a second or more, and most inference programs never do.
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
    """Functions that wait for modules of PyTorch. An error of one that waited goes to `stopped`: the import is the program's."""

    def __init__(self, stopped: Stopped = raised) -> None:
        self._stopped = stopped
        self._forget: list[Callable[[], None]] = []

    def when_there(self, module: str, function: Callable[[], None]) -> None:
        """Calls `function` as soon as that module is there. What its import runs is not recorded."""
        if module in sys.modules:
            function()
        else:
            self._forget.append(after_import(module, lambda _: self._late(function), inside=suspended))

    def _late(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  whatever it is, the program is not to blame
            self._stopped(error)

    def forget(self) -> None:
        """What still waits is not called any more."""
        while self._forget:
            self._forget.pop()()
