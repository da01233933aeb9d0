"""What a program says of its own parts: which of them are marked (`set_dump`), and what its models are called (`name_model`).

A capture that runs looks at the same objects, so that a mark counts from the moment when it is made.
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
"""A function by its file, its first line and its name: code that a compiler made of it has the same."""


class MarkError(TypeError, ValueError):
    """`set_dump` was given something that it cannot mark, or `name_model` something that it cannot name."""


class Mark(NamedTuple):
    """A mark or its opposite; of several that concern an operator the latest decides, as it has the highest number."""

    number: int
    enabled: bool


UNMARKED: Final = Mark(-1, False)
"""What nobody has spoken of."""


class ProgramMarks:
    """Marked and unmarked modules (Cells of MindSpore among them), classes and functions. False in a boolean context while nothing is marked.

    `version` grows with each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._modules: dict[int, tuple[weakref.ref[Any], Mark]] = {}
        self._classes: dict[type, Mark] = {}
        self._functions: dict[FunctionKey, tuple[str, dict[int | None, weakref.ref[Any] | None]]] = {}
        """A function's name to be shown, and the objects that it is marked for; None for every one."""
        self.function_names: frozenset[str] = frozenset()
        """Names of the marked functions without their modules: most functions are told apart by that."""

    def __bool__(self) -> bool:
        return (
            bool(self._functions)
            or any(mark.enabled for _, mark in self._modules.values())
            or any(mark.enabled for mark in self._classes.values())
        )

    def set(self, target: Any, *, enabled: bool) -> Any:
        """Marks or unmarks a module, a module class, a function or a method; what was meant by it.

        What `torch.compile`, `functools.partial` or a decorator made of something means the thing itself; a method of a module means
        the method of that module. Raises MarkError for anything else, and for an `enabled` that is no bool.
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
                f"set_dump: {target!r} is no PyTorch module, MindSpore Cell, class of these or Python function"
            )
        elif isinstance(meant, type):
            self._classes[meant] = mark
        else:
            self._modules[id(meant)] = weakref.ref(meant, functools.partial(_forget, self._modules, id(meant))), mark
        self.version += 1
        return meant

    def of_module(self, module: Any) -> Mark:
        """The latest mark of a module, of its class, or of a class that this derives from."""
        own = self._modules.get(id(module))
        found = UNMARKED if own is None else own[1]
        if self._classes:
            found = max(found, *(self._classes.get(kind, UNMARKED) for kind in type(module).__mro__))
        return found

    def owners_of(self, code: CodeType) -> Mapping[int | None, object] | None:
        """The objects whose function with this code is marked, by identity; None among them for every one."""
        if code.co_name not in self.function_names:
            return None
        found = self._functions.get(key_of(code))
        return None if found is None else found[1]

    def enabled_targets(self) -> Iterator[tuple[Any, str]]:
        """What is marked: modules and classes themselves, functions by their key; each with a name to be shown."""
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
        """An object died whose method was marked: the next one may get its identity."""
        _, owners = self._functions.get(key, ("", {}))
        owners.pop(owner, None)
        if not owners:
            self._functions.pop(key, None)


class ModelNames:
    """Names that a program gave to its models."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._files: dict[str, str] = {}

    def set(self, model: Any, name: str) -> Any:
        """Gives a model a name; what was meant by `model`: a module, a Cell, a Keras model, or the file of an ONNX model.

        Raises MarkError for anything else, and for a name that is no text or empty.
        """
        meant = original_of(model)
        is_file = isinstance(meant, str | os.PathLike)
        if not (is_file or is_module(meant) or is_cell(meant) or _is_keras_model(meant)) or isinstance(meant, type):
            raise MarkError(
                f"name_model: {model!r} is no PyTorch module, no MindSpore Cell, no Keras model and no file of an ONNX model; a tf.function has the name "
                "of its Python function"
            )
        if not name or type(name) is not str:
            raise MarkError(f"name_model: the name is {name!r}, expected a name")
        if len(escaped(name).encode()) > _LONGEST_NAME:
            raise MarkError(
                f"name_model: the name has more than {_LONGEST_NAME} bytes, and a directory is named for it: {name[:40]!r}..."
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
    """What the program wrote, of a thing that `torch.compile`, `functools.partial` or a decorator made of it."""
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
            target = target._modules["_orig_mod"]  # OptimizedModule
        else:
            return target


def key_of(code: CodeType) -> FunctionKey:
    """What a function and code that was made of it have in common."""
    return code.co_filename, code.co_firstlineno, code.co_name


def is_module(target: Any) -> bool:
    """Whether something is a module of PyTorch, or a class of them, without importing it to ask."""
    return _is_a("torch.nn.modules.module", "Module", target)


def is_cell(target: Any) -> bool:
    """Whether something is a Cell of MindSpore, or a class of them, without importing it to ask."""
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
    """A module died: the next object may get its identity."""
    table.pop(key, None)
