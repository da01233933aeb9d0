"""Prints and parses lines of the user's program in graph files.

    # In file train.py(175)/        x = self.conv3(x)/              .ir of MindSpore 2.3
    # In file train.py:175/        x = self.conv3(x)/               .pb, and .ir of MindSpore 2.10 without columns
    # In file train.py:175, 12~25/        x = self.conv3(x)/        .ir and .pb of MindSpore 2.10
    # In file train.py:21~25, 4~47/    def construct(self, x):/     a range of lines
    #  - In file train.py:175/        x = self.conv3(x)/            one of several candidates

The `.pb` is written in the one form of these that the DumpParser of MindSpore Insight splits into file, line and code; it
needs at least one character of code.

Of a stack of more than 36 lines the file of a graph has the innermost 8 and the outermost 4, and between them a line as
"# ... 888 lines of the stack are left out": with all of them a graph of a recursion would be as large as the square of its depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Literal

from opdump.call_stacks import Frame, left_out, shortened
from opdump.errors import CorruptDumpError
from opdump.records import escaped

SourceForm = Literal["parenthesis", "colon"]

_INDENT: Final = "      "
_SOURCE_LINE: Final = re.compile(
    r"\s*#\s*(?:-\s*)?In file (?P<file>.+?)"
    r"(?:\((?P<line_in_parentheses>\d+)(?:~\d+)?\)|:(?P<line>\d+)(?:~\d+)?(?:, \d+~\d+)?)"
    r"/(?P<code>.*?)/?\s*(?:<~~.*)?$"
)
_LEFT_OUT: Final = re.compile(r"\s*#\s*(?P<told>\.\.\. \d+ lines of the stack are left out)\s*$")
_LINE_BREAKS: Final = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")


def utf8_text(data: bytes, where: str) -> str:
    """The text of a file. Raises CorruptDumpError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDumpError(
            f"{where}: expected UTF-8 text, found byte {data[error.start]:#04x} at {error.start}"
        ) from error


def one_line(text: str) -> str:
    """The text as valid UTF-8 without line breaks."""
    return _LINE_BREAKS.sub(" ", escaped(text))


def format_frame(frame: Frame, form: SourceForm) -> str:
    """One line for one frame, in upstream's indentation; the function's name is not included.

    A frame without a file states how many lines are left out, as `parse_frames` read it.
    """
    if not frame.file:
        return f"{_INDENT}# {one_line(frame.code)}"
    place = f"({frame.line})" if form == "parenthesis" else f":{frame.line}"
    return f"{_INDENT}# In file {one_line(frame.file)}{place}/        {one_line(frame.code).strip()}/"


def format_stack(stack: Sequence[Frame], format_one: Callable[[Frame], str]) -> Iterator[str]:
    """One line for each frame to print, innermost first; if frames are left out, a line states how many."""
    told = shortened(stack)
    yield from map(format_one, told.inner)
    if told.left_out:
        yield f"{_INDENT}# {left_out(told.left_out)}"
    yield from map(format_one, told.outer)


def parse_frame(line: str) -> Frame | None:
    """The frame of a `# In file` line in any of the forms; a frame without a file for a line that states how many are left out;
    otherwise None.
    """
    missing = _LEFT_OUT.match(line)
    if missing is not None:
        return Frame("", 0, "", missing["told"])
    match = _SOURCE_LINE.match(line)
    if match is None:
        return None
    number = match["line_in_parentheses"] or match["line"]
    return Frame(match["file"], int(number), "", match["code"].strip())


def parse_frames(lines: Iterable[str]) -> tuple[Frame, ...]:
    """Every frame among the lines, in order."""
    return tuple(frame for frame in map(parse_frame, lines) if frame is not None)
