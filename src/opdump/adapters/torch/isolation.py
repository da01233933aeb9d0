"""Keeps the capture unseen: by function modes and tensor subclasses of the program, by its recursion limit, and by dynamo."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, ParamSpec, TypeVar

import torch

from opdump.adapters.replacements import for_each_replacement
from opdump.adapters.torch.private_names import (
    dispatch_depth,
    never_compiled,
    no_function_modes,
    without_keys,
    without_modes,
    without_transforms,
)

# Hides opdump's own tensor calls from function modes and tensor subclasses of the program.
#
# PyTorch calls `__torch_function__` of the program's modes and tensor subclasses for every tensor property that Python
# reads and every function that it calls. What opdump does between the program's own calls runs inside `with hidden_from_torch_modes():`,
# for example `tensor.shape`, `tensor.untyped_storage()` and `parameter.requires_grad`.
#
# User code must not run inside it. `never_seen` applies it to a whole function. `no_active_modes()` is for work on the program's
# device: it switches off everything that the program has switched on.

Given = ParamSpec("Given")
Result = TypeVar("Result")

hidden_from_torch_modes = no_function_modes
# The dispatch keys of autograd (backward and forward mode), version counters and autocast.
_without_kernels = without_keys(("Autograd", "Autocast"), "ADInplaceOrView")


def never_seen(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: run the function inside `hidden_from_torch_modes()`."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with hidden_from_torch_modes():
            return function(*args, **kwargs)

    return inside


@contextmanager
def no_active_modes() -> Iterator[None]:
    """Deactivate the program's modes in this thread inside the block.

    These are inference mode, whose tensors cannot be written later; dispatch modes and function modes, including a default
    device; autograd, forward-mode differentiation and autocast; `vmap` and other transforms. The default dtype remains, so
    pass dtypes explicitly.
    """
    with ExitStack() as stack:
        stack.enter_context(no_function_modes())
        if dispatch_depth():
            stack.enter_context(without_modes())
        stack.enter_context(without_transforms())
        # Before the dispatch keys, because it resets them.
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(_without_kernels())
        yield


_OWN_CALLS: Final = 500
"""More than the depth of the capture's calls: up to 200 beside an operator, and one or two for each of nested modules."""


class HigherRecursionLimit:
    """Raises the program's recursion limit by the depth of the capture's calls, until `restore`."""

    def __init__(self) -> None:
        self._program = sys.getrecursionlimit()
        self._raised = self._program + _OWN_CALLS
        sys.setrecursionlimit(self._raised)

    def restore(self) -> None:
        """Restore the limit, unless the program has set another one."""
        if sys.getrecursionlimit() == self._raised:
            with suppress(
                RecursionError
            ):  # the stack is too deep for the program's limit, which the program has not noticed
                sys.setrecursionlimit(self._program)


# Keeps dynamo from compiling opdump's own Python frames.
#
# In the parts of a compiled function that run eagerly, dynamo inspects every new frame and compiles it if it can: the handler of a
# dispatch mode, an optimizer hook, the code that writes a step. That would be slow, and wrong: code that reads the stack of dispatch modes
# sees another stack while it is traced.
#
# `torch.compiler.disable` would wrap each function in Python, which costs about one microsecond per call. Instead, each code object carries
# the decision, which costs nothing. Functions that dynamo meets while it traces a caller are not affected: it still inlines them.


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
