"""Intercepts calls of networks, gradients, optimizers and compiled functions.

nn.Cell.__call__                        a network or a part of one; an optimizer is also a Cell
_pynative_forward_run, _pynative_func_grad_backward    the two halves of a function made by `grad` or `value_and_grad`
_JitExecutor.__call__                   a function of `@ms.jit`
Tensor.__getitem__                      a part of a tensor, which MindSpore does not dispatch
"""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import numpy as np
from mindspore import Parameter, Tensor, context, nn
from mindspore.experimental.optim.optimizer import Optimizer as ExperimentalOptimizer
from mindspore.graph import api
from mindspore.ops.composite import base

from opdump.adapters.replacements import Replacements

_OPTIMIZERS = (nn.Optimizer, ExperimentalOptimizer)


class Watcher(Protocol):
    """Receives the calls. Its methods may raise only to end the program."""

    def optimizer(self) -> AbstractContextManager[None]: ...
    def cell(self, cell: Any, *, reads_data: bool) -> AbstractContextManager[None] | None:
        """A context for a call of a Cell; None if none is needed. `reads_data`: it is given a tensor that is not a parameter."""

    def compiled(
        self, function: Any, arguments: Mapping[str, Any], *, trains: bool, reads_data: bool
    ) -> AbstractContextManager[None]: ...
    def gradient(self) -> AbstractContextManager[None]: ...
    def forward_ended(self, results: Any) -> None: ...
    def backward(self) -> AbstractContextManager[None]: ...
    def has_made_optimizer(self) -> None: ...
    def viewed(self, whole: Tensor, part: Tensor) -> None:
        """The program has taken a part of a tensor by an index."""


class Interception:
    """Passes the calls between `open` and `close` to a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._replacements = Replacements()
        self._here = threading.local()
        self._trains: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def open(self) -> None:
        calls = [
            (nn.Cell, "__call__", self._calling_cells),
            (getattr(api, "_JitExecutor", None), "__call__", self._calling_compiled),
            (Tensor, "__getitem__", self._indexing),
            (base, "_pynative_forward_run", self._running_forward),
            (base, "_pynative_func_grad_backward", self._running_backward),
            *((kind, "__init__", self._making_optimizers) for kind in _OPTIMIZERS),
        ]
        for owner, name, wrapped in calls:
            if hasattr(owner, name):  # a release that lacks a name does not call it
                self._replacements.replace(owner, name, wrapped(getattr(owner, name)))

    def close(self) -> None:
        self._replacements.restore()

    def has_optimizer(self) -> bool:
        """Whether the program has created an optimizer before the capture."""
        return any(issubclass(type(each), _OPTIMIZERS) for each in gc.get_objects())

    @staticmethod
    def is_graph_mode() -> bool:
        """Whether Cells are now compiled when they are called."""
        return bool(context._get_mode() == context.GRAPH_MODE)

    def trains(self, cell: Any) -> bool:
        """Whether an optimizer is registered below a Cell."""
        found = self._trains.get(cell)
        if found is None:
            found = self._trains[cell] = any(isinstance(each, _OPTIMIZERS) for _, each in cell.cells_and_names())
        return found

    def _calling_cells(self, original: Any) -> Any:
        watcher = self._watcher

        @functools.wraps(original)
        def call(cell: Any, *args: Any, **kwargs: Any) -> Any:
            around = (
                watcher.optimizer()
                if isinstance(cell, _OPTIMIZERS)
                else watcher.cell(cell, reads_data=_has_data((*args, *kwargs.values())))
            )
            if around is None:
                return original(cell, *args, **kwargs)
            with around:
                found = original(cell, *args, **kwargs)
                if getattr(cell, "has_bprop", False):
                    watcher.forward_ended(found)  # while the Cell is in scope, so that its gradient belongs to it
                return found

        return call

    def _calling_compiled(self, original: Any) -> Any:
        watcher = self._watcher

        @functools.wraps(original)
        def call(executor: Any, *args: Any, **kwargs: Any) -> Any:
            function = executor.fn
            # In graph mode MindSpore's own `grad` compiles a function of this name.
            around = watcher.gradient() if function.__name__ == "after_grad" else None
            given = _arguments(function, getattr(executor, "obj", None), args, kwargs)
            facts = {"trains": _uses_optimizer(function), "reads_data": _has_data((*args, *kwargs.values()))}
            with around or watcher.compiled(function, given, **facts):
                return original(executor, *args, **kwargs)

        return call

    def _indexing(self, original: Any) -> Any:
        watcher = self._watcher

        @functools.wraps(original)
        def part(tensor: Tensor, index: Any) -> Any:
            found = original(tensor, index)
            watcher.viewed(tensor, found)
            return found

        return part

    def _running_forward(self, original: Any) -> Any:
        watcher = self._watcher

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            around = watcher.gradient()
            around.__enter__()
            try:
                found = original(*args, **kwargs)
                watcher.forward_ended(found[1])
            except BaseException as error:
                around.__exit__(type(error), error, error.__traceback__)
                raise
            self._open.append(around)  # stays open until the backward pass, which follows at once, has ended
            return found

        return run

    def _running_backward(self, original: Any) -> Any:
        watcher = self._watcher

        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                if self._open:
                    stack.push(self._open.pop().__exit__)
                stack.enter_context(watcher.backward())
                return original(*args, **kwargs)

        return run

    @property
    def _open(self) -> list[AbstractContextManager[None]]:
        found: list[AbstractContextManager[None]] | None = getattr(self._here, "open", None)
        if found is None:
            found = self._here.open = []
        return found

    def _making_optimizers(self, original: Any) -> Any:
        watcher = self._watcher

        @functools.wraps(original)
        def make(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            watcher.has_made_optimizer()
            original(optimizer, *args, **kwargs)

        return make


def _arguments(function: Any, owner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a compiled function by name, without those of `*args`. `owner` is the object of a method."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return {}
    names = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if owner is not None and names and not (args and args[0] is owner):
        del names[0]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _has_data(arguments: Iterable[Any]) -> bool:
    """Whether arguments have a tensor or an array that is not a parameter."""
    return any(
        _has_data(each.values() if isinstance(each, Mapping) else each)
        if isinstance(each, tuple | list | Mapping)
        else isinstance(each, Tensor | np.ndarray) and not isinstance(each, Parameter)
        for each in arguments
    )


def _uses_optimizer(function: Any) -> bool:
    """Whether a compiled function refers to an optimizer, in its closure or as a global of its module."""
    closed = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    return any(isinstance(value, _OPTIMIZERS) for value in (*closed, *named))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
