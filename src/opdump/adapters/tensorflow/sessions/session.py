"""Captures the runs of one session, operator by operator. The answers stay the same as without a capture.

In a dumped step, the tensors behind the fetches are fetched in the same run, and those that cannot be fetched are watched. The graph is
not changed, so a finalised one works. In other steps, the run is the program's own.
"""

from __future__ import annotations

import functools
import os
import re
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module

from opdump.adapters.graph_runtime import StepCount, live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.program_stacks import Stack
from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.capture import Capture, FailedRun
from opdump.adapters.tensorflow.graphs.library import (
    OF_SESSION,
    Key,
    Slot,
    callees_of,
    clusters_sessions,
    has_marked_clusters,
    hidden_callees,
    reachable,
)
from opdump.adapters.tensorflow.graphs.operator_kinds import draws_seeded_numbers, folds_callbacks, may_fold_callbacks
from opdump.adapters.tensorflow.sessions.observation_plan import ObservationPlan
from opdump.adapters.tensorflow.sessions.subgraph import (
    Purpose,
    Subgraph,
    operator_of,
    program_of,
    purpose_of,
    read_variable,
    subgraph_of,
)
from opdump.adapters.tensorflow.sessions.watches import (
    ObservedValue,
    OwnSession,
    WatchedRun,
    WatchFolders,
    values_of,
    watching,
)
from opdump.adapters.tensorflow.stacks import fetched_names
from opdump.interpreter.critical_sections import no_garbage_collection
from opdump.recorder import LiveTensor, Recorder, isolated_from_program

RunFunction = Callable[..., Any]
"""`BaseSession.run`, bound to its session."""

_DATASETS = ("Dataset", "DatasetV2", "DatasetV3", "DatasetV4", "OneShotIterator")
_CLOSE = 1e-2
"""A difference far greater than rounding, and smaller than an update of a variable."""
_FROM_HOOKS = "caller"
"""A monitored session has the program's own fetches under this key, separate from those of its hooks."""


class _Call(NamedTuple):
    """A call of `session.run` by the program."""

    run: RunFunction
    fetches: Any
    feed_dict: Mapping[Any, Any] | None
    options: Any | None
    run_metadata: Any | None

    def plain(self) -> Any:
        """The result of the session."""
        return self.run(self.fetches, self.feed_dict, self.options, self.run_metadata)

    def with_more(self, tensors: Sequence[Any]) -> Any:
        """The result, and additional tensors of the same run. Feeds stay unchanged."""
        return self._replace(fetches=[self.fetches, [*tensors]]).plain()


class _Signature:
    """A set of fetches: its model, and its number of runs."""

    def __init__(self, capture: Capture, elements: Sequence[Any]) -> None:
        self.elements = tuple(elements)
        self.model = capture.new_model(*fetched_names(elements))
        self.steps = StepCount(capture.plan.initial_iteration)
        self.purpose: Purpose | None = None
        """None before its first run."""
        self.subgraphs: dict[frozenset[str], Subgraph] = {}
        """By the fed tensors: the operator of a fed tensor does not run."""
        self.dumps: dict[frozenset[str], ObservationPlan] = {}
        """By the fed tensors."""
        self.is_always_extended = False
        """Whether all its steps run like dumped ones: see `hazards.py`."""

    def subgraph(self, fed: frozenset[str]) -> Subgraph:
        if fed not in self.subgraphs:
            self.subgraphs[fed] = subgraph_of(self.elements, fed)
        return self.subgraphs[fed]


