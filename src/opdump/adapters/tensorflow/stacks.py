"""Names models as the program does, before they run, so that a `dump_list` can name them.

a tf.function                  train_step                its Python function
Keras fit, evaluate, predict   mlp, train_function       the Keras model (or its `name_model`), and its function
a signature of a SavedModel    serving_default, score    its key, and the saved function
a session                      train, loss               the operators that it fetches
the eager program              eager
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, MappingProxyType, TracebackType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.util import tf_stack

from opdump.adapters.program_marks import ModelNames
from opdump.adapters.program_stacks import Line, ProgramStacks, Stack, runs_programs
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.graphs.library import Definition, callees_of, plain_name
from opdump.interpreter.frames import clean_message, without_own_frames

EAGER: Final = "eager"
_WRAPPER: Final = "signature_wrapper_"
_RESTORED: Final = "restored_function_body"
_OWNERS: Final = (
    ("keras.src.trainers.trainer", "Trainer"),
    ("keras.src.backend.tensorflow.trainer", "TensorFlowTrainer"),
    ("keras.src.engine.training", "Model"),
    ("tf_keras.src.engine.training", "Model"),
)
_METHODS: Final = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


def function_names(name: str, definition: Definition) -> tuple[str, ...]:
    """The possible names of a traced function."""
    plain = plain_name(name)
    found = [plain]
    if plain.startswith(_WRAPPER):
        found = [*_signature_keys(name), plain.removeprefix(_WRAPPER), plain]
    elif plain == _RESTORED:
        found = [*(plain_name(callee.function) for node in definition.node_def for callee in callees_of(node)), plain]
    return tuple(dict.fromkeys(found))


def fetched_names(elements: Sequence[Any]) -> tuple[str, ...]:
    """The names of a session's fetches."""
    return tuple(dict.fromkeys(element.name.partition(":")[0] for element in elements))


def _signature_keys(name: str) -> Iterator[str]:
    """A signature's key is in the map that the program loaded, not in the function."""
    for found in gc.get_objects():
        if type(found).__name__ == "_SignatureMap":
            for key, function in found.items():
                if getattr(function, "name", b"") == name.encode():
                    yield str(key)


class KerasModels:
    """The Keras model that trains, is evaluated or predicts in a thread, while `watched` is open."""

    def __init__(self, given: ModelNames) -> None:
        self._given = given
        self._running = threading.local()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model that is running in this thread."""
        model = getattr(self._running, "model", None)
        if model is None:
            return ()
        given = self._given.of(model)
        return (*([] if given is None else [given]), str(model.name))

    @contextmanager
    def watched(self) -> Iterator[None]:
        with Replacements() as replacements:
            replace_methods(replacements, [(*owner, method) for owner in _OWNERS for method in _METHODS], self._around)
            yield

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(model: Any, *args: Any, **kwargs: Any) -> Any:
            before, self._running.model = getattr(self._running, "model", None), model
            try:
                return original(model, *args, **kwargs)
            finally:
                self._running.model = before

        return method


def replace_methods(
    replacements: Replacements, methods: Iterable[tuple[str, str, str]], around: Callable[[Callable[..., Any]], object]
) -> None:
    """Replace methods (module, class, name) by the result of `around`, if this version has them."""
    for module_name, class_name, name in methods:
        owner = getattr(imported_module(module_name), class_name, None)
        original = None if owner is None else vars(owner).get(name)
        if original is not None:
            replacements.replace(owner, name, around(original))


def imported_module(name: str) -> Any:
    """A module of an imported package; None if this version has no module with that name."""
    if name.partition(".")[0] not in sys.modules:
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


# Finds the program lines of an operator: those that added it to a graph, traced it, or ran it eagerly.
#
# TensorFlow keeps the stack of each operation of a graph, and passes it on to the definition of a function. An imported graph
# (a GraphDef, a SavedModel) has none: the caller that emits a run provides the lines that ran it.

_PACKAGES: Final = ("keras", "tf_keras", "tensorflow_estimator", "optree", "tree", "wrapt")
"""Parts of the framework outside `tensorflow`, and wrappers of its functions."""
_GENERATED: Final = "__autograph_generated_file"
"""In such files, only AutoGraph knows the program lines."""
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
        """This thread works for its creator, as in `pool.map(tf.sin, ...)`: operators without program lines get these."""
        before, self._here.began = getattr(self._here, "began", ()), began or ()
        try:
            yield
        finally:
            self._here.began = before

    def of_operation(self, operation: Any) -> Stack:
        """Where an operation of a graph was created; empty for an imported one."""
        known = self._of_graphs.setdefault(operation.graph, {})
        found = known.get(operation.name)
        if found is None:
            trace = operation.traceback
            found = known[operation.name] = () if trace is None else self._of_trace(_frames_of(trace))
        return found

    def of_function(self, name: str) -> Mapping[str, Stack]:
        """Where the nodes of a registered function were traced, without nodes that were not."""
        if name not in self._of_functions:
            found = self._read(name)
            if found is None:
                return _NONE
            self._of_functions[name] = found
        return self._of_functions[name]

    def of_call(self, frame: FrameType | None = None) -> Stack:
        """The lines above a frame, by default the caller's; if there are none, the lines that started this thread's work."""
        found = self.running(sys._getframe(1) if frame is None else frame)
        if any(_GENERATED in each.file for each in found):
            found = self._of_trace(_frames_of(tf_stack.extract_stack()))
        return found or getattr(self._here, "began", ())

    def _read(self, name: str) -> Mapping[str, Stack] | None:
        context = eager_context.context_safe()
        if context is None or not context._initialized:  # a query would initialise the runtime
            return None
        try:
            info = context.get_graph_debug_info(name)
        except tf.errors.OpError:  # only part of a graph, or removed
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
    """The stack of a node in the definition of a function; `otherwise` if it has none.

    In a definition, a node with the same name as one of the function's results is renamed: `add_0` for `add`.
    """
    found = stacks.get(name)
    if found is None:
        before, _, number = name.rpartition("_")
        found = stacks.get(before) if number.isdecimal() else None
    return otherwise if found is None else found


def _frames_of(trace: Any) -> Iterable[Line]:
    return ((frame.filename, frame.lineno, frame.name) for frame in reversed(list(trace)))


def _directories() -> Iterable[str]:
    """The directories of the framework's own files, without an import of modules that the program does not use."""
    yield f"{Path(tf.__file__).parent}/"
    for name in _PACKAGES:
        module = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if module is None else module.__spec__
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield f"{place}/"


