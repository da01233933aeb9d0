"""Puts sessions under capture: each that is made while the interception is in place is recorded where a capture wants it.

Caught are `Session`, `InteractiveSession`, monitored sessions and estimators, `Tensor.eval`, `make_callable`: all of them run through
`BaseSession`. The interception goes when it is taken out; sessions that have a capture keep it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module

from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.sessions.rehearsal import OwnSession
from opdump.adapters.tensorflow.sessions.session import RunFunction, SessionCapture

CaptureOf = Callable[[Any], Capture | None]
"""The capture for a session with this ConfigProto (None: it was given none); None where it is not to be recorded."""

_ATTRIBUTE = "_opdump_capture"
_BaseSession = session_module.BaseSession


class Interception:
    """Gives sessions the capture of `capture_of` from `put_in` to `take_out`; `closed` is called with each session under capture that ends.

    Of several that are in place the last one counts: a capture that a user began counts for more than what a program asks for.
    """

    def __init__(self, capture_of: CaptureOf, closed: Callable[[SessionCapture], object]) -> None:
        self.capture_of = capture_of
        self.closed = closed

    def put_in(self) -> None:
        if not _METHODS.interceptions:
            _METHODS.replace()
        _METHODS.interceptions.append(self)

    def take_out(self) -> None:
        """Nothing where it is not in place."""
        if self in _METHODS.interceptions:
            _METHODS.interceptions.remove(self)
            if not _METHODS.interceptions:
                _METHODS.put_back()


class _Methods:
    """The methods of `BaseSession` while an interception is in place."""

    def __init__(self) -> None:
        self.interceptions: list[Interception] = []
        self._originals: dict[str, Any] = {}

    def replace(self) -> None:
        for name, make in (
            ("__init__", self._init),
            ("run", self._run),
            ("_do_run", self._do_run),
            ("make_callable", self._make_callable),
            ("_make_callable_from_options", self._callable_from_options),
            ("partial_run_setup", self._partial_run_setup),
            ("close", self._close),
        ):
            original = getattr(_BaseSession, name)
            self._originals[name] = original
            setattr(_BaseSession, name, functools.wraps(original)(make(original)))

    def run_of(self, session: Any) -> RunFunction:
        """What `session.run` is without interception."""
        return functools.partial(self._originals.get("run", _BaseSession.run), session)

    def put_back(self) -> None:
        for name, original in self._originals.items():
            setattr(_BaseSession, name, original)
        self._originals = {}

    def _init(self, original: Any) -> Any:
        def initialise(session: Any, *args: Any, **kwargs: Any) -> None:
            original(session, *args, **kwargs)
            if isinstance(session, OwnSession):
                return
            config = session._config
            latest = self.interceptions[-1] if self.interceptions else None
            capture = latest.capture_of(config) if latest is not None else None
            if latest is None or capture is None:
                return
            if session.sess_str:
                capture.note(
                    f"the session of the server {session.sess_str!r} is not recorded: it runs in another process"
                )
                return
            found = SessionCapture(capture, session, latest.closed)
            capture.has_sessions = True
            setattr(session, _ATTRIBUTE, found)

        return initialise

    def _run(self, original: Any) -> Any:
        def run(
            session: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
        ) -> Any:
            found = _capture_of_session(session)
            if found is None or found.is_busy:
                return original(session, fetches, feed_dict, options, run_metadata)
            return found.run(functools.partial(original, session), fetches, feed_dict, options, run_metadata)

        return run

    def _do_run(self, original: Any) -> Any:
        def _do_run(
            session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any, options: Any, run_metadata: Any
        ) -> Any:
            found = _capture_of_session(session)
            if found is not None and handle is not None and not targets:  # with targets it is refused

                def run_part(other: Any) -> Any:
                    return original(session, handle, targets, other, feeds, options, run_metadata)

                return found.part(run_part, handle, fetches, feeds)
            extended = None if found is None else found.extended(fetches, targets, feeds)
            if found is None or extended is None:
                return original(session, handle, targets, fetches, feeds, options, run_metadata)
            return found.received(original(session, handle, extended[1], extended[0], feeds, options, run_metadata))

        return _do_run

    def _make_callable(self, original: Any) -> Any:
        def make_callable(session: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
            plain = original(session, fetches, feed_list, accept_options)
            found = _capture_of_session(session)
            if found is None:
                return plain
            return _recorded(plain, found, self.run_of(session), fetches, list(feed_list or ()))

        return make_callable

    def _callable_from_options(self, original: Any) -> Any:
        def _make_callable_from_options(session: Any, callable_options: Any) -> Any:
            plain = original(session, callable_options)
            found = _capture_of_session(session)
            if found is None:
                return plain
            options = callable_options
            if not isinstance(options, config_pb2.CallableOptions):
                options = config_pb2.CallableOptions.FromString(options)
            if options.tensor_connection:  # such a tensor has no feed of its own in a plain run
                found.capture.note("callables with tensor connections are not recorded")
                return plain
            element = session.graph.as_graph_element
            fetches = [[*map(element, options.fetch)], [*map(element, options.target)]]
            return _recorded(plain, found, self.run_of(session), fetches, [*map(element, options.feed)], itemgetter(0))

        return _make_callable_from_options

    def _partial_run_setup(self, original: Any) -> Any:
        def partial_run_setup(session: Any, fetches: Any, feeds: Any = None) -> Any:
            found = _capture_of_session(session)
            set_up = functools.partial(original, session)
            return set_up(fetches, feeds) if found is None else found.set_up(set_up, fetches, feeds)

        return partial_run_setup

    def _close(self, original: Any) -> Any:
        def close(session: Any) -> None:
            original(session)
            found = _capture_of_session(session)
            if found is not None:
                delattr(session, _ATTRIBUTE)
                found.closed(found)

        return close


def _recorded(
    plain: Callable[..., Any],
    capture: SessionCapture,
    session_run: RunFunction,
    fetches: Any,
    feeds: Sequence[Any],
    result: Callable[[Any], Any] = lambda answer: answer,
) -> Callable[..., Any]:
    """A callable that a session made, with its runs under capture. It gives the `result` of what `session_run` gives for its fetches."""

    @functools.wraps(plain)
    def call(*values: Any, **kwargs: Any) -> Any:
        def run(requested: Any, given: Any, options: Any, run_metadata: Any) -> Any:
            if requested is fetches and not capture.is_busy:
                return plain(*values, **kwargs)
            feed = {tensor: _as_array(value) for tensor, value in given.items()}
            answer = session_run(requested, feed, options, run_metadata)
            return result(answer) if requested is fetches else answer

        if len(values) != len(feeds):
            return plain(*values, **kwargs)  # it says what is wrong
        given = dict(zip(feeds, values, strict=True))
        return capture.run(run, fetches, given, kwargs.get("options"), kwargs.get("run_metadata"))

    return call


def _as_array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value


def _capture_of_session(session: Any) -> SessionCapture | None:
    found: SessionCapture | None = session.__dict__.get(_ATTRIBUTE)
    return found


# There is one class of sessions in a process.
_METHODS: Final = _Methods()


@contextmanager
def intercept_sessions(capture_of: CaptureOf, closed: Callable[[SessionCapture], object]) -> Iterator[None]:
    """Intercepts sessions while the block runs."""
    interception = Interception(capture_of, closed)
    interception.put_in()
    try:
        yield
    finally:
        interception.take_out()