class SessionCapture:
    """Numbers the runs of one session, and records the selected ones. Call `closed` when the session ends."""

    def __init__(self, capture: Capture, session: Any, closed: Callable[[SessionCapture], object]) -> None:
        self.capture = capture
        self.closed = closed
        self.not_steps: Counter[Purpose] = Counter()
        """Runs that are not iterations, by purpose."""
        self._session: Any = weakref.proxy(session)
        self._graph = session.graph
        self._failures = capture.failures
        self._records = not capture.plan.mode.failures_only
        self._signatures: dict[Any, _Signature] = {}
        self._kept: list[Any] = []
        """The objects in the keys of the signatures, which contain identities."""
        self._folders = WatchFolders(_beside(Path(capture.plan.path)) if capture.streams else None)
        self._beside = threading.local()
        """The additional `tensors` of a run of this thread, and their values in `given`."""

    @property
    def _recorder(self) -> Recorder:
        """For `isolated_from_program`."""
        return self.capture.recorder

    def run(
        self,
        run: RunFunction,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: Any | None = None,
        run_metadata: Any | None = None,
    ) -> Any:
        """The result of `session.run`."""
        call = _Call(run, fetches, feed_dict, options, run_metadata)
        signature = self._signature(fetches)
        if signature is None:
            return call.plain()
        if not self._is_step(signature, feed_dict):
            return self._ran(signature, self.capture.plan.initial_iteration, call, dumps=False, extends=False)
        with signature.steps.counted() as step:
            wanted = self._records and self.capture.wants(step)
            dumps = wanted and not self.capture.is_over
            extends = dumps or (self._records and signature.is_always_extended)
            result = self._ran(signature, step, call, dumps=dumps, extends=extends)
        self.capture.ended(signature.model.names, step)
        if wanted:
            with self.capture.lock:
                self.capture.end_step(step)
        return result

    def set_up(self, set_up: Callable[[Any, Any], Any], fetches: Any, feeds: Sequence[Any] | None = None) -> Any:
        """The result of `session.partial_run_setup`. Its parts are not recorded."""
        self.capture.note("runs in parts (partial_run) are not recorded: use session.run")
        return set_up(fetches, feeds)

    def do_run(self, do_run: Callable[..., Any], handle: Any, targets: Any, fetches: list[Any], *more: Any) -> Any:
        """The result of `session._do_run`. Additional fetches are added here, because `session.run` takes four times as long per fetch as the runtime."""
        given = do_run(handle, targets, [*fetches, *getattr(self._beside, "tensors", ())], *more)
        self._beside.given = given[len(fetches) :]
        return given[: len(fetches)]

    def _ran(self, signature: _Signature, step: int, call: _Call, *, dumps: bool, extends: bool) -> Any:
        """The result of a run of the program. It is dumped, run like a dumped one (`extends`), or left unchanged; a failure is recorded."""
        if not extends and self._failures is None:
            return call.plain()
        fed = fed_names(call.feed_dict, self._graph)
        subgraph = signature.subgraph(fed)
        run_at = self.capture.stacks.of_call() if dumps else ()
        watched = WatchedRun(call.options)
        values: dict[str, Any] = {}
        try:
            dump = self._looking(signature, fed) if extends else None
            watches = self._watches(subgraph, dump)
            before = self._read_before(dump) if dump is not None and dumps else {}
            with watching(watches, call.options, self._folders) if watches else nullcontext(watched) as watched:
                call = call._replace(options=watched.options)
                if dump is None:
                    result = call.plain()
                else:
                    self._beside.tensors, self._beside.given = dump.fetches, ()
                    try:
                        result, given = call.with_more(dump.programs)
                    finally:
                        self._beside.tensors = ()
                    values.update(values_of(dump.programs, given, fed, stays=False))  # the program may write into these
                    values.update(values_of(dump.fetches, self._beside.given))
        except tf.errors.OpError as error:
            if self._failures is not None:
                run = FailedRun(signature.model, step, subgraph, call.run, call.feed_dict, watched.seen)
                self._failures.record(error, run)
            raise
        if dump is not None and dumps:
            self._emit(signature, dump, {**before, **watched.seen, **values}, step, run_at)
        return result

    def _watches(self, subgraph: Subgraph, dump: ObservationPlan | None) -> tuple[Key, ...]:
        """The tensors to watch, for a dump and for the records of a failure."""
        watches = [] if dump is None else list(dump.watches)
        if self._failures is not None:
            watched = self._failures.watched(subgraph)
            watches += [tensor.name for tensor in watched if read_variable(tensor) is None]
        return tuple(dict.fromkeys(watches))

    def _read_before(self, dump: ObservationPlan) -> dict[str, Any]:
        """The values of variables that unobservable functions will read."""
        if not dump.reads:
            return {}
        try:  # `run` would look up the fetches again
            answers = self._session._do_run(None, [], list(dump.reads.values()), {}, None, None)
        except tf.errors.OpError:  # the program's own run raises the error
            return {}
        return {key: (ObservedValue(np.asarray(value)),) for key, value in zip(dump.reads, answers, strict=True)}

    @isolated_from_program
    def _emit(
        self, signature: _Signature, dump: ObservationPlan, values: dict[str, Any], step: int, run_at: Stack
    ) -> None:
        """Pass a finished run to the recorder; notes report what is missing."""
        values.update(dump.constants)
        if dump.apart is not None:
            try:
                computed = dump.apart.computed(values)
                wrong = [call for call, key in dump.checks if not _agree(values.get(call, ()), computed.get(key, ()))]
                if wrong:  # an operator wrote a variable during the run
                    self.capture.note(
                        f"{signature.model.name}: {', '.join(wrong)} cannot be recomputed from the recorded values"
                    )
                    inner = tuple(f"{call.rpartition(':')[0]}/" for call in wrong)
                    values = {key: each for key, each in values.items() if not key.startswith(inner)}
                    computed = {key: each for key, each in computed.items() if not key.startswith(inner)}
                values.update(computed)
            except tf.errors.OpError as error:  # the program's own run has succeeded
                self.capture.note(
                    f"{signature.model.name}: operators cannot be computed apart: {error.message.splitlines()[0]}"
                )
        if dump.lost:
            self.capture.note(
                f"{signature.model.name}: {', '.join(dump.lost)} are not dumped, because observing them would change the answer"
            )
        if dump.left_to_chance:
            self.capture.note(
                f"{signature.model.name}: the order of summation in {', '.join(dump.left_to_chance)} depends on timing, with or "
                "without a dump; the last bits may differ from run to run"
            )
        with self.capture.lock:
            dump.emitter.emit(values, step, run_at)

    def _signature(self, fetches: Any) -> _Signature | None:
        """The signature of a fetch structure; None if the session will reject it."""
        if (
            isinstance(fetches, dict)
            and _FROM_HOOKS in fetches
            and all(key == _FROM_HOOKS or not isinstance(key, str) for key in fetches)
        ):
            fetches = fetches[_FROM_HOOKS]
        key = _key(fetches)
        if key is not None and key in self._signatures:
            return self._signatures[key]
        elements = self._elements_if_possible(fetches)
        if not elements:
            return None
        named = tuple(sorted(element.name for element in elements))
        signature = self._signatures.get(named)
        if signature is None:
            signature = self._signatures[named] = _Signature(self.capture, elements)
        if key is not None:
            self._signatures[key] = signature
            self._kept.append(elements)
        return signature

    def _elements_if_possible(self, fetches: Any) -> list[Any] | None:
        """None if the session will reject it with an error."""
        try:
            return _elements(fetches, self._graph)
        except (TypeError, ValueError, KeyError, RuntimeError):
            return None

    def _is_step(self, signature: _Signature, feeds: Iterable[Any] | None) -> bool:
        """Whether a run of a signature is a step; other runs are counted."""
        purpose = signature.purpose or self._first_run(signature, feeds)
        if purpose != "step":
            self.not_steps[purpose] += 1
        return purpose == "step"

    def _first_run(self, signature: _Signature, feeds: Iterable[Any] | None) -> Purpose:
        """On the first run, determine the purpose of a signature, and write its graph."""
        subgraph = signature.subgraph(fed_names(feeds, self._graph))
        purpose = signature.purpose = purpose_of(subgraph, signature.elements)
        signature.is_always_extended = self.capture.plan.steps.last is not None and self._has_own_state(subgraph)
        for op in subgraph.operations:
            if self._records and op.type.endswith(_DATASETS) and hidden_callees(op.node_def):
                self.capture.note(
                    f"the functions that {op.name} ({op.type}) runs are not shown: a data set runs them in threads of the runtime"
                )
        write = self.capture.write_graph
        if write is not None and self._records and not self.capture.is_over:
            write(signature.model, subgraph, is_computational=purpose == "step")
        return purpose

    def _has_own_state(self, subgraph: Subgraph) -> bool:
        """Whether the operators include some with state that each set of fetches has for itself."""
        nodes = [op.node_def for op in subgraph.operations if op.name in subgraph.with_effects]
        if not (may_fold_callbacks(nodes) or any(map(callees_of, nodes))):
            return False
        program = program_of(subgraph, self.capture.stacks)
        return draws_seeded_numbers(op.node for op in program.operators if op.body) or folds_callbacks(program)

    @isolated_from_program
    def _looking(self, signature: _Signature, fed: frozenset[str]) -> ObservationPlan | None:
        """None if the runtime rejects the program's request, which its own run reports, and if the graph cannot be determined."""
        found = signature.dumps.get(fed)
        if found is not None:
            return found
        subgraph = signature.subgraph(fed)
        is_clustered = self._clusters(subgraph)
        if is_clustered:
            self.capture.note(OF_SESSION.format(signature.model.names[0]))
        try:
            with no_garbage_collection():
                found = ObservationPlan(
                    self.capture,
                    signature.model,
                    self._session,
                    signature.elements,
                    subgraph,
                    self._folders.new,
                    asked_only=is_clustered,
                )
        except tf.errors.OpError:
            return None
        signature.dumps[fed] = found
        return found

    def _clusters(self, subgraph: Subgraph) -> bool:
        """Whether XLA compiles operators that it selects itself, or that are marked for it."""
        marked = has_marked_clusters(op.node_def for op in subgraph.operations)
        return marked or clusters_sessions(self._session._config)


