"""Places a recording mode on PyTorch's stack of dispatch modes, and takes it off for a while.

PyTorch keeps one stack of dispatch modes for each thread: the modes of the user's program on top, those of PyTorch itself
(fake tensors, tracing) below. `with mode:` puts a mode on top and takes off whatever is on top at its end, which is right
for blocks that nest, and wrong for a step of training that begins inside one call and ends inside another: a mode that
the program opened in between would be taken off instead. So a `RecordingMode` goes under the program's modes, where it
sees what they let through, and comes off by identity. Neither touches the flags of `torch.utils._python_dispatch`, which
all threads share and which two threads that leave in another order than they came would leave wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch

from opdump.adapters.torch.dynamo_frames import never_compile
from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import (
    FRAMES,
    OPERATORS,
    TorchDispatchMode,
    dispatch_depth,
    dispatch_mode_at,
    is_own_mode,
    let_higher_order_in,
    pop_dispatch_mode,
    push_dispatch_mode,
)


class RecordingMode(TorchDispatchMode):
    """A dispatch mode that looks on: it changes nothing that others can see, compiled code included.

    A subclass defines `__torch_dispatch__`; what that calls is never compiled.
    """

    # cond, while_loop, flex_attention, ...: they arrive as any operator does; without this PyTorch refuses them.
    supports_higher_order_operators = True

    recording = True
    """Whether it records what it sees at present; where it does not, compiled graphs are not recorded either."""

    closed = False
    """Set when the mode is wanted no more; `suspended` does not put it back."""

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
        """Compiled functions stay compiled while the mode is on, and are compiled as without it."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap the handler, see `dynamo_frames`.
        return False


def put_on(mode: RecordingMode) -> bool:
    """Switch `mode` on in the calling thread, under the modes of the user's program; False where it is on already, or cannot be."""
    if is_lost(OPERATORS) or is_on(mode):
        return False
    above = _take_off_users(_first_users())
    push_dispatch_mode(mode)
    _put_back(above)
    return True


def take_off(mode: RecordingMode) -> bool:
    """Switch `mode` off in the calling thread, wherever it stands; False where it is not on."""
    for place, found in enumerate(_stack()):
        if found is mode:
            above = _take_off_users(place)
            _put_back(other for other in above if other is not mode)
            return True
    return False


def is_on(mode: RecordingMode) -> bool:
    """Whether `mode` is on in the calling thread (not so inside its own handler)."""
    return any(other is mode for other in _stack())


def recording_here() -> bool:
    """Whether a mode records in the calling thread (not so inside its own handler)."""
    return any(isinstance(mode, RecordingMode) and mode.recording for mode in _stack())


def recording_modes() -> list[RecordingMode]:
    """The modes of opdump that are on in the calling thread, lowest first."""
    return [mode for mode in _stack() if isinstance(mode, RecordingMode)]


@contextmanager
def suspended() -> Iterator[None]:
    """No recording in the calling thread for the length of the block; the modes of others stay on."""
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
    """The place of the lowest mode that is not PyTorch's own."""
    stack = _stack()
    return next((place for place, mode in enumerate(stack) if not is_own_mode(mode)), len(stack))


def _take_off_users(place: int) -> list[TorchDispatchMode]:
    """The modes from `place` upward, lowest first, now off. All of them are the program's: PyTorch's are below."""
    count = dispatch_depth() - place
    return [pop_dispatch_mode(None) for _ in range(count)][::-1]


def _put_back(modes: Iterable[TorchDispatchMode]) -> None:
    for mode in modes:
        push_dispatch_mode(mode)
