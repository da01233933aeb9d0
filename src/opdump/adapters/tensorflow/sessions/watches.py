"""Prevents additional runs of the program's callbacks while the rewriting of its graph is tried, and provides sessions for such trials.

When the runtime rewrites a graph, it folds constants, and for that it runs everything declared as stateless, including the program's Python
(`tf.numpy_function(..., stateful=False)` of a constant). A trial would run it an additional time. The first call of a callback in a trial
therefore counts as that of the following run: the run and later trials get the same answer.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import shutil
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, tensor_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.core.util import event_pb2
from tensorflow.python.debug.lib import debug_data
from tensorflow.python.ops import script_ops

from opdump.adapters.tensorflow.graphs.library import HANDLES, ExecutedGraph, Key, definitions_of
from opdump.adapters.tensorflow.graphs.program import ProgramOperator
from opdump.dump_file.reading import Field, fields
from opdump.sink.outside import remove_own, temporary_directory

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


# Watches tensors while a session runs: the runtime's debugger writes the values that it sees.
#
# A debug node is between an operator and all its readers, so a reference variable is seen before its update, a branch only if
# it was taken, and the body of a loop in each iteration. The files are in memory if the machine has a file system there.

_FILE: Final = re.compile(r"(.+)_(\d+)_DebugIdentity_(\d+)(?:-(\d+))?", re.ASCII | re.DOTALL)
_ORDER: Final = itemgetter(0, 1)
_TO_THE_ELEMENTS: Final = (5, 1, 8, 4)
"""Fields: Event.summary, Summary.value, Summary.Value.tensor, TensorProto.tensor_content. Source: TensorFlow's event.proto, summary.proto, tensor.proto."""
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a file system in memory; the directory in it has a unique name


class ObservedValue:
    """A value of a tensor in a run: the elements, and whether they stay unchanged; `moment` in microseconds orders the watched ones of a run."""

    __slots__ = ("array", "moment", "stays")

    def __init__(self, array: npt.NDArray[Any], moment: int = 0, *, stays: bool = True) -> None:
        self.array = array
        self.moment = moment
        self.stays = stays


def values_of(
    tensors: Iterable[Any], given: Iterable[Any], fed: Collection[str] = (), *, stays: bool = True
) -> Iterator[tuple[str, tuple[ObservedValue]]]:
    """The session's values for these tensors, by name; without fed tensors whose value is a handle."""
    for tensor, value in zip(tensors, given, strict=False):
        dtype, array = tensor.dtype.base_dtype, np.asarray(value)
        if tensor.name not in fed or dtype == tf.string or array.dtype == dtype.as_numpy_dtype:
            yield tensor.name, (ObservedValue(array, stays=stays),)


@dataclass(slots=True)
class WatchedRun:
    """The options of a run whose tensors are watched; after it, the values seen of each, by name, in order."""

    options: Any
    seen: Mapping[str, Sequence[ObservedValue]] = field(default_factory=dict)


