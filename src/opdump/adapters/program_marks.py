"""The parts of a program that it has marked (`set_dump`), and the names of its models (`name_model`).

A running capture uses the same objects, so a mark takes effect at once.
"""

from __future__ import annotations

import functools
import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NamedTuple

from opdump.records import escaped

_LONGEST_NAME: Final = 255
FunctionKey = tuple[str, int, str]
"""File, first line and name of a function. Code that a compiler made from the function has the same key."""


class MarkError(TypeError, ValueError):
    """Raised if `set_dump` cannot mark its argument, or `name_model` cannot name it."""


class Mark(NamedTuple):
    """A mark, or the removal of one. If several concern an operator, the latest takes effect: it has the highest number."""

    number: int
    enabled: bool


UNMARKED: Final = Mark(-1, False)
"""The mark of something that was never marked or unmarked."""


class ProgramMarks:
    """Marked and unmarked modules (including MindSpore Cells), classes and functions. False in a boolean context if nothing is marked.

    `version` increases with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._modules: dict[int, tuple[weakref.ref[Any], Mark]] = {}
        self._classes: dict[type, Mark] = {}
        self._functions: dict[FunctionKey, tuple[str, dict[int | None, weakref.ref[Any] | None]]] = {}
        """The displayed name of a function, and the objects for which it is marked, by identity; None for all objects."""
        self.function_names: frozenset[str] = frozenset()
        """The names of the marked functions without their modules, which exclude most other functions quickly."""

    def __bool__(self) -> bool:
        return (
            bool(self._functions)
            or any(mark.enabled for _, mark in self._modules.values())
            or any(mark.enabled for mark in self._classes.values())
        )

    def set(self, target: Any, *, enabled: bool) -> Any:
        """Mark or unmark a module, a module class, a function or a method. Returns the object that was marked.

        If `torch.compile`, `functools.partial` or a decorator made `target` from something, that original is marked. A method of a module
        is marked only for that module. Raises MarkError for anything else, and if `enabled` is not a bool.
        """
        if not isinstance(enabled, bool):
            raise MarkError(f"set_dump: enabled is {enabled!r}, expected True or False")
        meant = original_of(target)
        mark = Mark(self.version, enabled)
        if isinstance(meant, MethodType) and isinstance(meant.__func__, FunctionType):
            self._set_function(meant.__func__, meant.__self__, enabled)
        elif isinstance(meant, FunctionType):
            self._set_function(meant, None, enabled)
        elif not (is_module(meant) or is_cell(meant)):
            raise MarkError(
                f"set_dump: {target!r} is not a PyTorch module, a MindSpore Cell, a class of these or a Python function"
            )
        elif isinstance(meant, type):
            self._classes[meant] = mark
        else:
            self._modules[id(meant)] = weakref.ref(meant, functools.partial(_forget, self._modules, id(meant))), mark
        self.version += 1
        return meant

    def of_module(self, module: Any) -> Mark:
        """The latest mark of a module, its class, or a base class."""
        own = self._modules.get(id(module))
        found = UNMARKED if own is None else own[1]
        if self._classes:
            found = max(found, *(self._classes.get(kind, UNMARKED) for kind in type(module).__mro__))
        return found

    def owners_of(self, code: CodeType) -> Mapping[int | None, object] | None:
        """The objects for which the function with this code is marked, by identity; a key None means all objects. None if it is not marked."""
        if code.co_name not in self.function_names:
            return None
        found = self._functions.get(key_of(code))
        return None if found is None else found[1]

    def enabled_targets(self) -> Iterator[tuple[Any, str]]:
        """The marked modules and classes, and the keys of marked functions; each with a displayed name."""
        for reference, mark in list(self._modules.values()):
            module = reference()
            if mark.enabled and module is not None:
                yield module, f"a module {type(module).__name__}"
        for kind, mark in self._classes.items():
            if mark.enabled:
                yield kind, f"the class {kind.__name__}"
        for key, (name, _) in self._functions.items():
            yield key, f"the function {name}"

    def _set_function(self, function: FunctionType, owner: Any, enabled: bool) -> None:
        key = key_of(function.__code__)
        _, owners = self._functions.setdefault(key, (function.__qualname__, {}))
        if enabled:
            forget = functools.partial(self._forget_owner, key, id(owner))
            owners[None if owner is None else id(owner)] = _reference(owner, forget)
        elif owner is None:
            owners.clear()
        else:
            owners.pop(id(owner), None)
        if not owners:
            del self._functions[key]
        self.function_names = frozenset(name for _, _, name in self._functions)

    def _forget_owner(self, key: FunctionKey, owner: int, _: object) -> None:
        """Forget an object that died and whose method was marked, because another object may get its identity."""
        _, owners = self._functions.get(key, ("", {}))
        owners.pop(owner, None)
        if not owners:
            self._functions.pop(key, None)


class ModelNames:
    """The names that a program gave to its models."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._files: dict[str, str] = {}

    def set(self, model: Any, name: str) -> Any:
        """Name a model: a module, a Cell, a Keras model, or the file of an ONNX model. Returns the object that was named.

        Raises MarkError for anything else, and if the name is not a string, is empty or is too long.
        """
        meant = original_of(model)
        is_file = isinstance(meant, str | os.PathLike)
        if not (is_file or is_module(meant) or is_cell(meant) or _is_keras_model(meant)) or isinstance(meant, type):
            raise MarkError(
                f"name_model: {model!r} is not a PyTorch module, a MindSpore Cell, a Keras model or the file of an ONNX model; a tf.function has the name "
                "of its Python function"
            )
        if not name or type(name) is not str:
            raise MarkError(f"name_model: the name is {name!r}, expected a non-empty string")
        if len(escaped(name).encode()) > _LONGEST_NAME:
            raise MarkError(
                f"name_model: the name has more than {_LONGEST_NAME} bytes, the maximum for a directory name: {name[:40]!r}..."
            )
        if is_file:
            self._files[os.path.realpath(meant)] = name
            return meant
        self._names[id(meant)] = (weakref.ref(meant, functools.partial(_forget, self._names, id(meant))), name)
        return meant

    def of_file(self, path: str | os.PathLike[str]) -> str | None:
        return self._files.get(os.path.realpath(path))

    def of(self, module: Any) -> str | None:
        found = self._names.get(id(module))
        return None if found is None else found[1]


