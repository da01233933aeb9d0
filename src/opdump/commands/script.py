"""A user's program, prepared to run in this process as `python train.py` or `python -m package.module` would run it.

    program = load_script("train.py", ("--lr", "0.1"))
    program.execute()

Everything that a script can see of its start is as Python makes it: `sys.argv`, `sys.path[0]`, and a fresh `__main__` module in
`sys.modules`, which its own classes need for pickling, and from which `multiprocessing` derives what a spawned child must import.
The process belongs to the script from then on: `__main__` stays in place after the script ends, for its `atexit` functions.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader
from types import CodeType, ModuleType
from typing import Any


class ProgramNotFoundError(Exception):
    """The given script or module cannot be found or is not Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A compiled program, and the attributes of its `__main__` module."""

    code: CodeType
    module: ModuleType
    argv: tuple[str, ...]
    import_path: str
    source: str = ""
    """Its source text; empty if not available."""

    def execute(self) -> None:
        """Run the program to its end. Everything that it raises passes through, including SystemExit."""
        sys.argv[:] = self.argv
        if not getattr(sys.flags, "safe_path", False):  # with -P there is no entry to replace
            sys.path[0] = self.import_path
        sys.modules["__main__"] = self.module
        exec(self.code, self.module.__dict__)  # noqa: S102  running the user's program is the point


def load_script(path: str, arguments: Sequence[str]) -> Program:
    """Compile the script at `path`. As in Python, a directory stands for its `__main__.py`.

    Raises ProgramNotFoundError if there is no such file, and SyntaxError and ValueError like `compile`.
    """
    filename = os.path.join(os.getcwd(), path)  # not normalised: `python ./train.py` keeps the dot, too
    if os.path.isdir(filename):
        import_path = filename
        filename = os.path.join(filename, "__main__.py")
    else:
        import_path = os.path.dirname(os.path.realpath(filename))
    try:
        with io.open_code(filename) as file:
            source = file.read()
    except OSError as error:
        raise ProgramNotFoundError(
            f"cannot open the script '{path}': {error.strerror}. A module is run with: opdump run -m NAME"
        ) from error
    if b"\0" in source:
        raise ProgramNotFoundError(f"'{path}' is not Python source: it contains null bytes")
    loader = importlib.machinery.SourceFileLoader("__main__", filename)
    return Program(
        code=compile(source, filename, "exec", dont_inherit=True),
        module=_main_module(__file__=filename, __loader__=loader, __spec__=None, __package__=None, __cached__=None),
        argv=(path, *arguments),
        import_path=import_path,
        source=importlib.util.decode_source(source),
    )


def load_module(name: str, arguments: Sequence[str]) -> Program:
    """Find and compile the module `name`, or `name.__main__` if `name` is a package, as `python -m` does.

    Parent packages are imported. Raises ProgramNotFoundError if there is no such module.
    """
    import_path = os.getcwd()
    before = sys.path[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = import_path  # the current directory comes first in the search for the module
    try:
        spec = _find(name)
        if spec.submodule_search_locations is not None:
            spec = _find(f"{name}.__main__")
    except ProgramNotFoundError:
        sys.path[0] = before
        raise
    loader = spec.loader
    code = loader.get_code(spec.name) if isinstance(loader, InspectLoader) else None
    if code is None or loader is None:
        raise ProgramNotFoundError(f"the module '{name}' has no Python code ({spec.origin})")
    origin = spec.origin or name
    return Program(
        code=code,
        module=_main_module(
            __file__=origin, __loader__=loader, __spec__=spec, __package__=spec.parent, __cached__=spec.cached
        ),
        argv=(origin, *arguments),
        import_path=import_path,
        source=(loader.get_source(spec.name) or "") if isinstance(loader, InspectLoader) else "",
    )


def _find(name: str) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:  # a parent is missing, is not a package, or has no spec
        raise ProgramNotFoundError(f"no module named '{name}': {error}") from error
    if spec is None:
        hint = f"; to run the file: opdump run {name}" if name.endswith(".py") else ""
        raise ProgramNotFoundError(f"no module named '{name}' from {os.getcwd()}{hint}")
    return spec


def _main_module(**attributes: Any) -> ModuleType:
    module = ModuleType("__main__")
    module.__dict__.update(attributes, __builtins__=builtins, __annotations__={})
    return module