class WatchFolders:
    """The debugger's directories for one session.

    The directory is part of the identity of a run: with another one, the runtime builds the graph again and keeps both. The same tensors are
    therefore written to the same directory each time, except for simultaneous runs. The directories are removed with the session.
    """

    def __init__(self, on_disk: Path | None = None) -> None:
        """`on_disk` is a directory for data that may be too large for memory; otherwise a file system in memory is used, if there is one."""
        self._on_disk = on_disk
        self._free: dict[tuple[str, ...], list[Path]] = {}
        self._lock = threading.RLock()
        self._root: Path | None = None
        self._numbers = itertools.count(1)

    @contextmanager
    def lent(self, names: tuple[str, ...]) -> Iterator[Path]:
        """An empty directory for these tensors."""
        with self._lock:
            free = self._free.setdefault(names, [])
            folder = free.pop() if free else self.new()
        folder.mkdir(exist_ok=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:
                self._free[names].append(folder)

    def new(self) -> Path:
        """The path of a unique directory that does not exist yet."""
        with self._lock:
            if self._root is None:
                where = self._on_disk or (_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None)
                self._root = temporary_directory("tf", where)
                weakref.finalize(self, remove_own, self._root)
            return self._root / str(next(self._numbers))


@contextmanager
def watching(tensors: Sequence[str], options: Any | None, folders: WatchFolders) -> Iterator[WatchedRun]:
    """Watch tensors (`{node}:{slot}`) in the run that the block makes with `options`, which otherwise stay the caller's."""
    watched = tf.compat.v1.RunOptions()
    if options is not None:
        watched.CopyFrom(options)
    with folders.lent(tuple(tensors)) as folder:
        for tensor in tensors:
            node, _, slot = tensor.rpartition(":")
            entry = watched.debug_options.debug_tensor_watch_opts.add()
            entry.node_name, entry.output_slot = node, int(slot)
            entry.debug_ops.append("DebugIdentity")
            entry.debug_urls.append(f"file://{folder}")
        run = WatchedRun(watched)
        try:
            yield run
        finally:  # also for a run that failed
            run.seen = _seen(folder)


def _seen(folder: Path) -> Mapping[str, Sequence[ObservedValue]]:
    """The contents of `{device}/{scope}/{node}_{slot}_DebugIdentity_{moment}[-{number}]`; the number distinguishes files of the same moment."""
    found: dict[str, list[tuple[int, int, ObservedValue]]] = {}
    for path in folder.rglob("*"):
        named = _FILE.fullmatch(path.name)
        if named is None or not path.is_file():
            continue
        value = _tensor_of(path)
        if value is None:
            continue  # uninitialised: no operator has written it yet
        node, slot, moment, number = named.groups()
        scope = path.parent.relative_to(folder).parts[1:]
        seen = ObservedValue(value, int(moment))
        found.setdefault(f"{'/'.join((*scope, node))}:{slot}", []).append((int(moment), int(number or 0), seen))
    return {name: [seen for _, _, seen in sorted(values, key=_ORDER)] for name, values in found.items()}


def _tensor_of(path: Path) -> npt.NDArray[Any] | None:
    """The tensor in a file, an `Event`. Its elements are mapped, and stay valid when the file is removed. None if it has no value."""
    with path.open("rb") as file:
        event = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    found = Field(0, has_length=True, tag=0, start=0, end=len(event))
    for number in _TO_THE_ELEMENTS:
        begin, end = found.start, found.end
        nothing = Field(number, has_length=True, tag=end, start=end, end=end)
        found = next((each for each in fields(event, begin, end) if each.number == number), nothing)
    if found.start == found.end:  # text, or no value
        value = debug_data.load_tensor_from_event_file(str(path))
        return None if isinstance(value, debug_data.InconvertibleTensorProto) else np.asarray(value)
    facts = tensor_pb2.TensorProto.FromString(bytes(event[begin : found.tag]))
    if facts.dtype in HANDLES:
        return None
    dtype = tf.dtypes.as_dtype(facts.dtype).as_numpy_dtype
    return np.frombuffer(event[found.start : found.end], dtype).reshape([each.size for each in facts.tensor_shape.dim])


# Computes operators apart that the runtime did not compute separately, from values seen in the run: fused ones, and summands that are not observed.
#
# They are in a graph of their own without rewriting, whose inputs are the seen tensors. Operators with effects are excluded.

Values = Mapping[Key, Sequence[ObservedValue]]
"""Tensor -> its values, one for each time that it was made."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Operators that read each other; their inputs determine how often they ran."""

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]


