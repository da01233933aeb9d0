"""Streams, events and callbacks of `acl.rt`. Work is executed synchronously: only callbacks are waited for."""

from __future__ import annotations

import time
from typing import Any, Final

from opdump.acl.handles import CallError, Code, Event, Stream, returns_code, returns_value
from opdump.acl.process import FOREVER, process

_COMPLETE: Final = 0
_NOT_READY: Final = 1
_WAIT_NOT_READY: Final = 0xFFFF


def check_stream(stream: int, where: str) -> None:
    """Raises CallError for an invalid stream. Stream 0 is the default one."""
    if stream != 0:
        process().handles.get(stream, Stream, where)


# -------------------------------------------------------------------------------------------------------------- streams


@returns_value(0)
def create_stream() -> int:
    return process().handles.add(Stream())


@returns_value(0)
def create_stream_with_config(priority: int, flag: int) -> int:
    """The same: priority and flag are ignored."""
    del priority, flag
    return process().handles.add(Stream())


@returns_code
def destroy_stream(stream: int) -> None:
    process().handles.remove(stream, Stream, "acl.rt.destroy_stream")


destroy_stream_force = destroy_stream


@returns_code
def synchronize_stream(stream: int) -> None:
    """Wait for the callbacks of a stream; all other work has finished already. Returns 507012 if no thread would run them."""
    check_stream(stream, "acl.rt.synchronize_stream")
    process().reports.wait(stream, "acl.rt.synchronize_stream")


@returns_code
def synchronize_stream_with_timeout(stream: int, timeout: int) -> None:
    """The same for at most `timeout` milliseconds (-1: forever). Returns 507046 after a timeout."""
    where = "acl.rt.synchronize_stream_with_timeout"
    check_stream(stream, where)
    _check_timeout(timeout, where)
    process().reports.wait(stream, where, timeout)


@returns_code
def synchronize_device() -> None:
    """Wait for the callbacks of every stream."""
    process().reports.wait(None, "acl.rt.synchronize_device")


@returns_value(_NOT_READY)
def stream_query(stream: int) -> int:
    """0 if all work of a stream has finished, 1 if callbacks have not run."""
    check_stream(stream, "acl.rt.stream_query")
    return _NOT_READY if process().reports.has_undone(stream) else _COMPLETE


# --------------------------------------------------------------------------------------------------------------- events


@returns_value(0)
def create_event() -> int:
    return process().handles.add(Event())


@returns_value(0)
def create_event_with_flag(flag: int) -> int:
    """The same: flags are ignored."""
    del flag
    return process().handles.add(Event())


create_event_ex_with_flag = create_event_with_flag


@returns_code
def destroy_event(event: int) -> None:
    process().handles.remove(event, Event, "acl.rt.destroy_event")


@returns_code
def record_event(event: int, stream: int) -> None:
    """The event completes immediately, and stores the time."""
    check_stream(stream, "acl.rt.record_event")
    process().handles.get(event, Event, "acl.rt.record_event").recorded = time.perf_counter_ns()


@returns_code
def reset_event(event: int, stream: int) -> None:
    check_stream(stream, "acl.rt.reset_event")
    process().handles.get(event, Event, "acl.rt.reset_event").recorded = None


@returns_value(_NOT_READY)
def query_event(event: int) -> int:
    """0 for an event that was recorded, otherwise 1."""
    recorded = process().handles.get(event, Event, "acl.rt.query_event").recorded
    return _NOT_READY if recorded is None else _COMPLETE


@returns_value(0)
def query_event_status(event: int) -> int:
    """1 for an event that was recorded, otherwise 0."""
    return int(process().handles.get(event, Event, "acl.rt.query_event_status").recorded is not None)


@returns_value(_WAIT_NOT_READY)
def query_event_wait_status(event: int) -> int:
    """0: nothing waits for it."""
    process().handles.get(event, Event, "acl.rt.query_event_wait_status")
    return _COMPLETE


