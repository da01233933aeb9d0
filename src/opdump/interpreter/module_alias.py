"""Gives a package of opdump a second name: `import npu_bridge` imports `opdump.npu_bridge` if there is no other npu_bridge.

Modules keep their own names and are the same objects under both, so that each class exists once. Another package with that name that can be
imported is never hidden, even if it becomes importable later.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def add_alias(alias: str, package: str) -> bool:
    """Make `import alias` and imports of its modules return those of `package`. A second call changes nothing.

    If there is another package with that name, warn, leave it as it is, and return False.
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
