"""Finds the lines of the program behind an operator: where it was put into a graph or traced, or where it ran at once.

TensorFlow keeps the stack of each operation of a graph, and hands it on to the definition of a function. What was imported
(a GraphDef, a SavedModel) has none: the lines that ran it stand for it, which whoever emits a run has to give.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.util import tf_stack

from opdump.adapters.program_stacks import Line, ProgramStacks, Stack

_PACKAGES: Final = ("keras", "tf_keras", "tensorflow_estimator", "optree", "tree", "wrapt")
"""Parts of the framework beside `tensorflow`, and what they call their own functions through."""
_GENERATED: Final = "__autograph_generated_file"
"""Of such files AutoGraph alone knows the lines of the program."""
_LAMBDA: Final = "<lambda>"
_NONE: Final[Mapping[str, Stack]] = MappingProxyType({})


class Stacks(ProgramStacks):
    """Reads stacks: the frames outside TensorFlow, Keras, opdump and the standard library."""

    def __init__(self) -> None:
        super().__init__(_directories())
        self._of_graphs: weakref.WeakKeyDictionary[Any, dict[str, Stack]] = weakref.WeakKeyDictionary()
        self._of_functions: dict[str, Mapping[str, Stack]] = {}
        self._here = threading.local()

    @contextmanager
    def within(self, began: Stack | None) -> Iterator[None]:
        """This thread works for what began it there: these lines stand for those of what runs without any, as `pool.map(tf.sin, ...)`."""
        before, self._here.began = getattr(self._here, "began", ()), began or ()
        try:
            yield
        finally:
            self._here.began = before

    def of_operation(self, operation: Any) -> Stack:
        """Where an operation of a graph was made; empty of one that was imported."""
        known = self._of_graphs.setdefault(operation.graph, {})
        found = known.get(operation.name)
        if found is None:
            trace = operation.traceback
            found = known[operation.name] = () if trace is None else self._of_trace(_frames_of(trace))
        return found

    def of_function(self, name: str) -> Mapping[str, Stack]:
        """Where the nodes of a function that the runtime knows were traced; without those that were not."""
        if name not in self._of_functions:
            found = self._read(name)
            if found is None:
                return _NONE
            self._of_functions[name] = found
        return self._of_functions[name]

    def of_call(self, frame: FrameType | None = None) -> Stack:
        """The lines above a frame, by default above the caller's; where there are none, those that began this thread's work."""
        found = self.running(sys._getframe(1) if frame is None else frame)
        if any(_GENERATED in each.file for each in found):
            found = self._of_trace(_frames_of(tf_stack.extract_stack()))
        return found or getattr(self._here, "began", ())

    def _read(self, name: str) -> Mapping[str, Stack] | None:
        context = eager_context.context_safe()
        if context is None or not context._initialized:  # a query would begin the runtime's work
            return None
        try:
            info = context.get_graph_debug_info(name)
        except tf.errors.OpError:  # of a graph alone, or gone
            return None
        frames = {
            number: (info.files[frame.file_index], frame.line, frame.func)
            for number, frame in info.frames_by_id.items()
        }
        stacks = {
            number: self._of_trace(frames[each] for each in reversed(trace.frame_id))
            for number, trace in info.traces_by_id.items()
        }
        return {node: stacks[number] for node, number in info.name_to_trace_id.items() if stacks[number]}

    def _of_trace(self, lines: Iterable[Line]) -> Stack:
        """A stack of TensorFlow's, innermost first. AutoGraph has no name for a lambda, and makes two functions of it."""
        found: list[Line] = []
        for file, line, function in self.program_lines(lines):
            if function or found[-1:] != [(file, line, _LAMBDA)]:
                found.append((file, line, function or _LAMBDA))
        return self.of_lines(found)


def stack_of_node(name: str, stacks: Mapping[str, Stack], otherwise: Stack = ()) -> Stack:
    """That of a node of a function's definition; `otherwise` where it has none.

    A definition gives a node that has the name of one of the function's results another one: `add_0` for `add`.
    """
    found = stacks.get(name)
    if found is None:
        before, _, number = name.rpartition("_")
        found = stacks.get(before) if number.isdecimal() else None
    return otherwise if found is None else found


def _frames_of(trace: Any) -> Iterable[Line]:
    return ((frame.filename, frame.lineno, frame.name) for frame in reversed(list(trace)))


def _directories() -> Iterable[str]:
    """Where the framework's own files are, without importing what the program does not."""
    yield f"{Path(tf.__file__).parent}/"
    for name in _PACKAGES:
        module = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if module is None else module.__spec__
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield f"{place}/"
