"""Keeps calls of compiled functions working in releases of PyTorch that compile them apart from the dispatch modes, and then find that a mode is on.

Before PyTorch 2.10 dynamo makes its guards while no mode is on, and asks them while one is: nothing fits, and each call compiles again. So
there the recording modes are off from the call of a compiled function until it returns. Its graphs are operators all the same; what
runs between two graphs is not recorded, and neither is a backward under compiled autograd.
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
    """Takes the recording modes off for calls of compiled functions, from `attach` to `detach`, where that is needed."""

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
                caller = caller.f_back  # the replacement that `calls` has put around this one
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
            # A backward that is compiled refuses to run under a mode.
            with suspended() if is_autograd_compiled() else nullcontext():
                return run(*args, **kwargs)

        if run is not None:
            self._replacements.replace(torch.autograd, RUN_BACKWARD, backward)
        self._replacements.replace(module_of_evaluation(), SET_EVALUATION, switching_modes)
        never_compile(switching_modes.__code__)

    def detach(self) -> None:
        self._replacements.restore()

    def records(self) -> bool:
        """Whether the calling thread is in a compiled function that was called while a mode recorded."""
        return any(mode.recording for mode in self._away())

    def pause(self) -> Any:
        """From here on the compiler looks at no frame of the calling thread; to be given to `go_on`. Later releases pass over all by code."""
        return evaluate_frames_by(None) if GUARDS_SEE_MODES and evaluate_frames_by is not None else None

    def go_on(self, before: Any) -> None:
        """The compiler looks at frames again as it did before `pause`."""
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
