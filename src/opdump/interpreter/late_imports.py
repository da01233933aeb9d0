"""Imports of opdump's own modules: on first use, so that a package itself is quick to import, and without garbage collection.

    __getattr__ = late_names(__name__, ".stored_bytes", ".dump_file", ".reading")

It imports little itself: importing `importlib.abc` takes longer than all of this.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Imports the names of a package on first use, so that the package itself is quick to import.
# `opdump show` needs one file of a package, but Python imports the package with it.


def late_names(package: str, *modules: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package for the names in its `__all__`, which the first of `modules` that has them provides.

    Modules are written as in a relative import. Each imports those before it that it needs, so that looking there first costs nothing. No module may
    have the same name as something in it: Python sets an imported module as an attribute of the package.
    """

    def imported(name: str) -> Any:
        if name in sys.modules[package].__all__:
            for module in modules:
                home = importlib.import_module(module, package)
                if hasattr(home, name):
                    setattr(sys.modules[package], name, getattr(home, name))
                    return getattr(home, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return imported


# Imports without garbage collection, for short commands.


@contextmanager
def imported_for_good(module: str) -> Iterator[None]:
    """Import `module` in the block without garbage collection, and exclude its objects from later collections.

    Imports create many objects and no garbage. Collecting during imports takes a tenth of the start-up time, and collecting at the end of the program
    as much again. Do nothing if `module` was imported before.
    """
    if module in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
