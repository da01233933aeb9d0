"""Records failures outside of dispatched operators: a `torch.autograd.Function` that raises.

    Function.apply        the forward raised: the operator is the function, its inputs are the arguments of `apply`
    its backward          the same, with the gradients as inputs

An error is recorded where it is raised. Functions further up that also record failures see in its traceback that it was recorded: it
contains a frame of a function marked with `records_failures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.mode_stack import recording_here

RecordFailure = Callable[[str, tuple[Any, ...], Mapping[str, Any], Exception], object]
"""Records the operator of that name as failed, with the tensors among its arguments."""
_RECORDING: set[CodeType] = set()


def records_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that records every error that passes through it. Mark a replacement after `replace`, which changes its code object."""
    _RECORDING.add(function.__code__)
    return function


def was_recorded(error: BaseException) -> bool:
    """Whether the error has passed through a marked function below the caller's own frame."""
    traceback = error.__traceback__
    traceback = None if traceback is None else traceback.tb_next  # the first frame is the caller's
    while traceback is not None:
        if traceback.tb_frame.f_code in _RECORDING:
            return True
        traceback = traceback.tb_next
    return False


class FunctionFailures:
    """Watches all `torch.autograd.Function`s from `attach` to `detach`."""

    def __init__(self, record: RecordFailure) -> None:
        self._record = record
        self._replacements = Replacements()

    def attach(self) -> None:
        apply = torch.autograd.Function.__dict__["apply"]  # a class method, in Python or C depending on the release
        record = self._record

        def watched_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            try:
                return apply.__get__(None, cls)(*args, **kwargs)
            except Exception as error:
                if recording_here() and not was_recorded(error):
                    record(cls.__name__, args, kwargs, error)
                raise

        self._replacements.replace(torch.autograd.Function, "apply", classmethod(watched_apply))
        records_failures(watched_apply)
        function = torch.autograd.function.BackwardCFunction
        for name in ("apply", "apply_boxed"):
            # Newer releases have `apply_boxed`, for functions that take their gradients as a list.
            if name in vars(function):
                watched = self._backward(vars(function)[name])
                self._replacements.replace(function, name, watched)
                records_failures(watched)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched_backward(node: Any, *args: Any) -> Any:
            # Copied, because the backward may empty the list while it runs.
            given = tuple(tuple(each) if isinstance(each, list) else each for each in args)
            try:
                return original(node, *args)
            except Exception as error:
                if recording_here() and not was_recorded(error):
                    self._record(type(node).__name__, given, {}, error)
                raise

        return watched_backward

    def detach(self) -> None:
        self._replacements.restore()
