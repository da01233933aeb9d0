"""Prevents additional runs of the program's callbacks while the rewriting of its graph is tried, and provides sessions for such trials.

When the runtime rewrites a graph, it folds constants, and for that it runs everything declared as stateless, including the program's Python
(`tf.numpy_function(..., stateful=False)` of a constant). A trial would run it an additional time. The first call of a callback in a trial
therefore counts as that of the following run: the run and later trials get the same answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.util import event_pb2
from tensorflow.python.ops import script_ops

from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph
from opdump.adapters.tensorflow.nodes import definitions_of

_Key = tuple[tuple[str, tuple[int, ...], bytes], ...]


class OwnSession(tf.compat.v1.Session):  # type: ignore[misc]  # TensorFlow has no types
    """A session that contains nothing of the program and is not recorded."""


class CallbackStubs:
    """The callbacks of a graph without declared state; the graph keeps their replacements alive."""

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
                    # The registry does not keep it alive; the graph does.
                    if not hasattr(self._graph, "_py_funcs_used_in_graph"):
                        self._graph._py_funcs_used_in_graph = []
                    self._graph._py_funcs_used_in_graph.append(understudy)


class _Understudy:
    """Replaces a callback in trials, and in the following run for as many calls as a trial made."""

    def __init__(self, callback: Callable[..., Any]) -> None:
        self.rehearses = False
        self._callback = callback
        self._known: dict[_Key, Future[Any]] = {}
        self._owed: Counter[_Key] = Counter()
        self._lock = threading.Lock()

    @property
    def owes(self) -> bool:
        """Whether a run must still get the answer of a trial."""
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
    except Exception as error:  # noqa: BLE001  an error of the program is raised in the following run
        answer.set_exception(error)
    return answer


def _bytes(array: Any) -> bytes:
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


# Looks up the graph that the runtime executes for a set of fetches, before anything runs.
#
# The runtime's debugger writes it when a callable is made of the fetches. Source: TensorFlow's direct_session.cc, debug_graph_utils.cc.

_NO_NODE: Final = "opdump/no node has this name"
"""The debugger writes graphs only if it watches a tensor."""


def executed_graph(
    session: Any, feeds: Collection[str], fetches: Sequence[str], targets: Sequence[str], place: Path
) -> ExecutedGraph:
    """The graph that the runtime executes for these feeds and fetches (tensors) and targets (operations), none of which runs.

    `place` is a directory that does not exist yet. Raises tf.errors.OpError if the runtime rejects them.
    """
    options = config_pb2.CallableOptions()
    options.feed.extend(sorted(feeds))
    options.fetch.extend(fetches)
    options.target.extend(targets)
    watch = options.run_options.debug_options.debug_tensor_watch_opts.add()
    watch.node_name, watch.output_slot = _NO_NODE, 0
    watch.debug_ops.append("DebugIdentity")
    watch.debug_urls.append(f"file://{place}")
    with CallbackStubs(session.graph).trial():  # constants are folded, which may call the program's Python
        made = session._make_callable_from_options(options)
    del made
    return ExecutedGraph(_published(place))


def _published(place: Path) -> Iterator[Any]:
    for path in sorted(place.rglob("_tfdbg_graph_*")):
        yield graph_pb2.GraphDef.FromString(event_pb2.Event.FromString(path.read_bytes()).graph_def)