def _agree(gave: Sequence[ObservedValue], computed: Sequence[ObservedValue]) -> bool:
    """Whether the recomputed values are equal except for their last bits."""
    return len(gave) == len(computed) and all(
        np.array_equal(one.array, other.array)
        or (one.array.dtype.kind in "fc" and np.allclose(one.array, other.array, _CLOSE, _CLOSE, equal_nan=True))
        for one, other in zip(gave, computed, strict=True)
    )


def _beside(dump: Path) -> Path | None:
    """A directory on the disk of the dump; None if the user has none there."""
    places = (place for place in (dump.parent, dump) if place.is_dir() and os.access(place, os.W_OK))
    return next(places, None)


def fed_names(feeds: Iterable[Any] | None, graph: Any) -> frozenset[str]:
    """The names of the tensors in the keys of a feed dictionary; keys that a session rejects are omitted."""
    names = set()
    for key in feeds or ():
        for element in tf.nest.flatten(key, expand_composites=True):
            with suppress(TypeError, ValueError, KeyError):
                names.add(graph.as_graph_element(element, allow_operation=False).name)
    return frozenset(names)


def _key(fetches: Any) -> Any:
    """A cheap key of a fetch structure, by the identity of graph elements; None for other elements."""
    if isinstance(fetches, (tf.Tensor, tf.Operation)):
        return id(fetches)
    kind = type(fetches)
    if kind not in (list, tuple, dict):
        return None
    parts = [_key(each) for each in (fetches.values() if kind is dict else fetches)]
    return None if None in parts else (kind, *parts)


