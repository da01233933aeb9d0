"""Frames of call stacks: walks them, in compiled code or in Python, and removes those of opdump from tracebacks.

with printed_as_the_programs():
    traceback.print_exc(), traceback.print_stack(), logging.exception("..."), an error that ends a thread
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
from sys import _getframe
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

from opdump.interpreter.critical_sections import compiled

# Walks the frames of a call stack, in compiled code or in Python.
#
# In Python, each frame costs 1 µs if there is an audit hook, because reading its code and the code's identity are audit events. `sys._getframe` is
# another such event; `calling_frame` is not.

Says = Callable[[CodeType], bool | None]


class PythonFrames:
    """The Python twin of the compiled `Frames`. Two functions of code objects decide which frames are returned.

    `is_ours` and `is_mine` are called once for each code object, which is kept alive.
    """

    def __init__(self, is_ours: Says, is_mine: Says) -> None:
        self._ours, self._mine = _Question(is_ours), _Question(is_mine)

    def caller(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame, starting with this one, that is not ours, or None."""
        answer = self._ours.answer
        while frame is not None and answer(frame.f_code) is not False:
            frame = frame.f_back
        return frame

    def place(self, frame: FrameType) -> tuple[int, int]:
        """Return the identity of the frame's code, and its instruction."""
        return id(frame.f_code), frame.f_lasti

    def walk(self, frame: FrameType | None, boundary: int) -> tuple[list[int], FrameType | None]:
        """Return the identity of the code and the instruction of each frame that is mine, alternating, innermost first.

        The walk ends at the frame with the identity `boundary`, unless it is mine, and returns that frame. It also ends if `is_mine` returns None.
        """
        found: list[int] = []
        answer = self._mine.answer
        while frame is not None:
            code = frame.f_code
            is_mine = answer(code)
            if is_mine is None:
                break
            if is_mine:
                found += (id(code), frame.f_lasti)
            elif boundary and id(frame) == boundary:
                return found, frame
            frame = frame.f_back
        return found, None

    def below(self, frame: FrameType | None, name: str) -> list[int]:
        """Return the same for the frames below the innermost function of that name, or for all frames if there is none."""
        found: list[int] = []
        while frame is not None and frame.f_code.co_name != name:
            code = frame.f_code
            if self._mine.answer(code):
                found += (id(code), frame.f_lasti)
            frame = frame.f_back
        return found


class _Question:
    def __init__(self, ask: Says) -> None:
        self._ask = ask
        # By identity, because hashing a code object means hashing all of its instructions.
        self._known: dict[int, tuple[CodeType, bool | None]] = {}

    def answer(self, code: CodeType) -> bool | None:
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = code, self._ask(code)
        return known[1]


def _calling_frame(depth: int) -> FrameType:
    """Return `sys._getframe(depth)` of the calling function."""
    return _getframe(depth + 1)


_NATIVE: Any = compiled()
Frames: type[PythonFrames] = PythonFrames if _NATIVE is None else _NATIVE.Frames
calling_frame: Callable[[int], FrameType] = _calling_frame if _NATIVE is None else _NATIVE.calling_frame


# Removes the frames of opdump from tracebacks, both those that a command prints and those that the program prints itself.
#
# A frame of PyTorch between opdump and the operator is removed too. An error that opdump itself raised keeps all of its frames, because they matter
# there. Error messages in which a framework writes the traceback of a callback are cleaned in the same way.

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The directory of opdump's files."""

_COMMANDS: Final = os.path.join(PACKAGE, "commands") + os.sep
# Frames between and below those of opdump: the path in PyTorch from a dispatch mode to the kernel that it calls.
_GLUE: Final = (
    os.path.join("torch", "_ops.py"),
    os.path.join("torch", "_compile.py"),
    os.path.join("torch", "utils", "_stats.py"),
    os.path.join("torch", "utils", "_python_dispatch.py"),
    # The end of a capture runs in a context manager.
    contextlib.__file__,
)
# A line of opdump that makes the program's call. Errors of functions without Python code, and wrong arguments, are raised there.
_HANDS_ON: Final = re.compile(r"\*args, \*\*kwargs\)")
_FRAME: Final = r'^(?P<margin> *)File "(?P<file>[^"\n]*)", line (?P<line>\d+).*\n(?:(?P=margin) +.*\n)*\n?'
_WRITTEN: Final = re.compile(_FRAME, re.MULTILINE)
"""A frame as written in a message, with its source line and an empty line if they are present."""
_WRITTEN_ONES: Final = re.compile(f"(?:{_FRAME})+", re.MULTILINE)
_Entry = tuple[FrameType, Any]
"""A frame and a position in it, as the walks of the module `traceback` yield them."""


