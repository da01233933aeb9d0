"""Keeps the capture unseen: by function modes and tensor subclasses of the program, by its recursion limit, and by dynamo."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import CodeType, FunctionType, ModuleType
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

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
# reads and every function that it calls. What opdump does between the program's own calls runs inside `with unseen():`,
# for example `tensor.shape`, `tensor.untyped_storage()` and `parameter.requires_grad`.
#
# User code must not run inside it. `never_seen` applies it to a whole function. `apart()` is for work on the program's
# device: it switches off everything that the program has switched on.

Given = ParamSpec("Given")
Result = TypeVar("Result")

unseen = no_function_modes
# The dispatch keys of autograd (backward and forward mode), version counters and autocast.
_without_kernels = without_keys(("Autograd", "Autocast"), "ADInplaceOrView")


def never_seen(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorator: run the function inside `unseen()`."""

    @wraps(function)
    def inside(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with unseen():
            return function(*args, **kwargs)

    return inside


@contextmanager
def apart() -> Iterator[None]:
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


# Keeps the capture's own calls from counting towards the program's recursion limit (`sys.setrecursionlimit`).
#
# A program may run an operator close to the limit, and may rely on the RecursionError there. So the limit is raised by the depth of the
# capture's calls while they run.

BESIDE_AN_OPERATOR: Final = 200
"""The maximum depth of the capture's calls, including writing a step with its graphs."""
NESTED: Final = 24
"""The depth of nested modules from which their calls are compensated for; fewer are negligible compared with the limit."""


class CallDepth:
    """How much the interpreter's recursion limit is raised. All threads share the limit, so their amounts add up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added = 0
        self._program = self._set = sys.getrecursionlimit()
        """The program's limit, and the limit that we set last. If the limit found differs from `_set`, the program has changed it."""

    def add(self, calls: int) -> None:
        """Raise the limit by `calls`. If the program itself has no call left, raises RecursionError and adds nothing."""
        with self._lock:
            found = sys.getrecursionlimit()
            if found != self._set:
                self._program = found
            wanted = self._program + self._added + calls
            # Before the call below: Ctrl-C may come in between.
            before, self._set = self._set, wanted
            try:
                sys.setrecursionlimit(wanted)
            except RecursionError:
                self._set = before
                raise
            self._added += calls

    def remove(self, calls: int) -> None:
        """Lower the limit by `calls`. If the current stack is too deep for that, the limit stays until the next call."""
        with self._lock:
            self._added = max(0, self._added - calls)  # `close` may have reset it
            self._restore()

    def close(self) -> None:
        """Restore the program's limit. With a new lock: in a forked process, the old one may be held by a thread that does not exist."""
        self._lock = threading.Lock()
        self._added = 0
        self._restore()

    def _restore(self) -> None:
        found = sys.getrecursionlimit()
        if found != self._set:
            self._program = self._set = found  # the program has set its own limit
            return
        wanted = self._program + self._added
        try:
            sys.setrecursionlimit(wanted)
        except RecursionError:
            return
        self._set = wanted


class _HasDepth(Protocol):
    @property
    def depth(self) -> CallDepth: ...


_Part = TypeVar("_Part", bound=_HasDepth)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def deeper(method: Callable[Concatenate[_Part, _Given], _Result]) -> Callable[Concatenate[_Part, _Given], _Result]:
    """Decorate a method of the capture so that its calls do not count towards the program's recursion limit."""

    @functools.wraps(method)
    def call(part: _Part, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        part.depth.add(BESIDE_AN_OPERATOR)
        try:
            return method(part, *args, **kwargs)
        finally:
            part.depth.remove(BESIDE_AN_OPERATOR)

    return call


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
