"""Puts a recording mode on PyTorch's stack of dispatch modes, and suspends it, also while PyTorch imports its late parts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, Final

import torch

from opdump.adapters.replacements import ReplacingPart
from opdump.adapters.torch.isolation import never_compile
from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import (
    FRAMES,
    OPERATORS,
    TorchDispatchMode,
    dispatch_depth,
    dispatch_mode_at,
    include_key,
    inference_guard,
    is_key_included,
    is_own_mode,
    let_higher_order_in,
    pop_dispatch_mode,
    push_dispatch_mode,
)
from opdump.interpreter.imports import after_import

# PyTorch keeps one stack of dispatch modes per thread: the modes of the user's program on top, its own (fake tensors,
# tracing) below. `with mode:` pushes a mode and at its end pops whatever is on top. That suits nested blocks, but not a
# training step that begins inside one call and ends inside another: it would pop a mode that the program opened in between.
# So a `RecordingMode` goes below the program's modes, where it sees what they let through, and is removed by identity.
# Both operations leave the flags of `torch.utils._python_dispatch` alone: all threads share them, and two threads that leave
# in a different order than they entered would set them wrong.


class RecordingMode(TorchDispatchMode):
    """A dispatch mode that only observes: nothing that the program can see changes, including compiled code.

    A subclass defines `__torch_dispatch__`, which is never compiled, nor is anything that it calls.
    """

    # cond, while_loop, flex_attention, ... then arrive like any operator; otherwise PyTorch refuses to run them.
    supports_higher_order_operators = True

    recording = True
    """Whether it currently records what it sees; if not, compiled graphs are not recorded either."""

    closed = False
    """Set when the mode is no longer needed; `suspended` does not put it back."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        handler = cls.__dict__.get("__torch_dispatch__")
        if isinstance(handler, FunctionType):
            never_compile(handler.__code__)
            if is_lost(FRAMES):
                cls.__torch_dispatch__ = torch.compiler.disable(handler)  # type: ignore[method-assign]
            let_higher_order_in(cls, handler)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled while the mode is on, and compile as they would without it."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap the handler in Python; `never_compile` keeps dynamo away at no cost.
        return False


def put_on(mode: RecordingMode) -> bool:
    """Switch `mode` on in the calling thread, below the program's modes. False if it is on already or cannot be."""
    if is_lost(OPERATORS) or is_on(mode):
        return False
    above = _take_off_users(_first_users())
    push_dispatch_mode(mode)
    _put_back(above)
    return True


def take_off(mode: RecordingMode) -> bool:
    """Switch `mode` off in the calling thread, wherever it is on the stack. False if it is not on."""
    for place, found in enumerate(_stack()):
        if found is mode:
            above = _take_off_users(place)
            _put_back(other for other in above if other is not mode)
            return True
    return False


def is_on(mode: RecordingMode) -> bool:
    """Whether `mode` is on in the calling thread (False inside its own handler)."""
    return any(other is mode for other in _stack())


def recording_here() -> bool:
    """Whether a mode records in the calling thread (False inside its own handler)."""
    return any(isinstance(mode, RecordingMode) and mode.recording for mode in _stack())


def recording_modes() -> list[RecordingMode]:
    """The modes of opdump that are on in the calling thread, lowest first."""
    return [mode for mode in _stack() if isinstance(mode, RecordingMode)]


@contextmanager
def suspended() -> Iterator[None]:
    """Suspend recording in the calling thread inside the block; other modes stay on."""
    modes = recording_modes()
    for mode in modes:
        take_off(mode)
    try:
        yield
    finally:
        for mode in modes:
            if not mode.closed:
                put_on(mode)


def _stack() -> list[TorchDispatchMode]:
    """The modes of the calling thread, lowest first."""
    if is_lost(OPERATORS):
        return []
    return [dispatch_mode_at(place) for place in range(dispatch_depth())]


def _first_users() -> int:
    """The position of the lowest mode that is not PyTorch's own."""
    stack = _stack()
    return next((place for place, mode in enumerate(stack) if not is_own_mode(mode)), len(stack))


def _take_off_users(place: int) -> list[TorchDispatchMode]:
    """Pop the modes from `place` upward and return them, lowest first. All are the program's: PyTorch's are below."""
    count = dispatch_depth() - place
    # None: pop the top of the stack rather than one of PyTorch's modes by key.
    return [pop_dispatch_mode(None) for _ in range(count)][::-1]


def _put_back(modes: Iterable[TorchDispatchMode]) -> None:
    for mode in modes:
        push_dispatch_mode(mode)


# Patches parts of PyTorch that are imported late, such as its compiler, once the program imports them. Importing the compiler
# takes a second or more, and most inference programs never do.

Stopped = Callable[[Exception], None]


def raised(error: Exception) -> None:
    raise error


class Loading:
    """Functions to call when modules of PyTorch are imported. Errors of late calls go to `stopped`, not to the importing program."""

    def __init__(self, stopped: Stopped = raised) -> None:
        self._stopped = stopped
        self._forget: list[Callable[[], None]] = []

    def when_there(self, module: str, function: Callable[[], None]) -> None:
        """Call `function` as soon as `module` is imported. Operators that the import runs are not recorded."""
        if module in sys.modules:
            function()
        else:
            self._forget.append(after_import(module, lambda _: self._late(function), inside=suspended))

    def _late(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001  whatever the error is, it is not the program's
            self._stopped(error)

    def forget(self) -> None:
        """Drop the functions that are still waiting."""
        while self._forget:
            self._forget.pop()()


# Keeps the dispatch keys of modes consistent with the mode stack when an inference-mode block ends.
#
# When a `torch.inference_mode` block ends, PyTorch resets the dispatch keys of the thread to their state at its start, including the keys
# of dispatch modes. If a step ended inside the block, the mode is off the stack: the program's next operator would look for the missing
# mode and fail. If a step began inside, the mode is on the stack but would not see what runs after the block.

_KEYS: Final = ("Python", "PythonTLSSnapshot")
"""The dispatch keys that are set in a thread while a mode is on its stack."""


class InferenceBlocks(ReplacingPart):
    """Corrects the keys at the end of every block that ends between `attach` and `detach`, including blocks that began earlier."""

    def attach(self) -> None:
        if is_lost(OPERATORS):
            return
        # PyTorch's internal guard, too: in a block that began before `attach`, `with` has already looked up the old `__exit__` of
        # `torch.inference_mode`, which calls the guard's.
        for owner in (torch.inference_mode, inference_guard):
            leave = _with_keys_matched(owner.__exit__)
            self.replace(owner, "__exit__", leave)
            never_compile(leave.__code__)


def _with_keys_matched(leave: Callable[..., Any]) -> Callable[..., Any]:
    def leave_and_match(block: Any, *error: Any) -> Any:
        try:
            return leave(block, *error)
        finally:
            _match_keys()

    return leave_and_match


def _match_keys() -> None:
    """Set the keys of dispatch modes in the thread exactly if modes are on its stack, as PyTorch does."""
    has_modes = dispatch_depth() > 0
    for key in _KEYS:
        if is_key_included(key) != has_modes:
            include_key(key, has_modes)