def _elements(fetches: Any, graph: Any) -> list[Any]:
    """The tensors and operations of a fetch structure, each once."""
    with graph.as_default():  # names and tensors are looked up there, even if the program is in another graph
        mapper = session_module._FetchMapper.for_fetch(fetches)
    found = [
        graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True) for fetch in mapper.unique_fetches()
    ]
    return list({element.name: element for element in found}.values())


# Intercepts sessions: each session created while the interception is installed is recorded if a capture selects it.
#
# This includes `Session`, `InteractiveSession`, monitored sessions and estimators, `Tensor.eval` and `make_callable`, which all use
# `BaseSession`. Sessions with a capture keep it when the interception is removed.

CaptureOf = Callable[[Any], Capture | None]
"""The capture for a session with this ConfigProto (None for a session without one); None if it is not recorded."""

_ATTRIBUTE = "_opdump_capture"
_BaseSession = session_module.BaseSession


class Interception:
    """Assigns the captures of `capture_of` to sessions from `put_in` to `take_out`; `closed` is called with each captured session that ends.

    If several are installed, the last one is used: a capture that a user began has priority over the program's own request.
    """

    def __init__(self, capture_of: CaptureOf, closed: Callable[[SessionCapture], object]) -> None:
        self.capture_of = capture_of
        self.closed = closed

    def put_in(self) -> None:
        if not _IN_PLACE:
            for name, own in _METHODS.items():
                _REPLACEMENTS.replace(_BaseSession, name, _instead(getattr(_BaseSession, name), own))
        _IN_PLACE.append(self)

    def take_out(self) -> None:
        """Do nothing if it is not installed."""
        if self in _IN_PLACE:
            _IN_PLACE.remove(self)
            if not _IN_PLACE:
                _REPLACEMENTS.restore()


