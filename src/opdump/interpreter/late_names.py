"""Names of a package that are imported when somebody asks for them, so that the package itself is light to import.

    __getattr__ = late_names(__name__, {".reading": ("read_dump_file",), ...})

`opdump show` needs one file of a package, and Python imports the package with it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def late_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are those of modules, by these as a relative import has them.

    No module may have the name of what it holds: Python puts a module that was imported in the place of such a name.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def imported(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name], package), name)
        setattr(sys.modules[package], name, value)
        return value

    return imported