@returns_code
def synchronize_event(event: int) -> None:
    process().handles.get(event, Event, "acl.rt.synchronize_event")


@returns_code
def synchronize_event_with_timeout(event: int, timeout: int) -> None:
    _check_timeout(timeout, "acl.rt.synchronize_event_with_timeout")
    process().handles.get(event, Event, "acl.rt.synchronize_event_with_timeout")


@returns_code
def stream_wait_event(stream: int, event: int) -> None:
    check_stream(stream, "acl.rt.stream_wait_event")
    process().handles.get(event, Event, "acl.rt.stream_wait_event")


@returns_value(0.0)
def event_elapsed_time(start: int, end: int) -> float:
    """Milliseconds between two events. Returns 107006 if one was not recorded, 107007 if the second came first."""
    where = "acl.rt.event_elapsed_time"
    first, last = (process().handles.get(event, Event, where).recorded for event in (start, end))
    if first is None or last is None:
        raise CallError(Code.EVENT_TIMESTAMP_INVALID, f"{where}: an event was not recorded; call acl.rt.record_event")
    if last < first:
        raise CallError(Code.EVENT_TIMESTAMP_REVERSAL, f"{where}: the second event was recorded before the first")
    return (last - first) / 1e6


@returns_value(0)
def event_get_timestamp(event: int) -> int:
    """Microseconds of the host's clock when it was recorded. Returns 107006 if it was not."""
    recorded = process().handles.get(event, Event, "acl.rt.event_get_timestamp").recorded
    if recorded is None:
        raise CallError(
            Code.EVENT_TIMESTAMP_INVALID, "acl.rt.event_get_timestamp: it was not recorded; call acl.rt.record_event"
        )
    return recorded // 1000


# ------------------------------------------------------------------------------------------------------------ callbacks


@returns_code
def subscribe_report(thread: int, stream: int) -> None:
    """From now on `thread` (of `acl.util.start_thread`, `threading.get_ident()`) runs the callbacks of a stream.

    Returns 107011 if a thread has subscribed to it already.
    """
    check_stream(stream, "acl.rt.subscribe_report")
    process().reports.subscribe(thread, stream, "acl.rt.subscribe_report")


@returns_code
def unsubscribe_report(thread: int, stream: int) -> None:
    """End the subscription. Returns 107011 if this thread has not subscribed."""
    check_stream(stream, "acl.rt.unsubscribe_report")
    process().reports.unsubscribe(thread, stream, "acl.rt.unsubscribe_report")


@returns_code
def launch_callback(function: Any, data: Any, block_type: int, stream: int) -> None:
    """Queue the call `function(data)` for the thread that has subscribed to the stream. Returns 107015 if none has."""
    where = "acl.rt.launch_callback"
    check_stream(stream, where)
    if not callable(function) or block_type not in (0, 1):
        raise CallError(
            Code.INVALID_PARAM,
            f"{where}: found {function!r} and block type {block_type!r}, expected a function and 0 or 1 (the stream waits)",
        )
    process().reports.launch(function, data, stream, where)


@returns_code
def process_report(timeout: int) -> None:
    """Run the callbacks that wait for the calling thread, and wait `timeout` milliseconds for one (-1: forever).

    Returns 507012 if none arrived, 107012 if the thread has not subscribed to a stream by then.
    """
    if not timeout:
        raise CallError(
            Code.INVALID_PARAM, "acl.rt.process_report: found 0, expected milliseconds, or -1 to wait forever"
        )
    _check_timeout(timeout, "acl.rt.process_report")
    process().reports.process(timeout, "acl.rt.process_report")


def _check_timeout(timeout: Any, where: str) -> None:
    if not isinstance(timeout, int) or timeout < FOREVER:
        raise CallError(Code.INVALID_PARAM, f"{where}: found {timeout!r}, expected milliseconds, or -1 to wait forever")
