"""Imported by Python at start under `make sanitize`: loads compiled modules from OPDUMP_SANITIZED_MODULES, in child
processes too.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_PLACES = {"opdump.kernels._native": "", "opdump.interpreter._native": "interpreter"}


class _Sanitized:
    """Finds opdump's compiled modules in the directory of a build, and no others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _PLACES:
            return None
        (file,) = (self._folder / _PLACES[name]).glob("_native.*.so")
        return importlib.util.spec_from_file_location(name, file)


if folder := os.environ.get("OPDUMP_SANITIZED_MODULES"):
    sys.meta_path.insert(0, _Sanitized(Path(folder)))