class RecomputeGraph:
    """Operators that are computed from seen values; the results of those in `wanted` are returned.

    `resolved` maps a tensor to the equal tensor that is observed; `session` is the one that runs the program.
    """

    def __init__(
        self,
        operators: Sequence[ProgramOperator],
        wanted: Collection[str],
        resolved: Callable[[Key], Key],
        session: Any,
    ) -> None:
        self._wanted = wanted
        self._numbers = {op.name: number for number, op in enumerate(operators)}
        self._resolved = resolved
        self._inputs: dict[Key, str] = {}
        self._keys = {slot.key for op in operators for slot in op.outputs}
        graph_def = graph_pb2.GraphDef()
        graph_def.library.CopyFrom(session.graph.as_graph_def(from_version=session.graph.version).library)
        for op in operators:
            self._add(op, graph_def)
        dtypes = {resolved(slot.key): slot.dtype for op in operators for slot in op.inputs}
        for key, name in self._inputs.items():
            node = graph_def.node.add()
            node.name, node.op = name, "Placeholder"
            node.attr["dtype"].type = dtypes[key]
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf.import_graph_def(graph_def, name="")
        self._session = OwnSession(graph=self._graph, config=_plain_config(session._config))
        self._parts = self._divided(operators)

    def computed(self, values: Values) -> dict[Key, list[ObservedValue]]:
        """The results of the operators for the seen values: one for each time that all of their inputs were made."""
        found: dict[Key, list[ObservedValue]] = {}
        once: list[_Part] = []
        for part in self._parts:
            seen = [values.get(key, ()) for key in part.inputs]
            counts = {len(each) for each in seen}
            if counts <= {1}:
                once.append(part)
            elif 0 not in counts:
                self._several(part, seen, max(counts), found)
        if once:
            self._run(once, lambda key: values[key][0], found)
        return found

    def _several(
        self, part: _Part, seen: Sequence[Sequence[ObservedValue]], count: int, found: dict[Key, list[ObservedValue]]
    ) -> None:
        moving = [len(each) for each in seen if len(each) > 1]
        count = min(moving) if moving else count  # the initial value of a loop is additional
        for number in range(count):
            given = {
                key: each[0] if len(each) == 1 else each[number] for key, each in zip(part.inputs, seen, strict=True)
            }
            self._run([part], given.__getitem__, found)

    def _run(
        self, parts: Iterable[_Part], value: Callable[[Key], ObservedValue], found: dict[Key, list[ObservedValue]]
    ) -> None:
        feeds: dict[str, Any] = {}
        fetches: list[Key] = []
        moment = 0
        for part in parts:
            for key in part.inputs:
                given = value(key)
                moment = max(moment, given.moment)
                feeds[f"{self._inputs[key]}:0"] = given.array
            fetches += part.outputs
        results = self._session.run([self._name(key) for key in fetches], feeds)
        for key, result in zip(fetches, results, strict=True):
            found.setdefault(key, []).append(ObservedValue(np.asarray(result), moment))

    def _name(self, key: Key) -> str:
        name, _, slot = key.rpartition(":")
        return f"n{self._numbers[name]}:{slot}"

    def _add(self, op: ProgramOperator, graph_def: Any) -> None:
        node = graph_def.node.add()
        node.CopyFrom(op.node)
        node.name, node.device = f"n{self._numbers[op.name]}", ""
        node.ClearField("experimental_debug_info")
        for attribute in [name for name in node.attr if name.startswith("_")]:
            del node.attr[attribute]
        del node.input[:]
        for slot in op.inputs:
            key = self._resolved(slot.key)
            if key in self._keys:
                node.input.append(self._name(key))
            else:
                node.input.append(self._inputs.setdefault(key, f"given{len(self._inputs)}"))

    def _divided(self, operators: Sequence[ProgramOperator]) -> list[_Part]:
        """The parts that are connected only through constants and inputs."""
        part_of: dict[str, dict[str, ProgramOperator]] = {}
        for op in operators:
            joined = {op.name: op}
            for slot in op.inputs:
                maker = self._resolved(slot.key).rpartition(":")[0]
                if maker in part_of and part_of[maker][maker].inputs:
                    joined.update(part_of[maker])
            part_of.update(dict.fromkeys(joined, joined))
        parts = {id(part): part for part in part_of.values()}.values()
        return [made for part in parts if (made := self._part(part.values())).outputs]

    def _part(self, operators: Iterable[ProgramOperator]) -> _Part:
        read = [self._resolved(slot.key) for op in operators for slot in op.inputs]
        inputs = tuple(dict.fromkeys(key for key in read if key not in self._keys))
        wanted = [op for op in operators if op.name in self._wanted]
        return _Part(inputs, tuple(slot.key for op in wanted for slot in op.outputs if not slot.is_handle))


def _plain_config(config: Any | None) -> Any:
    """The session's threads, and a graph that is not rewritten."""
    made = tf.compat.v1.ConfigProto()
    if config is not None:
        made.intra_op_parallelism_threads = config.intra_op_parallelism_threads
        made.inter_op_parallelism_threads = config.inter_op_parallelism_threads
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    made.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    made.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    return made
