"""Removes from a user's traceback the frames that opdump adds.

    Traceback (most recent call last):
      File "/home/me/train.py", line 12, in <module>
        loss = model(batch)
    ValueError: ...

It then reads as without opdump. An error raised by opdump itself is left complete, because its frames matter.
"""

from __future__ import annotations

import re
from typing import Final

from opdump.errors import OpdumpError
from opdump.interpreter.tracebacks import PACKAGE, chained, hands_on, innermost, is_own, stripped

# TensorFlow writes the traceback of a Python callback into the message of the error that it raises: a frame, its line,
# and an empty line.
_OWN_ENTRY: Final = re.compile(rf'^( *)File "{re.escape(PACKAGE)}[^"]*", line .*\n(?:\1 +.*\n)*\n?', re.MULTILINE)


def comes_from_opdump(error: BaseException) -> bool:
    """Whether opdump's code raised the error unintentionally: a defect of opdump."""
    if error.__traceback__ is None or isinstance(error, OpdumpError):
        return False
    raised = innermost(error.__traceback__)
    return is_own(raised) and not hands_on(raised.tb_frame.f_code.co_filename, raised.tb_lineno)


def without_opdump_frames(error: BaseException) -> BaseException:
    """Remove opdump's frames, in place, from an error and from every error it is chained to."""
    for each in chained(error):
        each.__traceback__ = stripped(each.__traceback__)
        _clean_message(each)
    return error


def _clean_message(error: BaseException) -> None:
    """Remove opdump's frames from tracebacks inside an error message, in every attribute that has the message."""
    error.args = tuple(_OWN_ENTRY.sub("", each) if isinstance(each, str) else each for each in error.args)
    for name, value in list(vars(error).items()):
        if isinstance(value, str) and PACKAGE in value:
            setattr(error, name, _OWN_ENTRY.sub("", value))
