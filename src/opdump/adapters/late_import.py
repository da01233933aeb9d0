"""Attaches an adapter to a framework that the program may not have imported yet: to import it for the program would change what that sees."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

from opdump.interpreter.first_import import after_import


class Attached(Protocol):
    """What looks at a framework once it is there."""

    def open(self) -> None: ...
    def close(self) -> None: ...


_Attached = TypeVar("_Attached", bound=Attached)


@contextmanager
def open_once_imported(framework: str, attached: _Attached) -> Iterator[_Attached]:
    """Opens `attached` now, or when the program imports the framework while the block runs; closes it at the end in any case."""
    with ExitStack() as stack:
        stack.callback(attached.close)
        if framework in sys.modules:
            attached.open()
        else:
            stack.callback(after_import(framework, lambda _: attached.open()))
        yield attached
