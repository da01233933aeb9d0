"""The compiled part of this package (native/audit.cpp, frames.cpp, interrupts.cpp). It is separate from the kernels, so that no numpy is loaded at
start.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def compiled() -> ModuleType | None:
    """Return the compiled module, or None if opdump was installed without a C++ compiler."""
    try:
        return import_module("opdump.interpreter._native")
    except ImportError:
        return None
