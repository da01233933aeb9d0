"""Calls a function when the program imports a module: a program that imports tensorflow late is not made to import it early."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Finder(MetaPathFinder):
    """Finds one module as everybody does, and has its loader call the functions when the module is there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.functions: list[Callable[[ModuleType], object]] = []
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Calling(spec.loader, self)
        return spec


class _Calling(Loader):
    """A loader that calls the functions behind another loader's work."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        functions = list(self._finder.functions)
        forget_import(self._finder.name)
        for function in functions:
            function(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def after_import(name: str, function: Callable[[ModuleType], object]) -> None:
    """Calls `function` with the module `name` once it was imported. Errors of it come out of the import."""
    finder = _finder(name)
    if finder is None:
        finder = _Finder(name)
        sys.meta_path.insert(0, finder)
    finder.functions.append(function)


def forget_import(name: str) -> None:
    """Calls nobody any more."""
    finder = _finder(name)
    if finder is not None:
        sys.meta_path.remove(finder)


def _finder(name: str) -> _Finder | None:
    return next((each for each in sys.meta_path if isinstance(each, _Finder) and each.name == name), None)