def _instead(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a session: `own` gets the original one, bound to the session, and the session."""

    @functools.wraps(original)
    def method(session: Any, *args: Any, **kwargs: Any) -> Any:
        return own(functools.partial(original, session), session, *args, **kwargs)

    return method


def _init(original: Callable[..., None], session: Any, *args: Any, **kwargs: Any) -> None:
    original(*args, **kwargs)
    if isinstance(session, OwnSession) or not _IN_PLACE:
        return
    latest = _IN_PLACE[-1]
    capture = latest.capture_of(session._config)
    if capture is None:
        return
    if session.sess_str:
        capture.note(f"the session of the server {session.sess_str!r} is not recorded: it runs in another process")
        return
    found = SessionCapture(capture, session, latest.closed)
    capture.has_sessions = True
    setattr(session, _ATTRIBUTE, found)


def _handed_on(own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that a session with a capture delegates to the capture."""

    def method(original: Callable[..., Any], session: Any, *args: Any, **kwargs: Any) -> Any:
        found = _capture_of_session(session)
        return original(*args, **kwargs) if found is None else own(found, original, *args, **kwargs)

    return method


def _make_callable(
    original: Callable[..., Any], session: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False
) -> Any:
    plain = original(fetches, feed_list, accept_options)
    found = _capture_of_session(session)
    return plain if found is None else _recorded(plain, found, session, fetches, list(feed_list or ()))


def _callable_from_options(original: Callable[..., Any], session: Any, callable_options: Any) -> Any:
    plain = original(callable_options)
    found = _capture_of_session(session)
    if found is None:
        return plain
    options = callable_options
    if not isinstance(options, config_pb2.CallableOptions):
        options = config_pb2.CallableOptions.FromString(options)
    if options.tensor_connection:  # in a plain run, such a tensor has no feed of its own
        found.capture.note("callables with tensor connections are not recorded")
        return plain
    element = session.graph.as_graph_element
    fetches = [[*map(element, options.fetch)], [*map(element, options.target)]]
    feeds = [*map(element, options.feed)]
    as_session = functools.wraps(plain)(lambda *values, **kwargs: [plain(*values, **kwargs), None])
    return _recorded(as_session, found, session, fetches, feeds, itemgetter(0))


def _close(original: Callable[..., None], session: Any) -> None:
    original()
    found = _capture_of_session(session)
    if found is not None:
        delattr(session, _ATTRIBUTE)
        found.closed(found)


def _recorded(
    plain: Callable[..., Any],
    capture: SessionCapture,
    session: Any,
    fetches: Any,
    feeds: Sequence[Any],
    result: Callable[[Any], Any] = lambda answer: answer,
) -> Callable[..., Any]:
    """A callable that a session made, whose runs are captured. It returns the `result` of `session.run` for its fetches."""
    session_run = getattr(_BaseSession.run, "__wrapped__", _BaseSession.run)  # without interception

    @functools.wraps(plain)
    def call(*values: Any, **kwargs: Any) -> Any:
        options = kwargs.get("options")

        def run(requested: Any, given: Any, changed: Any, run_metadata: Any) -> Any:
            if requested is fetches and changed is options:
                return plain(*values, **kwargs)
            feed = {key: value.numpy() if hasattr(value, "numpy") else value for key, value in given.items()}
            return session_run(session, requested, feed, changed, run_metadata)

        if len(values) != len(feeds):
            return result(plain(*values, **kwargs))  # it reports the error
        given = dict(zip(feeds, values, strict=True))
        return result(capture.run(run, fetches, given, options, kwargs.get("run_metadata")))

    return call


def _capture_of_session(session: Any) -> SessionCapture | None:
    found: SessionCapture | None = session.__dict__.get(_ATTRIBUTE)
    return found


# A process has one class of sessions.
_IN_PLACE: Final[list[Interception]] = []
_REPLACEMENTS: Final = Replacements()
_METHODS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "__init__": _init,
        "run": _handed_on(SessionCapture.run),
        "_do_run": _handed_on(SessionCapture.do_run),
        "make_callable": _make_callable,
        "_make_callable_from_options": _callable_from_options,
        "partial_run_setup": _handed_on(SessionCapture.set_up),
        "close": _close,
    }
)


