"""Attaches an adapter to a framework that the program may not have imported yet. An import by opdump could change what the program does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

from opdump.interpreter.first_import import after_import


class Attached(Protocol):
    """Observes a framework after its import."""

    def open(self) -> None: ...
    def close(self) -> None: ...


_Attached = TypeVar("_Attached", bound=Attached)


@contextmanager
def open_once_imported(framework: str, attached: _Attached) -> Iterator[_Attached]:
    """Open `attached` at once if the framework is imported, otherwise when the program imports it in the block. Always close it at the end."""
    with ExitStack() as stack:
        stack.callback(attached.close)
        if framework in sys.modules:
            attached.open()
        else:
            stack.callback(after_import(framework, lambda _: attached.open()))
        yield attached
