"""A replaced function looks like the original to tools that identify functions by their code and names."""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from opdump.adapters.replacements import Replacements, for_each_replacement


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
