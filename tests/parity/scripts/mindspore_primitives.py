"""Checks which operators MindSpore has: mindspore_primitives.py NAME...; prints the names that neither its Python code nor its libraries contain."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import mindspore
from mindspore.ops.primitive import Primitive

NO_MODULES = ("mindspore.ops._op_impl",)  # kernel compilers that need a device


def main(names: set[str]) -> None:
    missing = names - set(of_python())
    for library in sorted(Path(mindspore.__file__).parent.rglob("*.so*")):
        # Compiler passes create operators that the Python code does not contain.
        held = library.read_bytes() if missing else b""
        missing -= {name for name in missing if re.search(rb"(?<![\w])" + name.encode() + rb"(?![\w])", held)}
    print("missing", *sorted(missing))


def of_python() -> Iterator[str]:
    for info in pkgutil.walk_packages(mindspore.ops.__path__, "mindspore.ops."):
        if not info.name.startswith(NO_MODULES):
            module = importlib.import_module(info.name)
            yield from (
                name for name, each in vars(module).items() if inspect.isclass(each) and issubclass(each, Primitive)
            )


if __name__ == "__main__":
    main(set(sys.argv[1:]))
