"""The frameworks that can be captured, by the names of their packages, and whether a program uses one."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from opdump.extensions import Registry

if TYPE_CHECKING:
    from opdump.adapters.base import Adapter

FRAMEWORKS: Final[Registry[Adapter]] = Registry(
    "opdump.adapters",
    {
        "torch": "opdump.adapters.torch.adapter:ADAPTER",
        "tensorflow": "opdump.adapters.tensorflow.adapter:ADAPTER",
        "jax": "opdump.adapters.jax.adapter:ADAPTER",
        "mindspore": "opdump.adapters.mindspore.adapter:ADAPTER",
        "onnxruntime": "opdump.adapters.onnxruntime.adapter:ADAPTER",
    },
)
"""Loading an adapter may import its framework."""
BESIDE: Final = ("onnxruntime",)
"""Frameworks that are also captured beside another one, if the program imports them."""


# Whether a program uses a framework. That the framework is imported proves nothing: opdump may have imported it.

# The top-level modules that do not count as the program's.
_PART_OF: Final = {
    "torch": frozenset({"torch", "functorch", "torchgen", "triton", "_remote_module_non_scriptable", "opdump"}),
    "tensorflow": frozenset({"tensorflow", "keras", "tensorboard", "opdump"}),
    "onnxruntime": frozenset({"onnxruntime", "onnx", "opdump"}),
}
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_LARGEST_SOURCE: Final = 2**20


def is_used_by_program(framework: str) -> bool:
    """Whether a module outside of the framework contains something of it, or a file of the program imports it.

    In doubt, returns True, because the caller otherwise reports to the user that the framework is not used.
    """
    loaded = sys.modules.get(framework)
    if loaded is None:
        return False
    without = {framework, "opdump"}.union(sys.stdlib_module_names, *_PART_OF.values())
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] not in without]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated objects, which warn when they are looked at
        return any(_holds(module, loaded, framework) or _imports(module, framework) for module in modules)


def _holds(module: ModuleType | None, loaded: ModuleType, framework: str) -> bool:
    for value in list(getattr(module, "__dict__", {}).values()):
        if value is loaded:
            return True
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(home, str) and home.startswith(f"{framework}."):
            return True
    return False


def _imports(module: ModuleType | None, framework: str) -> bool:
    """Whether the source of a module of the program imports the framework, also inside a function."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            text = source.read(_LARGEST_SOURCE)
    except OSError:
        return True
    return re.search(rf"\b(?:import|from)\s+{framework}\b|import_module\(|__import__\(", text) is not None
