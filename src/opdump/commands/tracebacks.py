"""A user's traceback, with the frames that running under opdump adds taken out.

    Traceback (most recent call last):
      File "/home/me/train.py", line 12, in <module>
        loss = model(batch)
    ValueError: ...

reads as it does without opdump. An error that opdump itself made is left whole: there the frames are what matters.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
from types import TracebackType

from opdump.errors import OpdumpError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# What stands between opdump's frames and below them: PyTorch's way from a dispatch mode to the kernel that it calls.
_GLUE = (
    os.path.join("torch", "_ops.py"),
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "utils", "_stats.py"),
    os.path.join("torch", "utils", "_python_dispatch.py"),
    # The end of a capture is a context manager's.
    contextlib.__file__,
)
# A line that calls for the program what the program called. What is no Python, or takes no such arguments, raises there.
_HANDS_ON = re.compile(r"\*args, \*\*kwargs\)|\(\*call\)")


def comes_from_opdump(error: BaseException) -> bool:
    """Say whether the error was raised by opdump's code, and not on purpose: a defect of opdump."""
    innermost = error.__traceback__
    if innermost is None or isinstance(error, OpdumpError):
        return False
    while innermost.tb_next is not None:
        innermost = innermost.tb_next
    return _is_opdump(innermost) and not _hands_on(innermost)


def without_opdump_frames(error: BaseException) -> BaseException:
    """Strip opdump's frames from an error and from every error it is chained to, in place."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.__traceback__ = _strip(current.__traceback__)
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # of an ExceptionGroup, which Python 3.10 does not have
    return error


def _strip(traceback: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    after_opdump = False
    while traceback is not None:
        if _is_opdump(traceback):
            after_opdump = True
        elif not (after_opdump and traceback.tb_frame.f_code.co_filename.endswith(_GLUE)):
            after_opdump = False
            frames.append(traceback)
        traceback = traceback.tb_next
    rebuilt: TracebackType | None = None
    for frame in reversed(frames):
        rebuilt = TracebackType(rebuilt, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rebuilt


def _is_opdump(traceback: TracebackType) -> bool:
    return traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _hands_on(traceback: TracebackType) -> bool:
    code = traceback.tb_frame.f_code
    return _HANDS_ON.search(linecache.getline(code.co_filename, traceback.tb_lineno)) is not None
