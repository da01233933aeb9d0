"""Waits for the program to import a module, so that opdump need not import a framework itself.

wait_for(("torch", "tensorflow"), before=check, after=begin)
import torch                             check("torch"), the import itself, begin("torch")
stand_down()                             nobody of `wait_for` is called any more

forget = after_import("tensorflow", prepare)
import tensorflow                        the import itself, prepare(tensorflow), once; forget() takes it back
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Call = Callable[[str], object]
Function = Callable[[ModuleType], object]
Context = Callable[[], AbstractContextManager[object]]


class _Finder(MetaPathFinder):
    """Finds modules as usual, and is called by their loader before and after its work."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self.waits = True
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            self.looked_for(fullname)
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        # To look for a module is not to import it, so nobody is called yet.
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self)
        return spec

    def take_out(self) -> None:
        """Nobody is called any more, not even by a module that is being imported."""
        self.waits = False
        sys.meta_path.remove(self)

    def looked_for(self, name: str) -> None:
        """Somebody looks for the module, which may be what puts it there."""

    def imports(self, module: ModuleType) -> AbstractContextManager[object]:
        """The module is about to be imported, inside of what this gives."""
        return nullcontext()

    def is_there(self, module: ModuleType) -> None:
        """The module was imported."""


class _Telling(Loader):
    """Wraps a loader, and calls a finder before and after its work."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        with self._finder.imports(module) if self._finder.waits else nullcontext():
            self._loader.exec_module(module)
        if self._finder.waits:
            self._finder.is_there(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _FirstImport(_Finder):
    """The calls that wait for one of several modules."""

    def __init__(self, names: Sequence[str], before: Call, after: Call, sought: Call | None) -> None:
        super().__init__(names)
        self._before = before
        self._after = after
        self._sought = sought

    def looked_for(self, name: str) -> None:
        if self._sought is not None:
            self._sought(name)

    def imports(self, module: ModuleType) -> AbstractContextManager[object]:
        self._before(module.__name__)
        return nullcontext()

    def is_there(self, module: ModuleType) -> None:
        self._after(module.__name__)


class _Function(_Finder):
    """A function that waits for one module, and is called once."""

    def __init__(self, name: str, function: Function, inside: Context) -> None:
        super().__init__((name,))
        self.name = name
        self._function = function
        self._inside = inside

    def imports(self, module: ModuleType) -> AbstractContextManager[object]:
        return self._inside()

    def is_there(self, module: ModuleType) -> None:
        self.take_out()
        self._function(module)


def wait_for(names: Sequence[str], *, before: Call, after: Call, to_be_found: Call | None = None) -> None:
    """Calls `before` and `after` around each import of one of `names`, by its name, until `stand_down`.

    `to_be_found` is called when somebody looks for one of them, which may be what puts it there. Errors of all come out of the
    import; one of `before` keeps the module from being imported.
    """
    sys.meta_path.insert(0, _FirstImport(names, before, after, to_be_found))


def waits() -> bool:
    """Whether any call of `wait_for` is in force."""
    return any(isinstance(each, _FirstImport) for each in sys.meta_path)


def stand_down() -> None:
    """Cancels every `wait_for`."""
    for finder in [each for each in sys.meta_path if isinstance(each, _FirstImport)]:
        finder.take_out()


def after_import(name: str, function: Function, *, inside: Context = nullcontext) -> Callable[[], None]:
    """Calls `function` with the module `name` once it was imported, and never again. Errors of it come out of the import.

    The import itself runs inside of `inside()`. What it returns takes all of that back.
    """
    finder = _Function(name, function, inside)
    sys.meta_path.insert(0, finder)

    def forget() -> None:
        if finder in sys.meta_path:
            finder.take_out()

    return forget


def forget_import(name: str) -> None:
    """Cancels an `after_import`."""
    for finder in [each for each in sys.meta_path if isinstance(each, _Function) and each.name == name]:
        finder.take_out()


def functions_waiting(name: str) -> int:
    """How many functions wait for this module."""
    return sum(isinstance(each, _Function) and each.name == name for each in sys.meta_path)
