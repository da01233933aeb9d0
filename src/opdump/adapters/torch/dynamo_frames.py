"""Keeps dynamo from compiling opdump's own Python frames.

In the parts of a compiled function that run eagerly, dynamo inspects every new frame and compiles it if it can: the handler of a
dispatch mode, an optimizer hook, the code that writes a step. That would be slow, and wrong: code that reads the stack of dispatch modes
sees another stack while it is traced.

`torch.compiler.disable` would wrap each function in Python, which costs about one microsecond per call. Instead, each code object carries
the decision, which costs nothing. Functions that dynamo meets while it traces a caller are not affected: it still inlines them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from opdump.adapters.replacements import for_each_replacement
from opdump.adapters.torch.private_names import never_compiled


def never_compile(code: CodeType) -> None:
    """Run frames of `code`, and everything that they call, as plain Python."""
    never_compiled(code, everything_below=True)


def never_compile_package(name: str) -> None:
    """Run the frames of every function in the package's loaded modules as plain Python, but not the other functions that they call.

    They also call the user's program (a module's forward, a closure), which dynamo must compile as it would without them.
    """
    for module_name, module in list(sys.modules.items()):
        # An entry may not be a module, such as the None that blocks an import.
        if f"{module_name}.".startswith(f"{name}.") and isinstance(module, ModuleType):
            for code in _codes_of(module):
                _never_compile_itself(code)
    for_each_replacement(_never_compile_itself)


def _never_compile_itself(code: CodeType) -> None:
    never_compiled(code, everything_below=False)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            for function in _functions_of(member):
                # The handler of a mode already has the stricter setting (`never_compile`).
                if function.__module__ == module.__name__ and function.__name__ != "__torch_dispatch__":
                    yield from _with_nested(function.__code__)


def _functions_of(member: Any) -> Iterator[FunctionType]:
    parts = (member.fget, member.fset) if isinstance(member, property) else (getattr(member, "__func__", member),)
    for part in parts:
        if isinstance(part, FunctionType):
            function = inspect.unwrap(part)
            if isinstance(function, FunctionType):
                yield function


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)
