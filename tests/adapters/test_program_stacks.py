"""Stacks of the program: which lines they contain, equal stacks are one object, and none is kept forever."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from opdump.adapters import program_stacks
from opdump.adapters.program_stacks import OPDUMP, ProgramStacks


def frame_of(source: str, file: str = "<program>") -> FrameType:
    """The frame of a program, which captures it by calling `here()`."""
    space: dict[str, Any] = {"here": lambda: sys._getframe(1)}
    exec(compile(source, file, "exec"), space)
    found: FrameType = space["frame"]
    return found


def own(stack: program_stacks.Stack) -> list[tuple[int, str]]:
    return [(frame.line, frame.function) for frame in stack if frame.file == "<program>"]


def test_lines_are_those_of_the_program_innermost_first() -> None:
    frame = frame_of("def inner():\n    return here()\n\ndef outer():\n    return inner()\n\nframe = outer()")
    assert own(ProgramStacks([]).running(frame)) == [(2, "inner"), (5, "outer"), (7, "<module>")]


def test_lines_of_the_framework_are_left_out() -> None:
    frame = frame_of("def inner():\n    return here()\n\nframe = inner()", "/lib/framework/core.py")
    assert all("/lib/framework/" not in each.file for each in ProgramStacks(["/lib/framework/"]).running(frame))
    assert any("/lib/framework/" in each.file for each in ProgramStacks([]).running(frame))


def test_a_recursion_has_a_line_for_each_call() -> None:
    frame = frame_of("again = lambda n: again(n - 1) if n else here()\nframe = again(2)")
    assert own(ProgramStacks([]).running(frame)) == [(1, "<lambda>")] * 3 + [(2, "<module>")]


def test_equal_stacks_are_one_object_whoever_has_kept_them() -> None:
    stacks = ProgramStacks([])
    frames = [frame_of("def inner():\n    return here()\nframe = inner()") for _ in range(2)]
    first, second = map(stacks.running, frames)
    assert first is second
    assert stacks.of_lines((each.file, each.line, each.function) for each in first) is first


def test_a_stack_ends_at_what_runs_the_program() -> None:
    lines = [("train.py", 3, "step"), (f"{OPDUMP}commands/run.py", 9, "run"), ("/usr/bin/opdump", 1, "<module>")]
    assert [frame.file for frame in ProgramStacks([]).of_lines(lines)] == ["train.py"]
    assert ProgramStacks([]).of_lines([]) == ()


def test_a_program_that_compiles_code_in_each_step_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_stacks, "_MOST", 50)
    stacks = ProgramStacks([])
    codes = []
    for number in range(300):
        frame = frame_of("def inner():\n    return here()\nframe = inner()")
        codes.append(weakref.ref(frame.f_code))
        assert own(stacks.running(frame)) == [(2, "inner"), (3, "<module>")], number
        del frame
    gc.collect()
    assert sum(code() is not None for code in codes) <= 60


def alive(make: Callable[[], object]) -> bool:
    made = weakref.ref(make())
    gc.collect()
    return made() is not None


def test_stacks_go_with_who_has_them() -> None:
    def used() -> ProgramStacks:
        stacks = ProgramStacks([])
        assert stacks.running(sys._getframe())
        return stacks

    assert not alive(used)
