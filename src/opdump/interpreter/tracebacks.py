"""Tracebacks without the frames of opdump: those that a command prints, and those that the program prints itself.

    with printed_as_the_programs():
        traceback.print_exc(), traceback.print_stack(), logging.exception("..."), an error that ends a thread

A frame that a function of PyTorch stands in between opdump and the operator is left out too. An error that opdump raised itself keeps all of its frames:
there they are what matters. Messages of errors in which a framework writes the traceback of a callback are cleaned in the same way.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
import threading
import traceback as traceback_module
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Final

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The directory of opdump's files."""

_COMMANDS: Final = os.path.join(PACKAGE, "commands") + os.sep
CALLED: Final = "<called under capture>"
"""The name of a frame that stands for a line of the program: that line has a frame of its own."""
# What stands between opdump's frames and below them: PyTorch's way from a dispatch mode to the kernel that it calls.
_GLUE: Final = (
    os.path.join("torch", "_ops.py"),
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "utils", "_stats.py"),
    os.path.join("torch", "utils", "_python_dispatch.py"),
    # The end of a capture is a context manager's.
    contextlib.__file__,
)
# A line that calls for the program what the program called. What is no Python, or takes no such arguments, raises there.
_HANDS_ON: Final = re.compile(r"\*args, \*\*kwargs\)|\(\*call\)")
_FRAME: Final = r'^(?P<margin> *)File "(?P<file>[^"\n]*)", line (?P<line>\d+).*\n(?:(?P=margin) +.*\n)*\n?'
_WRITTEN: Final = re.compile(_FRAME, re.MULTILINE)
"""A frame as it is written in a message, with its line of source and an empty line where there are such."""
_WRITTEN_ONES: Final = re.compile(f"(?:{_FRAME})+", re.MULTILINE)
_Entry = tuple[FrameType, Any]
"""A frame, and where in it: what the walks of the module `traceback` give."""


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


def hands_on(file: str, line: int) -> bool:
    """Whether a line of opdump calls for the program what the program called."""
    return _HANDS_ON.search(linecache.getline(file, line)) is not None


def strip(error: BaseException) -> None:
    """Removes opdump's frames, in place, from an error and from every error chained to it, so that existing references to the traceback see it too."""
    for each in chained(error):
        clean_message(each)
        if not _is_whole([*_walked(each.__traceback__)]):
            each.__traceback__ = stripped(each.__traceback__)


def clean_message(error: BaseException) -> None:
    """Takes opdump's frames out of the tracebacks that stand in the message of an error, wherever the error keeps it, in place."""
    error.args = tuple(_cleaned(each) if isinstance(each, str) else each for each in error.args)
    for name, value in list(getattr(error, "__dict__", {}).items()):
        if isinstance(value, str) and PACKAGE in value:
            setattr(error, name, _cleaned(value))


def _cleaned(text: str) -> str:
    """The text without the frames of opdump that are written in it, and without those that lead to the program."""
    return _WRITTEN_ONES.sub(lambda found: _programs_of(found[0]), text) if PACKAGE in text else text


def _programs_of(written: str) -> str:
    """Of frames written one after the other those that the program's own run has; all, if opdump raised the error."""
    frames = [*_WRITTEN.finditer(written)]
    file, line = frames[-1]["file"], int(frames[-1]["line"])
    if file.startswith(PACKAGE) and not hands_on(file, line):
        return written
    commands = [place for place, each in enumerate(frames) if each["file"].startswith(_COMMANDS)]
    kept = frames[commands[-1] + 1 :] if commands else frames
    return "".join(each[0] for each in kept if not each["file"].startswith(PACKAGE))


def chained(error: BaseException) -> Iterator[BaseException]:
    """An error, those that it came from, and those of a group, each once."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # of an ExceptionGroup, which Python 3.10 does not have


def stripped(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from its first frame of the program on; the frames of opdump behind that are taken out of it."""
    head: TracebackType | None = traceback
    left_out = traceback is not None and _is_left_out(traceback.tb_frame, False)
    while head is not None and left_out:
        head = head.tb_next
        left_out = head is not None and _is_left_out(head.tb_frame, True)
    before = head
    while before is not None:
        after, left_out = before.tb_next, False
        while after is not None and (left_out := _is_left_out(after.tb_frame, left_out)):
            after = after.tb_next
        if after is not before.tb_next:
            before.tb_next = after
        before = after
    return head


