"""Makes errors of TensorFlow show the same program lines as without opdump.

TensorFlow and Keras remove their own frames from the tracebacks of errors, and from the stacks of operators in graphs, which errors
contain. opdump's frames are removed in the same way.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from tensorflow.python.util import tf_stack

from opdump.adapters.program_stacks import runs_programs
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.model_names import imported_module
from opdump.interpreter.tracebacks import clean_message, without_own_frames

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
