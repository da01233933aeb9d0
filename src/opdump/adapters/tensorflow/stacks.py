"""Finds the lines of the program behind an operator: where it was put into a graph or traced, or where it ran at once.

TensorFlow keeps the stack of each operation of a graph, and hands it on to the definition of a function. What was imported
(a GraphDef, a SavedModel) has none: the lines that ran it stand for it, which whoever emits a run has to give.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, Final, Literal

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.util import tf_stack

from opdump.adapters.program_code import is_programs, runs_programs
from opdump.records import Frame

Stack = tuple[Frame, ...]
"""Innermost first."""

_PACKAGES: Final = ("keras", "tf_keras", "tensorflow_estimator", "optree", "tree", "wrapt")
"""Parts of the framework beside `tensorflow`, and what they call their own functions through."""
_GENERATED: Final = "__autograph_generated_file"
"""Of such files AutoGraph alone knows the lines of the program."""
_Kind = Literal["program", "framework", "generated", "runs programs"]
_NONE: Final[Mapping[str, Stack]] = MappingProxyType({})


class Stacks:
    """Reads and interns stacks: the frames outside TensorFlow, Keras, opdump and the standard library."""

    def __init__(self) -> None:
        self._framework = tuple(_directories())
        self._kinds: dict[tuple[str, str], _Kind] = {}
        """By the file and the name of a function."""
        self._frames: dict[tuple[str, int, str], Frame] = {}
        self._stacks: dict[tuple[int, ...], Stack] = {}
        """By the identity of the frames, which are kept. A layout files a stack once that it is given twice."""
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
        found = self._of_functions.get(name)
        if found is None:
            found = self._read(name)
            if found is None:
                return _NONE
            self._of_functions[name] = found
        return found

    def of_call(self, frame: FrameType | None = None) -> Stack:
        """The lines above a frame, by default above the caller's; where there are none, those that began this thread's work."""
        frame = sys._getframe(1) if frame is None else frame
        frames = []
        while frame is not None:
            code = frame.f_code
            kind = self._kind_of(code.co_filename, code.co_name)
            if kind == "runs programs":
                break
            if kind == "generated":
                return self._of_trace(_frames_of(tf_stack.extract_stack())) or getattr(self._here, "began", ())
            if kind == "program":
                frames.append(self._frame(code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        return self._interned(frames) if frames else getattr(self._here, "began", ())

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

    def _of_trace(self, lines: Iterable[tuple[str, int, str]]) -> Stack:
        """A stack of TensorFlow's, innermost first."""
        frames: list[Frame] = []
        for file, line, function in lines:
            kind = self._kind_of(file, function)
            if kind == "runs programs":
                break
            if kind in ("program", "generated"):
                frame = self._frame(file, line, function or "<lambda>")  # AutoGraph has no name for a lambda
                if function or frames[-1:] != [frame]:  # and makes two functions of it
                    frames.append(frame)
        return self._interned(frames)

    def _kind_of(self, file: str, function: str) -> _Kind:
        kind = self._kinds.get((file, function))
        if kind is None:
            if runs_programs(file):
                kind = "runs programs"
            elif Path(file).name.startswith(_GENERATED):
                kind = "generated"
            else:
                kind = "program" if is_programs(file, function, self._framework) else "framework"
            self._kinds[file, function] = kind
        return kind

    def _frame(self, file: str, line: int, function: str) -> Frame:
        key = (file, line, function)
        if key not in self._frames:
            self._frames[key] = Frame(file, line, function, linecache.getline(file, line).strip())
        return self._frames[key]

    def _interned(self, frames: list[Frame]) -> Stack:
        key = tuple(map(id, frames))
        found = self._stacks.get(key)
        if found is None:
            found = self._stacks[key] = tuple(frames)
        return found


def stack_of_node(name: str, stacks: Mapping[str, Stack], otherwise: Stack = ()) -> Stack:
    """That of a node of a function's definition; `otherwise` where it has none.

    A definition gives a node that has the name of one of the function's results another one: `add_0` for `add`.
    """
    found = stacks.get(name)
    if found is None:
        before, _, number = name.rpartition("_")
        found = stacks.get(before) if number.isdecimal() else None
    return otherwise if found is None else found


def _frames_of(trace: Any) -> Iterable[tuple[str, int, str]]:
    return ((frame.filename, frame.lineno, frame.name) for frame in reversed(list(trace)))


def _directories() -> Iterable[str]:
    """Where the framework's own files are, without importing what the program does not."""
    yield f"{Path(tf.__file__).parent}/"
    for name in _PACKAGES:
        spec = sys.modules[name].__spec__ if name in sys.modules else importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield f"{place}/"