def is_own(traceback: TracebackType) -> bool:
    """Return whether a frame belongs to opdump."""
    return traceback.tb_frame.f_code.co_filename.startswith(PACKAGE)


def innermost(traceback: TracebackType) -> TracebackType:
    """Return the frame in which an error was raised."""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def rebuilt(frames: Sequence[TracebackType]) -> TracebackType | None:
    """Return a traceback of these frames, outermost first, or None if there are none."""
    made: TracebackType | None = None
    for frame in reversed(frames):
        made = TracebackType(made, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return made


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without opdump's frames, unless opdump raised the error: then the frames matter."""
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
    """Return whether a line of opdump makes the program's call."""
    return _HANDS_ON.search(linecache.getline(file, line)) is not None


def strip(error: BaseException) -> None:
    """Remove opdump's frames, in place, from an error and all errors chained to it, so that existing references to the traceback see the change."""
    for each in chained(error):
        clean_message(each)
        if not _is_whole([*_walked(each.__traceback__)]):
            each.__traceback__ = stripped(each.__traceback__)


def clean_message(error: BaseException) -> None:
    """Remove opdump's frames, in place, from tracebacks in the message of an error, in whichever attribute the error keeps it."""
    error.args = tuple(_cleaned(each) if isinstance(each, str) else each for each in error.args)
    for name, value in list(getattr(error, "__dict__", {}).items()):
        if isinstance(value, str) and PACKAGE in value:
            setattr(error, name, _cleaned(value))


def _cleaned(text: str) -> str:
    """Return the text without the frames of opdump written in it, and without those that lead to the program."""
    return _WRITTEN_ONES.sub(lambda found: _programs_of(found[0]), text) if PACKAGE in text else text


def _programs_of(written: str) -> str:
    """Return the frames of the program among written frames, or all if opdump raised the error."""
    frames = [*_WRITTEN.finditer(written)]
    file, line = frames[-1]["file"], int(frames[-1]["line"])
    if file.startswith(PACKAGE) and not hands_on(file, line):
        return written
    commands = [place for place, each in enumerate(frames) if each["file"].startswith(_COMMANDS)]
    kept = frames[commands[-1] + 1 :] if commands else frames
    return "".join(each[0] for each in kept if not each["file"].startswith(PACKAGE))


def chained(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the errors of a group, each once."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        pending += [current.__cause__, current.__context__]
        pending += getattr(current, "exceptions", ())  # of an ExceptionGroup, which Python 3.10 lacks


def stripped(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from its first frame of the program on, with later frames of opdump removed from it."""
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
    """Remove opdump's frames from tracebacks during the block: those of the module `traceback`, and of errors that end a thread or are ignored."""
    undo: list[Callable[[], None]] = []
    try:
        for name, walk in _WALKS.items():
            if hasattr(traceback_module, name):  # one name is of Python 3.11 and later, another is older
                undo.append(_replaced(traceback_module, name, walk(getattr(traceback_module, name))))
        for owner, name, default in (
            (threading, "excepthook", threading.__excepthook__),
            (sys, "unraisablehook", sys.__unraisablehook__),
        ):
            if getattr(owner, name) is default:  # otherwise the program has set its own
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
        if f is None:
            # The caller of the module's function: the original counts frames, and this function is one of them.
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
    """Return the entries that the program would have without opdump, outermost first. Return all if opdump raised the error or asks for its own
    stack.
    """
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
    if code.co_filename.startswith(PACKAGE):
        return True
    return after_opdump and code.co_filename.endswith(_GLUE)
