"""Selects the program's own lines from those that MindSpore records for an operator.

    lenet.py:23                          x = self.pool(self.relu(self.conv2(x)))     in construct
    .../mindspore/nn/layer/conv.py:373   output = self.conv2d(x, self.weight)        MindSpore's own, left out

MindSpore records two lines for each call, the function (`def construct(self, x):`) and the line in it, and its own lines among
the program's. The result is like a Python stack: one frame per call, with the name of the function.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from opdump.records import Frame

_OWN_FILE: Final = re.compile(r"(?:^|/)(?:(?:site|dist)-packages|mindspore/python)/mindspore/")
_OPTIMIZER: Final = re.compile(r"/mindspore/(?:nn|mint|experimental)/optim/")
_DEFINITION: Final = re.compile(r"(?:async )?def ([^\W\d]\w*)\s*\(")


def program_stack(noted: Sequence[Frame]) -> Sequence[Frame]:
    """The frames of the program, innermost first; those of MindSpore if there are no others (an optimizer's operators).

    `noted` is innermost first, too. A function without a line of its own is a separate frame.
    """
    frames: list[Frame] = []
    for frame in noted:
        name = _DEFINITION.match(frame.code)
        inner = frames[-1] if frames else None
        if name and inner and not inner.function and inner.file == frame.file and frame.line < inner.line:
            frames[-1] = Frame(inner.file, inner.line, name[1], inner.code)
        elif name:
            frames.append(Frame(frame.file, frame.line, name[1], frame.code))
        else:
            frames.append(frame)
    programs = tuple(frame for frame in frames if not _OWN_FILE.search(frame.file))
    return programs or tuple(frames)


def is_of_optimizer(stack: Sequence[Frame]) -> bool:
    """Whether the lines of an operator, from `program_stack`, are those of an optimizer of MindSpore."""
    return any(_OPTIMIZER.search(frame.file) for frame in stack)