def original_of(target: Any) -> Any:
    """The object from which `torch.compile`, `functools.partial` or a decorator made `target`; otherwise `target`."""
    while True:
        if isinstance(target, functools.partial):
            target = target.func
        elif (
            isinstance(target, FunctionType)
            and (inner := getattr(target, "_torchdynamo_orig_callable", None)) is not None
        ):
            target = inner
        elif isinstance(target, FunctionType | MethodType) and hasattr(target, "__wrapped__"):
            target = _bound_as(target, inspect.unwrap(target))
        elif not isinstance(target, type) and "_orig_mod" in getattr(target, "_modules", ()):
            target = target._modules["_orig_mod"]  # the OptimizedModule of torch.compile
        else:
            return target


def key_of(code: CodeType) -> FunctionKey:
    """The key that a function shares with code that was made from it."""
    return code.co_filename, code.co_firstlineno, code.co_name


def is_module(target: Any) -> bool:
    """Whether something is a PyTorch module or a class of modules. Does not import PyTorch."""
    return _is_a("torch.nn.modules.module", "Module", target)


def is_cell(target: Any) -> bool:
    """Whether something is a MindSpore Cell or a class of Cells. Does not import MindSpore."""
    return _is_a("mindspore.nn.cell", "Cell", target)


def _is_a(module: str, name: str, target: Any) -> bool:
    kind = target if isinstance(target, type) else type(target)
    return any(base.__name__ == name and base.__module__ == module for base in kind.__mro__)


def _is_keras_model(target: Any) -> bool:
    return any(
        base.__name__ == "Model" and base.__module__.partition(".")[0] in ("keras", "tf_keras")
        for base in type(target).__mro__
    )


def _bound_as(method: Any, inner: Any) -> Any:
    return (
        MethodType(inner, method.__self__)
        if isinstance(method, MethodType) and isinstance(inner, FunctionType)
        else inner
    )


def _reference(owner: Any, forget: Callable[[object], None]) -> weakref.ref[Any] | None:
    try:
        return None if owner is None else weakref.ref(owner, forget)
    except TypeError:
        return None


def _forget(table: dict[int, Any], key: int, _: object) -> None:
    """Forget a module that died, because another object may get its identity."""
    table.pop(key, None)
