"""Devices, contexts, memory, streams, events and callbacks (`acl.rt`). There is one device, number 0: the host. Work is executed synchronously."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from opdump.acl.handles import CallError, Code, Event, Stream, refuse, returns_code, returns_value
from opdump.acl.process import FOREVER, process

_HOST = 1
_COPY_KINDS = range(5)


@returns_code
def set_device(device_id: int) -> None:
    """Select a device; only 0 exists. Its default context becomes the current one of this thread."""
    _check_device(device_id)
    process().contexts.use_default(device_id)


@returns_code
def reset_device(device_id: int) -> None:
    """Destroy the default context. Models stay loaded until `acl.mdl.unload` and `acl.finalize`."""
    _check_device(device_id)
    process().contexts.reset()


reset_device_force = reset_device


def get_device() -> tuple[int, int]:
    return process().device_id, Code.SUCCESS.value


def get_device_count() -> tuple[int, int]:
    return 1, Code.SUCCESS.value


def get_run_mode() -> tuple[int, int]:
    """The location of the program: the host (1)."""
    return _HOST, Code.SUCCESS.value


@returns_value(0)
def create_context(device_id: int) -> int:
    """A new context, which becomes the current one of this thread."""
    _check_device(device_id)
    return process().contexts.create(device_id)


@returns_code
def destroy_context(context: int) -> None:
    process().contexts.destroy(context)


@returns_code
def set_context(context: int) -> None:
    """Make a context the current one of this thread. Every call also works without one."""
    process().contexts.use(context)


@returns_value(0)
def get_context(*ignored: object) -> int:
    """The current context of this thread. Returns 107002 if it has none: in a new thread, or if its context was destroyed."""
    del ignored  # pyACL takes no argument, and ignores those of the program
    return process().contexts.current()


@returns_value(0)
def malloc(size: int, policy: int = 0) -> int:
    """Address of `size` bytes, all zero; `policy` is ignored."""
    del policy
    return process().memory.allocate(size)


malloc_cached = malloc_align32 = malloc


@returns_value(0)
def malloc_host(size: int) -> int:
    return process().memory.allocate(size)


@returns_code
def free(address: int) -> None:
    process().memory.free(address)


@returns_code
def free_host(address: int) -> None:
    process().memory.free(address)


@returns_code
def memcpy(destination: int, destination_size: int, source: int, count: int, kind: int) -> None:
    """Copy `count` bytes; `kind` (0 to 4) is the direction, but all memory is on the host here."""
    _copy(destination, destination_size, source, count, kind)


@returns_code
def memcpy_async(destination: int, destination_size: int, source: int, count: int, kind: int, stream: int) -> None:
    """The same; it has finished when this returns."""
    process().check_stream(stream)
    _copy(destination, destination_size, source, count, kind)


@returns_code
def memset(address: int, size: int, value: int, count: int) -> None:
    """Set `count` bytes to the lowest eight bits of `value`."""
    _set(address, size, value, count)


@returns_code
def memset_async(address: int, size: int, value: int, count: int, stream: int) -> None:
    """The same; it has finished when this returns."""
    process().check_stream(stream)
    _set(address, size, value, count)


@returns_code
def mem_flush(address: int, size: int) -> None:
    """Do nothing: there is no cache that another processor does not see."""
    process().memory.at(address, size)


@returns_code
def mem_invalidate(address: int, size: int) -> None:
    process().memory.at(address, size)


@returns_value((0, 0))
def _get_mem_info() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def get_mem_info(attribute: int = 0) -> tuple[int, int, int]:
    """Free bytes, all bytes, and the code, for the host's memory."""
    del attribute
    (free_bytes, all_bytes), ret = _get_mem_info()
    return free_bytes, all_bytes, ret


def _check_device(device_id: Any) -> None:
    if device_id != 0:
        raise CallError(Code.INVALID_DEVICE_ID, f"found {device_id!r}, and the only device is 0")


def _set(address: int, size: int, value: int, count: int) -> None:
    if count > size:
        raise CallError(Code.INVALID_PARAM, f"{count} bytes do not fit into {size}")
    process().memory.at(address, count, write=True)[:] = value & 0xFF


def _copy(destination: int, destination_size: int, source: int, count: Any, kind: int) -> None:
    if kind not in _COPY_KINDS:
        raise CallError(Code.INVALID_PARAM, f"the kind is {kind!r}, expected 0 to 4")
    if not isinstance(count, int) or count < 1 or count > destination_size:
        raise CallError(Code.INVALID_PARAM, f"{count!r} bytes do not fit into {destination_size!r}")
    memory = process().memory
    taken = memory.at(source, count)
    memory.at(destination, count, write=True)[:] = taken


_COMPLETE: Final = 0
_NOT_READY: Final = 1
_WAIT_NOT_READY: Final = 0xFFFF


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
    process().handles.remove(stream, Stream)


destroy_stream_force = destroy_stream


