"""Imports of the program: waits for the first import of a module, and registers packages of opdump under a second name.

wait_for(("torch", "tensorflow"), before=check, after=begin)
import torch                             check("torch"), the import itself, begin("torch")
stand_down()                             ends all calls of `wait_for`

forget = after_import("tensorflow", prepare)
import tensorflow                        the import itself, prepare(tensorflow), once; forget() cancels it
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Waits for the program to import a module, so that opdump need not import a framework itself.

Call = Callable[[str], object]
Function = Callable[[ModuleType], object]
Context = Callable[[], AbstractContextManager[object]]


class _Finder(MetaPathFinder):
    """Finds modules as usual and calls functions: `sought` when one of `names` is searched for, which may make it available; `imports` for the
    context in which it is imported; `is_there` after its import. `is_first`: created by `wait_for`.
    """

    def __init__(
        self,
        names: Sequence[str],
        imports: Callable[[ModuleType], AbstractContextManager[object]],
        is_there: Function,
        sought: Call | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        self.names = frozenset(names)
        self.imports = imports
        self.is_there = is_there
        self.is_first = is_first
        self.waits = True
        self._sought = sought
        self._looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.names or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            if self._sought is not None:
                self._sought(fullname)
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        # Searching for a module does not import it, so the other functions are not called yet.
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self)
        return spec

    def take_out(self) -> None:
        """Stop all calls, even for a module that is being imported."""
        self.waits = False
        sys.meta_path.remove(self)


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


def wait_for(names: Sequence[str], *, before: Call, after: Call, to_be_found: Call | None = None) -> None:
    """Call `before` and `after` with the name around each import of one of `names`, until `stand_down`.

    `to_be_found` is called when one of them is searched for, and may make it available. Errors of all three functions are raised by the import; an
    error of `before` prevents the import.
    """

    def imports(module: ModuleType) -> AbstractContextManager[object]:
        before(module.__name__)
        return nullcontext()

    finder = _Finder(names, imports, lambda module: after(module.__name__), to_be_found, is_first=True)
    sys.meta_path.insert(0, finder)


def waits() -> bool:
    """Return whether a `wait_for` is in effect."""
    return any(each.is_first for each in _finders())


def stand_down() -> None:
    for finder in _finders():
        if finder.is_first:
            finder.take_out()


def after_import(name: str, function: Function, *, inside: Context = nullcontext) -> Callable[[], None]:
    """Call `function` with the module `name` once after its import. Its errors are raised by the import.

    The import itself runs inside of `inside()`. The returned function cancels everything.
    """

    def call_once(module: ModuleType) -> None:
        finder.take_out()
        function(module)

    finder = _Finder((name,), lambda _: inside(), call_once)
    sys.meta_path.insert(0, finder)

    def forget() -> None:
        if finder in sys.meta_path:
            finder.take_out()

    return forget


def forget_import(name: str) -> None:
    for finder in _finders_of(name):
        finder.take_out()


def functions_waiting(name: str) -> int:
    return len(_finders_of(name))


def _finders() -> list[_Finder]:
    return [each for each in sys.meta_path if isinstance(each, _Finder)]


def _finders_of(name: str) -> list[_Finder]:
    """Return the finders of `after_import` for this module."""
    return [each for each in _finders() if not each.is_first and name in each.names]


# Gives a package of opdump a second name: `import npu_bridge` imports `opdump.npu_bridge` if there is no other npu_bridge.
#
# Modules keep their own names and are the same objects under both, so that each class exists once. Another package with that name that can be
# imported is never hidden, even if it becomes importable later.


def add_alias(alias: str, package: str) -> bool:
    """Make `import alias` and imports of its modules return those of `package`. A second call changes nothing.

    If there is another package with that name, warn, change nothing, and return False.
    """
    finder = _AliasFinder(alias, package)
    if sys.modules.get(alias) is not sys.modules.get(package) and (alias in sys.modules or finder.finds_another()):
        warnings.warn(
            f"there is a package {alias} in this environment, and `import {alias}` still imports it; "
            f"import {package}... by that name, or run without {alias} installed",
            stacklevel=3,
        )
        return False
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)  # first, because other finders would load the files again under the second name
    return True


def remove_alias(alias: str, package: str) -> None:
    """Undo `add_alias`. Names that were imported keep their objects."""
    finder = _AliasFinder(alias, package)
    while finder in sys.meta_path:
        sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name == alias or name.startswith(f"{alias}.")]:
        if sys.modules[name] is sys.modules.get(package + name[len(alias) :]):
            del sys.modules[name]


def has_alias(alias: str, package: str) -> bool:
    """Return whether `add_alias` is in effect."""
    return _AliasFinder(alias, package) in sys.meta_path


@dataclass(frozen=True)
class _AliasFinder(MetaPathFinder):
    """Finds `alias` and its modules as modules of `package`."""

    alias: str
    package: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.alias:
            if self.finds_another():
                return None
        elif not fullname.startswith(f"{self.alias}."):
            return None
        elif sys.modules.get(self.alias) is not sys.modules.get(self.package):
            return None  # a module of another package with that name
        own = self.package + fullname[len(self.alias) :]
        return None if importlib.util.find_spec(own) is None else ModuleSpec(fullname, _AliasLoader(own))

    def finds_another(self) -> bool:
        others = (each for each in sys.meta_path if not isinstance(each, _AliasFinder))
        return any(each.find_spec(self.alias, None) is not None for each in others)


class _AliasLoader(Loader):
    """Returns a module that is already imported under its own name."""

    def __init__(self, own: str) -> None:
        self.own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.own)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has replaced it by that of the second name