# Records the failed operator of a session, with its inputs.
#
# A failed run returns nothing, so the inputs of its operators are computed again. The second run is fed with the inputs of the program, and
# with everything that the failed run took from state (variables, iterators, random numbers), as the runtime's debugger saw it during that
# run. It therefore changes nothing and computes the same values.

_EXPECTED: Final = (tf.errors.OutOfRangeError, tf.errors.CancelledError, tf.errors.AbortedError)
"""The end of the data, and the error of a session that was stopped: not failures of an operator."""

_NODE: Final = re.compile(r"\[\[(?:\{\{node )?([^\]}]+)")
"""A node in a message of the runtime."""


class FailureDump:
    """Records the failed operators of sessions. `opened` creates the capture on first use: without a failure there is no directory.

    `whole`: with the inputs; otherwise only names, types and the message.
    """

    def __init__(self, opened: Callable[[], Capture], *, whole: bool) -> None:
        self.whole = whole
        self._opened = opened
        self._capture: Capture | None = None

    def watched(self, subgraph: Subgraph) -> tuple[Any, ...]:
        """The tensors of a signature to watch, so that a failure in it can be recorded completely."""
        if not self.whole:
            return ()

        def is_watched(tensor: Any) -> bool:
            access = subgraph.access(tensor)
            return access == "watch" or (access == "fetch" and tensor.op.name in subgraph.with_effects)

        tensors = (tensor for op in subgraph.operations for tensor in op.outputs if tensor.name not in subgraph.fed)
        return tuple(filter(is_watched, tensors))

    def record(self, error: BaseException, failed: FailedRun) -> None:
        """Record a failure; do nothing if no operator failed."""
        if isinstance(error, _EXPECTED) or not isinstance(error, tf.errors.OpError):
            return
        subgraph = failed.subgraph
        op = _failed(error, subgraph)
        if op is None:
            return
        if self._capture is None:
            self._capture = self._opened()
        capture = self._capture
        values = self._values(capture, op, failed) if self.whole else {}
        own, run_at = operator_of(op, subgraph, capture.stacks), capture.stacks.of_call()
        operator = own.named(subgraph.operations.index(op))
        inputs = [_live(slot, values) for slot in own.inputs]
        with capture.lock:
            capture.run(failed.model, failed.step, called_at=run_at).fail(operator, _message_of(error), inputs)

    def _values(self, capture: Capture, op: Any, failed: FailedRun) -> dict[str, npt.NDArray[Any]]:
        """The inputs of the operator by tensor name, as far as they are available."""
        subgraph, seen = failed.subgraph, failed.seen
        tensors = {tensor.name: tensor for tensor in op.inputs if subgraph.access(tensor) != "handle"}
        values = {name: seen[name][-1].array for name in tensors if seen.get(name)}
        wanted = [
            tensor for name, tensor in tensors.items() if name not in values and subgraph.access(tensor) == "fetch"
        ]
        state = _results_of_effects(failed)
        if wanted and _is_settled(wanted, subgraph, {tensor.name for tensor in state}):
            try:
                answers = failed.run(wanted, {**dict(failed.feed_dict or {}), **state}, None, None)
            except tf.errors.OpError as problem:  # the program gets the original error
                capture.note(f"the inputs of {op.name} cannot be recomputed: {problem.message}")
            else:
                values.update(zip((tensor.name for tensor in wanted), map(np.asarray, answers), strict=True))
        return values


