"""Replaces functions of other packages for a while, and restores them.

    replacements.replace(nn.Module, "__call__", watched)

    nn.Module.__call__.__wrapped__            the original function
    nn.Module.__call__.__code__.co_name       "_wrapped_call_impl" as in the original, not "watched"
    a frame of it                             has its first argument as `self`

Profilers, debuggers and compilers recognise a function by its code object, and by the names of the code and its arguments. For example,
`torch.profiler` reads `self` in every frame of the code of `nn.Module.__call__`, and crashes if there is none. So a replacement gets the
names of the original.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType, FunctionType, TracebackType
from typing import Any, Final

_ABSENT = object()
_Names = tuple[str, str, str]
"""The name of a code object, its qualified name, and the name of its first argument (empty: not changed)."""

# Renamed code objects are kept until the process ends: a compiler that was told to skip a code object must find the same one in later
# captures.
_RENAMED: Final[dict[tuple[CodeType, str, _Names], CodeType]] = {}
_TOLD: Final[list[Callable[[CodeType], object]]] = []


class Replacements(AbstractContextManager["Replacements"]):
    """A stack of replaced attributes. As a context manager it restores them at its end.

    `restore` does not touch an attribute that another package has replaced since. That function still calls the replacement, which must
    then only call the original.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, replacement: Any) -> None:
        """Set `owner.name`. If `owner` only inherits the attribute, it is deleted at the end.

        A Python function gets the names of the original, and with them a new code object.
        """
        _name_alike(replacement, owner, name)
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT), replacement))
        setattr(owner, name, replacement)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        while self._replaced:
            owner, name, original, replacement = self._replaced.pop()
            if vars(owner).get(name, _ABSENT) is not replacement:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class ReplacingPart(Replacements):
    """A part of a capture whose `attach` replaces functions."""

    def detach(self) -> None:
        self.restore()


def for_each_replacement(tell: Callable[[CodeType], object]) -> None:
    """Call `tell` with the code object of every replacement so far, and of each later one."""
    if tell not in _TOLD:
        _TOLD.append(tell)
    for code in list(_RENAMED.values()):
        tell(code)


def _name_alike(replacement: Any, owner: Any, name: str) -> None:
    function = _function(replacement)
    original = inspect.getattr_static(owner, name, None)
    if not isinstance(function, FunctionType) or original is None:
        return
    original = _function(original)
    if not hasattr(function, "__wrapped__"):
        functools.update_wrapper(function, original)
    code = getattr(original, "__code__", None)
    if isinstance(code, CodeType):
        names = (code.co_name, _qualified(code), code.co_varnames[0] if code.co_argcount else "")
    else:
        is_method = isinstance(owner, type) and function is replacement
        names = (name, getattr(original, "__qualname__", name), "self" if is_method else "")
    function.__code__ = _renamed(function.__code__, names)


def _function(attribute: Any) -> Any:
    return getattr(attribute, "__func__", attribute)


def _qualified(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # since Python 3.11


def _renamed(code: CodeType, names: _Names) -> CodeType:
    key = (code, code.co_filename, names)  # code objects of different files may be equal
    found = _RENAMED.get(key)
    if found is None:
        name, qualified, first = names
        variables = _with_first(code, first)
        if sys.version_info >= (3, 11):
            found = code.replace(co_name=name, co_qualname=qualified, **variables)
        else:
            found = code.replace(co_name=name, **variables)
        _RENAMED[key] = found
        for tell in _TOLD:
            tell(found)
    return found


def _with_first(code: CodeType, first: str) -> dict[str, Any]:
    """The names of variables in which the first argument is called `first`, and no other variable is."""
    if not (first and code.co_argcount):
        return {}
    before = code.co_varnames[0]

    def renamed(names: tuple[str, ...]) -> Iterator[str]:
        for each in names:
            yield first if each == before else f"_{each}" if each == first else each

    # An argument that an inner function reads is in both lists, by the same name.
    return {kind: tuple(renamed(getattr(code, kind))) for kind in ("co_varnames", "co_cellvars", "co_freevars")}
