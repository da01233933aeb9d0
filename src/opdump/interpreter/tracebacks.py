"""Tracebacks without the frames of opdump."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Final

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The directory of opdump's files."""


def is_own(traceback: TracebackType) -> bool:
    """Whether a frame is opdump's."""
    return traceback.tb_frame.f_code.co_filename.startswith(PACKAGE)


def innermost(traceback: TracebackType) -> TracebackType:
    """The frame in which an error was raised."""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def rebuilt(frames: Sequence[TracebackType]) -> TracebackType | None:
    """A traceback of these frames, the outermost first; None of none."""
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without opdump's frames, unless opdump raised the error: there the frames are what matters."""
    if traceback is None or is_own(innermost(traceback)):
        return traceback
    frames = []
    frame: TracebackType | None = traceback
    while frame is not None:
        if not is_own(frame):
            frames.append(frame)
        frame = frame.tb_next
    return rebuilt(frames)
