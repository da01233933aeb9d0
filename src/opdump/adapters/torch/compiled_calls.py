"""Prevents recompilation at every call of a compiled function, in releases of PyTorch whose guards fail under a dispatch mode.

Before PyTorch 2.10, dynamo creates its guards while no mode is on, but checks them while one is: they fail, and each call compiles again.
So for these releases, the recording modes are off from the call of a compiled function until it returns. Its graphs are still recorded as
operators; operators between two graphs, and a backward under compiled autograd, are not.
"""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import Any

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.dynamo_frames import never_compile
from opdump.adapters.torch.mode_stack import RecordingMode, put_on, recording_modes, suspended, take_off
from opdump.adapters.torch.private_names import (
    GUARDS_SEE_MODES,
    RUN_BACKWARD,
    SET_EVALUATION,
    evaluate_frames_by,
    is_autograd_compiled,
    module_of_evaluation,
    run_backward,
    set_evaluation,
    wrappers_of_compiled,
)
from opdump.interpreter.tracebacks import PACKAGE


class CompiledCalls:
    """Switches the recording modes off during calls of compiled functions, from `attach` to `detach`, if the release needs it."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._replacements = Replacements()

    def attach(self) -> None:
        original, wrappers = set_evaluation(), wrappers_of_compiled()
        if not GUARDS_SEE_MODES or original is None:
            return

        def switching_modes(callback: Any) -> Any:
            caller = sys._getframe(1)
            if caller.f_back is not None and caller.f_code.co_filename.startswith(PACKAGE):
                caller = caller.f_back  # skip the wrapper that `calls` installed around this one
            if caller.f_code not in wrappers:
                return original(callback)
            if callable(callback):
                self._leave()
                return original(callback)
            previous = original(callback)
            self._return()
            return previous

        run = run_backward()

        def backward(*args: Any, **kwargs: Any) -> Any:
            # A compiled backward raises under a mode.
            with suspended() if is_autograd_compiled() else nullcontext():
                return run(*args, **kwargs)

        if run is not None:
            self._replacements.replace(torch.autograd, RUN_BACKWARD, backward)
        self._replacements.replace(module_of_evaluation(), SET_EVALUATION, switching_modes)
        never_compile(switching_modes.__code__)

    def detach(self) -> None:
        self._replacements.restore()

    def records(self) -> bool:
        """Whether the calling thread runs a compiled function that was called while a mode was recording."""
        return any(mode.recording for mode in self._away())

    def pause(self) -> Any:
        """Stop the compiler from inspecting frames of this thread; pass the result to `go_on`. Later releases skip our frames by code."""
        return evaluate_frames_by(None) if GUARDS_SEE_MODES and evaluate_frames_by is not None else None

    def go_on(self, before: Any) -> None:
        """Undo `pause`."""
        if before is not None and evaluate_frames_by is not None:
            evaluate_frames_by(before)

    def _away(self) -> list[RecordingMode]:
        found: list[RecordingMode] = getattr(self._local, "away", [])
        return found

    def _leave(self) -> None:
        modes = recording_modes()
        for mode in modes:
            take_off(mode)
        if modes:
            self._local.away = modes

    def _return(self) -> None:
        modes, self._local.away = self._away(), []
        for mode in modes:
            if not mode.closed:
                put_on(mode)