# Makes errors of TensorFlow show the same program lines as without opdump.
#
# TensorFlow and Keras remove their own frames from the tracebacks of errors, and from the stacks of operators in graphs, which errors
# contain. opdump's frames are removed in the same way.

_FILTERS: Final = (
    "tensorflow.python.util.traceback_utils",
    "keras.src.utils.traceback_utils",
    "tf_keras.src.utils.traceback_utils",
)
_FILTER: Final = "_process_traceback_frames"


@contextmanager
def program_tracebacks() -> Iterator[None]:
    """While open, an error in a function of the program shows the same lines as without opdump."""
    files = _OwnFiles()
    waiting = tf_stack._source_filter_stacks[tf_stack._get_thread_key()]
    files.parent = waiting[-1]
    files.update()
    with Replacements() as replacements:
        for module in map(imported_module, _FILTERS):
            if hasattr(module, _FILTER):
                replacements.replace(module, _FILTER, _around(getattr(module, _FILTER)))
        waiting.append(files)
        try:
            yield
        finally:
            waiting.remove(files)  # by now the program may be within a filter of its own


class _OwnFiles(tf_stack.StackTraceFilter):  # type: ignore[misc]  # TensorFlow has no types
    """The files whose frames are omitted from the stacks of operators, in the capturing thread."""

    def __init__(self) -> None:
        super().__init__()
        self.parent: Any = None
        own = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "opdump"]
        files = (getattr(module, "__file__", None) for module in own)
        self._files = frozenset([*filter(None, files), *_below_program(sys._getframe())])

    def get_filtered_filenames(self) -> frozenset[str]:
        return self._files | frozenset(self.parent.get_filtered_filenames())


def _below_program(frame: FrameType | None) -> Iterator[str]:
    """The files of the frames that run the program, such as those of the command line."""
    below = False
    while frame is not None:
        file = frame.f_code.co_filename
        below = below or runs_programs(file)
        if below:
            yield file
        frame = frame.f_back


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def process(traceback: TracebackType | None) -> Any:
        error = sys.exc_info()[1]
        if error is not None:
            clean_message(error)  # TensorFlow writes the traceback of a callback into the message
        return original(without_own_frames(traceback))

    return process
