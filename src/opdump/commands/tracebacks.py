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
from typing import Final

from opdump.errors import OpdumpError
from opdump.interpreter.tracebacks import PACKAGE, innermost, is_own, rebuilt

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

# TensorFlow writes the traceback of a callback of Python into the message of the error that it raises: a frame, its line, and an empty line.
_OWN_ENTRY: Final = re.compile(rf'^( *)File "{re.escape(PACKAGE)}[^"]*", line .*\n(?:\1 +.*\n)*\n?', re.MULTILINE)


def comes_from_opdump(error: BaseException) -> bool:
    """Say whether the error was raised by opdump's code, and not on purpose: a defect of opdump."""
    if error.__traceback__ is None or isinstance(error, OpdumpError):
        return False
    raised = innermost(error.__traceback__)
    return is_own(raised) and not _hands_on(raised)


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
        _clean_message(current)
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # of an ExceptionGroup, which Python 3.10 does not have
    return error


def _strip(traceback: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    after_opdump = False
    while traceback is not None:
        if is_own(traceback):
            after_opdump = True
        elif not (after_opdump and traceback.tb_frame.f_code.co_filename.endswith(_GLUE)):
            after_opdump = False
            frames.append(traceback)
        traceback = traceback.tb_next
    return rebuilt(frames)


def _hands_on(traceback: TracebackType) -> bool:
    code = traceback.tb_frame.f_code
    return _HANDS_ON.search(linecache.getline(code.co_filename, traceback.tb_lineno)) is not None


def _clean_message(error: BaseException) -> None:
    """Take opdump's frames out of the tracebacks that stand in a message itself, wherever the error keeps it."""
    error.args = tuple(_OWN_ENTRY.sub("", each) if isinstance(each, str) else each for each in error.args)
    for name, value in list(vars(error).items()):
        if isinstance(value, str) and PACKAGE in value:
            setattr(error, name, _OWN_ENTRY.sub("", value))
