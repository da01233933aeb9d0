"""Stacks of the program, and replaced functions that look like the original."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from opdump.adapters import program_stacks
from opdump.adapters.program_stacks import OPDUMP, ProgramStacks
from opdump.adapters.replacements import Replacements, for_each_replacement


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


def test_equal_stacks_are_one_object() -> None:
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


def test_stacks_are_released_with_their_records() -> None:
    def used() -> ProgramStacks:
        stacks = ProgramStacks([])
        assert stacks.running(sys._getframe())
        return stacks

    assert not alive(used)


class Layer:
    def run(self, x: int, *, scale: int = 1) -> int:
        """The original."""
        return x * scale

    @classmethod
    def make(cls, x: int) -> tuple[str, int]:
        return cls.__name__, x

    @staticmethod
    def plain(x: int) -> int:
        return x


def _frame_of(method: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The local variables that a profiler finds in the frame of a method when it is called."""
    found: list[dict[str, Any]] = []

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename == __file__ and not found:
            found.append(dict(frame.f_locals))

    sys.setprofile(profile)
    try:
        method(*args, **kwargs)
    finally:
        sys.setprofile(None)
    return found[0]


def test_a_profiler_finds_the_object_as_self_in_the_frame_of_a_replaced_method() -> None:
    layer, original = Layer(), Layer.run

    def watched(module: Layer, /, *args: Any, **kwargs: Any) -> int:
        return original(module, *args, **kwargs)

    with Replacements() as replacements:
        replacements.replace(Layer, "run", watched)
        code = Layer.run.__code__
        assert (code.co_name, code.co_varnames[0]) == ("run", "self")
        assert _frame_of(layer.run, 3, scale=2)["self"] is layer
        assert layer.run(3, scale=2) == 6
        assert inspect.signature(Layer.run) == inspect.signature(original)
        assert (Layer.run.__qualname__, Layer.run.__doc__) == ("Layer.run", "The original.")
        if sys.version_info >= (3, 11):
            assert code.co_qualname == "Layer.run"
    assert Layer.run is original


def test_an_object_that_the_replacement_knows_as_self_does_not_hide_that_of_the_call() -> None:
    layer, original = Layer(), Layer.run

    class Watcher:
        look: Callable[[], Layer]

        def watch(self) -> Any:
            def watched(module: Layer, *args: Any, **kwargs: Any) -> int:
                self.look = lambda: module
                return original(module, *args, **kwargs)

            return watched

    watcher = Watcher()
    with Replacements() as replacements:
        replacements.replace(Layer, "run", watcher.watch())
        assert _frame_of(layer.run, 3)["self"] is layer
        assert layer.run(4) == 4
    assert watcher.look() is layer


@pytest.mark.parametrize("name", ["make", "plain"])
def test_methods_of_classes_keep_their_names(name: str) -> None:
    original = getattr(Layer, name)

    def watched(first: Any, *args: Any) -> Any:
        return original(*((first,) if name == "plain" else ()), *args)

    kind = classmethod if name == "make" else staticmethod
    with Replacements() as replacements:
        replacements.replace(Layer, name, kind(watched))
        assert watched.__code__.co_name == name
        assert watched.__code__.co_varnames[0] == ("cls" if name == "make" else "x")
        assert getattr(Layer, name)(5) == original(5)


def test_a_method_written_in_c_gets_a_replacement_of_its_name() -> None:
    class Ordered(OrderedDict[str, int]):
        pass

    original = OrderedDict.move_to_end

    def watched(found: Any, *args: Any) -> None:
        original(found, *args)

    with Replacements() as replacements:
        replacements.replace(Ordered, "move_to_end", watched)
        assert (watched.__code__.co_name, watched.__code__.co_varnames[0]) == ("move_to_end", "self")
        Ordered(a=1, b=2).move_to_end("a")
    assert Ordered.move_to_end is original


def test_the_code_of_replacements_stays_the_same_over_captures() -> None:
    def replaced_once() -> Any:
        def watched(layer: Layer, x: int) -> int:
            return x

        with Replacements() as replacements:
            replacements.replace(Layer, "run", watched)
            return Layer.run.__code__

    told: list[Any] = []
    first = replaced_once()
    for_each_replacement(told.append)
    assert any(code is first for code in told)
    assert replaced_once() is first
