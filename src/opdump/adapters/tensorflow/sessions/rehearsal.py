"""Keeps callbacks of the program from running once more while the rewriting of its graph is tried; and sessions for such trials.

The runtime folds constants where it rewrites a graph, and runs whatever is said to have no state for that: also the program's Python
(`tf.numpy_function(..., stateful=False)` of a constant). A trial would run it once more. So a callback that a trial calls for the first time is
run on behalf of the run that comes: that one is given the answer, and each later trial too.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from opdump.adapters.tensorflow.effects import definitions_of

_Key = tuple[tuple[str, tuple[int, ...], bytes], ...]


class OwnSession(tf.compat.v1.Session):  # type: ignore[misc]  # TensorFlow has no types
    """A session in which nothing is the program's, and which nobody records."""


class Rehearsal:
    """The callbacks without declared state of a graph, which keeps what stands for them alive."""

    def __init__(self, graph: Any) -> None:
        nodes = [operation.node_def for operation in graph.get_operations() if operation.type == "PyFuncStateless"]
        nodes += [node for each in definitions_of(graph).values() for node in each.node_def]
        tokens = {node.attr["token"].s.decode() for node in nodes if node.op == "PyFuncStateless"}
        self._understudies = []
        for token in sorted(tokens):
            callback = script_ops._py_funcs.get(token)
            if callback is not None:
                understudy = callback if isinstance(callback, _Understudy) else _Understudy(callback)
                self._understudies.append((token, callback, understudy))
        self._graph = graph

    @contextmanager
    def trial(self) -> Iterator[None]:
        """While the block runs, the callbacks are called by a trial."""
        for token, _, understudy in self._understudies:
            script_ops._py_funcs._funcs[token] = understudy
            understudy.rehearses = True
        try:
            yield
        finally:
            for token, callback, understudy in self._understudies:
                understudy.rehearses = False
                if not understudy.owes:
                    script_ops._py_funcs._funcs[token] = callback
                elif understudy is not callback:
                    # The registry holds nothing; the graph holds what it names.
                    if not hasattr(self._graph, "_py_funcs_used_in_graph"):
                        self._graph._py_funcs_used_in_graph = []
                    self._graph._py_funcs_used_in_graph.append(understudy)


class _Understudy:
    """Stands for a callback: in a trial, and in the run behind it as often as a trial ran the callback."""

    def __init__(self, callback: Callable[..., Any]) -> None:
        self.rehearses = False
        self._callback = callback
        self._known: dict[_Key, Future[Any]] = {}
        self._owed: Counter[_Key] = Counter()
        self._lock = threading.Lock()

    @property
    def owes(self) -> bool:
        """Whether a run is still to be given what a trial was."""
        return self._owed.total() > 0

    def __call__(self, *arrays: Any) -> Any:
        if not self.rehearses and not self.owes:
            return self._callback(*arrays)
        key = tuple((str(each.dtype), each.shape, _bytes(each)) for each in map(np.asarray, arrays))
        with self._lock:
            if self.rehearses:
                if key not in self._known:
                    self._known[key] = _asked(self._callback, arrays)
                    self._owed[key] += 1
            elif self._owed[key]:
                self._owed[key] -= 1
            else:
                return self._callback(*arrays)
            answer = self._known[key]
        return answer.result()


def _asked(callback: Callable[..., Any], arrays: tuple[Any, ...]) -> Future[Any]:
    answer: Future[Any] = Future()
    try:
        answer.set_result(callback(*arrays))
    except Exception as error:  # noqa: BLE001  whatever the program raises is raised in the run that comes
        answer.set_exception(error)
    return answer


def _bytes(array: Any) -> bytes:
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
