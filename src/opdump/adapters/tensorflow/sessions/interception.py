"""Intercepts sessions: each session created while the interception is installed is recorded if a capture selects it.

This includes `Session`, `InteractiveSession`, monitored sessions and estimators, `Tensor.eval` and `make_callable`, which all use
`BaseSession`. Sessions with a capture keep it when the interception is removed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import session as session_module

from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.capture import Capture
from opdump.adapters.tensorflow.sessions.rehearsal import OwnSession
from opdump.adapters.tensorflow.sessions.session import SessionCapture

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
        "partial_run": _handed_on(SessionCapture.part),
        "partial_run_setup": _handed_on(SessionCapture.set_up),
        "close": _close,
    }
)