@returns_code
def synchronize_stream(stream: int) -> None:
    """Wait for the callbacks of a stream; all other work has finished already. Returns 507012 if no thread would run them."""
    process().check_stream(stream)
    process().reports.wait(stream)


@returns_code
def synchronize_stream_with_timeout(stream: int, timeout: int) -> None:
    """The same for at most `timeout` milliseconds (-1: forever). Returns 507046 after a timeout."""
    process().check_stream(stream)
    _check_timeout(timeout)
    process().reports.wait(stream, timeout)


@returns_code
def synchronize_device() -> None:
    """Wait for the callbacks of every stream."""
    process().reports.wait(None)


@returns_value(_NOT_READY)
def stream_query(stream: int) -> int:
    """0 if all work of a stream has finished, 1 if callbacks have not run."""
    process().check_stream(stream)
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
    process().handles.remove(event, Event)


@returns_code
def record_event(event: int, stream: int) -> None:
    """The event completes immediately, and stores the time."""
    process().check_stream(stream)
    process().handles.get(event, Event).recorded = time.perf_counter_ns()


@returns_code
def reset_event(event: int, stream: int) -> None:
    process().check_stream(stream)
    process().handles.get(event, Event).recorded = None


@returns_value(_NOT_READY)
def query_event(event: int) -> int:
    """0 for an event that was recorded, otherwise 1."""
    recorded = process().handles.get(event, Event).recorded
    return _NOT_READY if recorded is None else _COMPLETE


@returns_value(0)
def query_event_status(event: int) -> int:
    """1 for an event that was recorded, otherwise 0."""
    return int(process().handles.get(event, Event).recorded is not None)


@returns_value(_WAIT_NOT_READY)
def query_event_wait_status(event: int) -> int:
    """0: nothing waits for it."""
    process().handles.get(event, Event)
    return _COMPLETE


@returns_code
def synchronize_event(event: int) -> None:
    process().handles.get(event, Event)


@returns_code
def synchronize_event_with_timeout(event: int, timeout: int) -> None:
    _check_timeout(timeout)
    process().handles.get(event, Event)


@returns_code
def stream_wait_event(stream: int, event: int) -> None:
    process().check_stream(stream)
    process().handles.get(event, Event)


@returns_value(0.0)
def event_elapsed_time(start: int, end: int) -> float:
    """Milliseconds between two events. Returns 107006 if one was not recorded, 107007 if the second came first."""
    first, last = (process().handles.get(event, Event).recorded for event in (start, end))
    if first is None or last is None:
        raise CallError(Code.EVENT_TIMESTAMP_INVALID, "an event was not recorded; call acl.rt.record_event")
    if last < first:
        raise CallError(Code.EVENT_TIMESTAMP_REVERSAL, "the second event was recorded before the first")
    return (last - first) / 1e6


@returns_value(0)
def event_get_timestamp(event: int) -> int:
    """Microseconds of the host's clock when it was recorded. Returns 107006 if it was not."""
    recorded = process().handles.get(event, Event).recorded
    if recorded is None:
        raise CallError(Code.EVENT_TIMESTAMP_INVALID, "it was not recorded; call acl.rt.record_event")
    return recorded // 1000


# ------------------------------------------------------------------------------------------------------------ callbacks


@returns_code
def subscribe_report(thread: int, stream: int) -> None:
    """From now on `thread` (of `acl.util.start_thread`, `threading.get_ident()`) runs the callbacks of a stream.

    Returns 107011 if a thread has subscribed to it already.
    """
    process().check_stream(stream)
    process().reports.subscribe(thread, stream)


@returns_code
def unsubscribe_report(thread: int, stream: int) -> None:
    """End the subscription. Returns 107011 if this thread has not subscribed."""
    process().check_stream(stream)
    process().reports.unsubscribe(thread, stream)


@returns_code
def launch_callback(function: Any, data: Any, block_type: int, stream: int) -> None:
    """Queue the call `function(data)` for the thread that has subscribed to the stream. Returns 107015 if none has."""
    process().check_stream(stream)
    if not callable(function) or block_type not in (0, 1):
        raise CallError(
            Code.INVALID_PARAM,
            f"found {function!r} and block type {block_type!r}, expected a function and 0 or 1 (the stream waits)",
        )
    process().reports.launch(function, data, stream)


@returns_code
def process_report(timeout: int) -> None:
    """Run the callbacks that wait for the calling thread, and wait `timeout` milliseconds for one (-1: forever).

    Returns 507012 if none arrived, 107012 if the thread has not subscribed to a stream by then.
    """
    if not timeout:
        raise CallError(Code.INVALID_PARAM, "found 0, expected milliseconds, or -1 to wait forever")
    _check_timeout(timeout)
    process().reports.process(timeout)


def _check_timeout(timeout: Any) -> None:
    if not isinstance(timeout, int) or timeout < FOREVER:
        raise CallError(Code.INVALID_PARAM, f"found {timeout!r}, expected milliseconds, or -1 to wait forever")


__getattr__ = refuse(__name__)
