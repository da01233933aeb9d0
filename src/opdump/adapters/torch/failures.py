"""Records failures outside of dispatched operators: a function of `torch.autograd.Function` that raises.

    Function.apply        the forward raised: the operator is the function, its inputs what `apply` was given
    the backward of it    the same, with the gradients

An error is recorded where it comes from. On its way up it passes others that look for failures, who know by its traceback that it
was recorded: a frame of a function that records is among its frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.mode_stack import recording_here

RecordFailure = Callable[[str, tuple[Any, ...], Mapping[str, Any], Exception], object]
"""Files the operator of that name as one that failed, with the tensors among its arguments."""
_RECORDING: set[CodeType] = set()


def records_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that records every error that passes through it. One that replaces another is marked after it has done so."""
    _RECORDING.add(function.__code__)
    return function


def was_recorded(error: BaseException) -> bool:
    """Whether a function that was marked stands between where the error came from and the caller's own frame."""
    traceback = error.__traceback__
    traceback = None if traceback is None else traceback.tb_next  # the first frame is the caller's
    while traceback is not None:
        if traceback.tb_frame.f_code in _RECORDING:
            return True
        traceback = traceback.tb_next
    return False


class FunctionFailures:
    """Watches the functions of `torch.autograd.Function` from `attach` to `detach`."""

    def __init__(self, record: RecordFailure) -> None:
        self._record = record
        self._replacements = Replacements()

    def attach(self) -> None:
        apply = torch.autograd.Function.__dict__["apply"]  # a method of classes: written in Python, or in C
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
            if name in vars(
                function
            ):  # newer releases have the second, for functions that ask for a list of their gradients
                watched = self._backward(vars(function)[name])
                self._replacements.replace(function, name, watched)
                records_failures(watched)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched_backward(node: Any, *args: Any) -> Any:
            # The backward may empty the list while it runs.
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
