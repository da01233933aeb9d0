"""Imports the names of a package on first use, so that the package itself is quick to import.

    __getattr__ = late_names(__name__, {".reading": ("read_dump_file",), ...})

`opdump show` needs one file of a package, but Python imports the package with it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


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