@contextlib.contextmanager
def printed_as_the_programs() -> Iterator[None]:
    """While the block runs, what prints tracebacks leaves opdump's frames out: the module `traceback`, and errors that end a thread or are ignored."""
    undo: list[Callable[[], None]] = []
    try:
        for name, walk in _WALKS.items():
            if hasattr(traceback_module, name):  # that of Python 3.11 and later, and the older one
                undo.append(_replaced(traceback_module, name, walk(getattr(traceback_module, name))))
        for owner, name, default in (
            (threading, "excepthook", threading.__excepthook__),
            (sys, "unraisablehook", sys.__unraisablehook__),
        ):
            if getattr(owner, name) is default:  # else the program has one of its own
                undo.append(_replaced(owner, name, _stripping(default)))
        printed = traceback_module.TracebackException
        undo.append(_replaced(printed, "__init__", _cleaning(printed.__init__)))
        yield
    finally:
        while undo:
            undo.pop()()


def _replaced(owner: Any, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    before = getattr(owner, name)
    setattr(owner, name, function)

    def restore() -> None:
        if getattr(owner, name) is function:
            setattr(owner, name, before)

    return restore


def _stripping(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def excepthook(args: Any) -> Any:
        if isinstance(args.exc_value, BaseException):
            strip(args.exc_value)
        return hook(args)

    return excepthook


def _cleaning(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def initialise(self: Any, exc_type: Any, exc_value: Any, *arguments: Any, **keywords: Any) -> None:
        if isinstance(exc_value, BaseException):
            for each in chained(exc_value):
                clean_message(each)
        original(self, exc_type, exc_value, *arguments, **keywords)

    return initialise


def _walks_outermost_first(
    original: Callable[[TracebackType | None], Iterable[_Entry]],
) -> Callable[..., Iterator[_Entry]]:
    def walk_tb(tb: TracebackType | None) -> Iterator[_Entry]:
        yield from programs_frames([*original(tb)])

    return walk_tb


def _walks_innermost_first(original: Callable[[FrameType | None], Iterable[_Entry]]) -> Callable[..., Iterator[_Entry]]:
    def walk_stack(f: FrameType | None) -> Iterator[_Entry]:
        if f is None:  # the frame that asked the module for its stack; the original counts frames, of which this is one
            f = sys._getframe(1)
            while f is not None and f.f_code.co_filename == traceback_module.__file__:
                f = f.f_back
        yield from programs_frames([*original(f)][::-1])[::-1]

    return walk_stack


_WALKS: Final[dict[str, Callable[[Any], Callable[..., Iterator[_Entry]]]]] = {
    "walk_tb": _walks_outermost_first,
    "_walk_tb_with_full_positions": _walks_outermost_first,
    "walk_stack": _walks_innermost_first,
}


def programs_frames(entries: Sequence[_Entry]) -> Sequence[_Entry]:
    """The entries that the program's own run would have, the outermost first; all, if opdump raised the error, or asks for its own stack."""
    if _is_whole(entries):
        return entries
    commands = [place for place, (frame, _) in enumerate(entries) if frame.f_code.co_filename.startswith(_COMMANDS)]
    found: list[_Entry] = []
    after_opdump = False
    for frame, where in entries[commands[-1] + 1 :] if commands else entries:
        after_opdump = _is_left_out(frame, after_opdump)
        if not after_opdump:
            found.append((frame, where))
    return found


def _walked(traceback: TracebackType | None) -> Iterator[_Entry]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_whole(entries: Sequence[_Entry]) -> bool:
    if not entries:
        return True
    frame, where = entries[-1]
    file = frame.f_code.co_filename
    line = where[0] if isinstance(where, tuple) else where
    return file.startswith(PACKAGE) and not hands_on(file, line)


def _is_left_out(frame: FrameType, after_opdump: bool) -> bool:
    code = frame.f_code
    if code.co_filename.startswith(PACKAGE) or code.co_name == CALLED:
        return True
    return after_opdump and code.co_filename.endswith(_GLUE)
