"""The compiled walk over frames and its Python twin return the same."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from opdump.interpreter import frames
from opdump.interpreter.frames import PythonFrames, calling_frame


def _nested(depth: int, work: Callable[[], Any]) -> Any:
    """A stack of several kinds of frames."""

    def ours(number: int) -> Any:
        return mine(number)

    def mine(number: int) -> Any:
        return work() if number == 0 else max(generated(number))

    def generated(number: int) -> Iterator[Any]:
        yield ours(number - 1)

    return ours(depth)


def _is_ours(code: CodeType) -> bool:
    return code.co_name == "ours"


def _is_mine(code: CodeType) -> bool | None:
    return None if code.co_name == "pytest_pyfunc_call" else code.co_name in ("mine", "generated")


@pytest.fixture(params=[PythonFrames, frames.Frames], ids=["Python", "the one in use"])
def walking(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_both_give_the_same_of_every_frame() -> None:
    one, other = PythonFrames(_is_ours, _is_mine), frames.Frames(_is_ours, _is_mine)

    def compare() -> int:
        frame = sys._getframe().f_back  # its own frame continues meanwhile
        count = 0
        while frame is not None:
            assert one.caller(frame) is other.caller(frame)
            assert one.place(frame) == other.place(frame) == (id(frame.f_code), frame.f_lasti)
            assert one.below(frame, "ours") == other.below(frame, "ours")
            for boundary in (0, id(frame), id(frame.f_back), id(sys._getframe())):
                assert one.walk(frame, boundary) == other.walk(frame, boundary)
            frame, count = frame.f_back, count + 1
        return count

    assert _nested(5, compare) > 20


def test_a_walk_ends_at_the_given_end(walking: Any) -> None:
    walk = walking(_is_ours, _is_mine)

    def look() -> tuple[Any, Any, FrameType]:
        frame = sys._getframe()
        outermost = frame
        while outermost.f_back is not None and outermost.f_code.co_name != "_nested":
            outermost = outermost.f_back
        return walk.walk(frame, 0), walk.walk(frame, id(outermost)), outermost

    (whole, nothing), (part, end), outermost = _nested(2, look)
    assert (nothing, end) == (None, outermost)
    assert whole == part
    assert len(part) == 2 * 5  # three of my calls, two generators


def test_no_frame_at_all(walking: Any) -> None:
    walk = walking(_is_ours, _is_mine)
    assert walk.caller(None) is None
    assert walk.walk(None, 0) == ([], None)
    assert walk.below(None, "x") == []


def test_what_a_question_raises_is_raised(walking: Any) -> None:
    def refuse(code: CodeType) -> bool:
        raise ArithmeticError(code.co_name)

    walk = walking(refuse, refuse)
    for call in (walk.caller, lambda frame: walk.walk(frame, 0), lambda frame: walk.below(frame, "x")):
        with pytest.raises(ArithmeticError, match="test_what"):
            call(sys._getframe())


def test_code_stays_alive_as_long_as_it_is_known(walking: Any) -> None:
    walk = walking(_is_ours, _is_mine)
    known = {"walk": walk.walk, "frame": sys._getframe}
    function = FunctionType(compile("walk(frame(), 0)", "<made>", "exec"), known)
    code = weakref.ref(function.__code__)
    function()
    known.clear()
    del function
    gc.collect()
    assert code() is not None
    del walk
    gc.collect()
    assert code() is None


def test_nothing_is_leaked(walking: Any) -> None:
    walk = walking(_is_ours, _is_mine)
    frame = sys._getframe()
    for _ in range(3):
        before = sys.getrefcount(frame), sys.getrefcount(frame.f_code)
        for _ in range(100):
            walk.caller(frame), walk.place(frame), walk.walk(frame, id(frame)), walk.below(frame, "x")
            calling_frame(0)
    assert (sys.getrefcount(frame), sys.getrefcount(frame.f_code)) == before


def test_the_calling_frame_is_that_of_the_interpreter() -> None:
    def inner(depth: int) -> bool:
        return calling_frame(depth) is sys._getframe(depth)

    assert inner(0)
    assert inner(1)
    with pytest.raises(ValueError, match="not deep enough"):
        calling_frame(100_000)