def _results_of_effects(failed: FailedRun) -> dict[Any, npt.NDArray[Any]]:
    """The results, where they were seen, of the operations that must not run again."""
    return {
        tensor: failed.seen[tensor.name][-1].array
        for operation in failed.subgraph.operations
        for tensor in operation.outputs
        if failed.seen.get(tensor.name) and operation.name in failed.subgraph.with_effects
    }


def _failed(error: tf.errors.OpError, subgraph: Subgraph) -> Any | None:
    """The operator that failed; for one in a function, the operator that ran the function: `[[{{node Log}}]] [[IteratorGetNext]]`."""
    named = {each.name: each for each in subgraph.operations}
    if error.op is not None:
        return named.get(error.op.name)
    return next((named[name] for name in reversed(_NODE.findall(error.message)) if name in named), None)


def _is_settled(wanted: Sequence[Any], subgraph: Subgraph, known: set[str]) -> bool:
    """Whether the computation of these tensors reads or changes no state except the known values."""
    settled = known | subgraph.fed

    def before(operation: Any) -> Iterator[Any]:
        yield from (tensor.op for tensor in operation.inputs if tensor.name not in settled)
        for other in operation.control_inputs:
            if not other.outputs or not settled.issuperset(tensor.name for tensor in other.outputs):
                yield other

    def is_settled(operation: Any) -> bool:
        gives_handle = bool(operation.outputs) and subgraph.access(operation.outputs[0]) == "handle"
        return operation.name not in subgraph.with_effects or gives_handle

    first = [tensor.op for tensor in wanted if tensor.name not in settled]
    return all(map(is_settled, reachable(first, before)))


def _live(slot: Slot, values: Mapping[str, npt.NDArray[Any]]) -> LiveTensor:
    if slot.key in values:
        return live_tensor(slot.slot, slot.argument, HostTensor.of_array(values[slot.key]), slot.source)
    return live_tensor(slot.slot, slot.argument, slot.dtype_name, slot.source, "not executed")


def _message_of(error: tf.errors.OpError) -> Exception:
    """An exception with the class name of the runtime's error, whose text is only its message."""
    message: Exception = type(error.__class__.__name__, (Exception,), {})(error.message)
    return message
