"""Removes from a user's traceback the frames that opdump adds.

    Traceback (most recent call last):
      File "/home/me/train.py", line 12, in <module>
        loss = model(batch)
    ValueError: ...

It then reads as without opdump. An error raised by opdump itself is left complete, because its frames matter.
"""

from __future__ import annotations

from opdump.errors import OpdumpError
from opdump.interpreter.tracebacks import chained, clean_message, hands_on, innermost, is_own, stripped


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
        clean_message(each)
    return error
