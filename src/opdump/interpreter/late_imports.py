"""Imports of opdump's own modules: on first use, so that a package itself is quick to import, and without garbage collection.

    __getattr__ = late_names(__name__, {".reading": ("read_dump_file",), ...})

It imports little itself: importing `importlib.abc` takes longer than all of this.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

# Imports the names of a package on first use, so that the package itself is quick to import.
# `opdump show` needs one file of a package, but Python imports the package with it.


def late_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `homes` maps modules, written as in a relative import, to the names that they define.

    No module may have the same name as something in it: Python sets an imported module as an attribute of the package.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def imported(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

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
