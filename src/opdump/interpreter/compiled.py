"""What of this package is compiled (native/audit.cpp, native/frames.cpp, native/interrupts.cpp); apart from the kernels, for a Python that starts loads no numpy."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def compiled() -> ModuleType | None:
    """The compiled module; None where opdump was installed without a C++ compiler."""
    try:
        return import_module("opdump.interpreter._native")
    except ImportError:
        return None
