"""Devices, contexts, streams and memory (`acl.rt`). There is one device, number 0: the host. Work is executed synchronously."""

from __future__ import annotations

import os
from typing import Any

from opdump.acl.handles import CallError, Code, refuse, returns_code, returns_value
from opdump.acl.process import process
from opdump.acl.streams import (
    check_stream,
    create_event,
    create_event_ex_with_flag,
    create_event_with_flag,
    create_stream,
    create_stream_with_config,
    destroy_event,
    destroy_stream,
    destroy_stream_force,
    event_elapsed_time,
    event_get_timestamp,
    launch_callback,
    process_report,
    query_event,
    query_event_status,
    query_event_wait_status,
    record_event,
    reset_event,
    stream_query,
    stream_wait_event,
    subscribe_report,
    synchronize_device,
    synchronize_event,
    synchronize_event_with_timeout,
    synchronize_stream,
    synchronize_stream_with_timeout,
    unsubscribe_report,
)

__all__ = [
    "create_context",
    "create_event",
    "create_event_ex_with_flag",
    "create_event_with_flag",
    "create_stream",
    "create_stream_with_config",
    "destroy_context",
    "destroy_event",
    "destroy_stream",
    "destroy_stream_force",
    "event_elapsed_time",
    "event_get_timestamp",
    "free",
    "free_host",
    "get_context",
    "get_device",
    "get_device_count",
    "get_mem_info",
    "get_run_mode",
    "launch_callback",
    "malloc",
    "malloc_align32",
    "malloc_cached",
    "malloc_host",
    "mem_flush",
    "mem_invalidate",
    "memcpy",
    "memcpy_async",
    "memset",
    "memset_async",
    "process_report",
    "query_event",
    "query_event_status",
    "query_event_wait_status",
    "record_event",
    "reset_device",
    "reset_device_force",
    "reset_event",
    "set_context",
    "set_device",
    "stream_query",
    "stream_wait_event",
    "subscribe_report",
    "synchronize_device",
    "synchronize_event",
    "synchronize_event_with_timeout",
    "synchronize_stream",
    "synchronize_stream_with_timeout",
    "unsubscribe_report",
]

_HOST = 1
_COPY_KINDS = range(5)


@returns_code
def set_device(device_id: int) -> None:
    """Select a device; only 0 exists. Its default context becomes the current one of this thread."""
    _check_device(device_id, "acl.rt.set_device")
    process().contexts.use_default(device_id)


@returns_code
def reset_device(device_id: int) -> None:
    """Destroy the default context. Models stay loaded until `acl.mdl.unload` and `acl.finalize`."""
    _check_device(device_id, "acl.rt.reset_device")
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
    _check_device(device_id, "acl.rt.create_context")
    return process().contexts.create(device_id)


@returns_code
def destroy_context(context: int) -> None:
    process().contexts.destroy(context, "acl.rt.destroy_context")


@returns_code
def set_context(context: int) -> None:
    """Make a context the current one of this thread. Every call also works without one."""
    process().contexts.use(context, "acl.rt.set_context")


@returns_value(0)
def get_context(*ignored: object) -> int:
    """The current context of this thread. Returns 107002 if it has none: in a new thread, or if its context was destroyed."""
    del ignored  # pyACL takes no argument, and ignores those of the program
    return process().contexts.current("acl.rt.get_context")


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
    _copy(destination, destination_size, source, count, kind, "acl.rt.memcpy")


@returns_code
def memcpy_async(destination: int, destination_size: int, source: int, count: int, kind: int, stream: int) -> None:
    """The same; it has finished when this returns."""
    check_stream(stream, "acl.rt.memcpy_async")
    _copy(destination, destination_size, source, count, kind, "acl.rt.memcpy_async")


@returns_code
def memset(address: int, size: int, value: int, count: int) -> None:
    """Set `count` bytes to the lowest eight bits of `value`."""
    _set(address, size, value, count, "acl.rt.memset")


@returns_code
def memset_async(address: int, size: int, value: int, count: int, stream: int) -> None:
    """The same; it has finished when this returns."""
    check_stream(stream, "acl.rt.memset_async")
    _set(address, size, value, count, "acl.rt.memset_async")


@returns_code
def mem_flush(address: int, size: int) -> None:
    """Do nothing: there is no cache that another processor does not see."""
    process().memory.at(address, size, where="acl.rt.mem_flush")


@returns_code
def mem_invalidate(address: int, size: int) -> None:
    process().memory.at(address, size, where="acl.rt.mem_invalidate")


@returns_value((0, 0))
def _mem_info() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def get_mem_info(attribute: int = 0) -> tuple[int, int, int]:
    """Free bytes, all bytes, and the code, for the host's memory."""
    del attribute
    (free_bytes, all_bytes), ret = _mem_info()
    return free_bytes, all_bytes, ret


def _check_device(device_id: Any, where: str) -> None:
    if device_id != 0:
        raise CallError(Code.INVALID_DEVICE_ID, f"{where}: found {device_id!r}, and the only device is 0")


def _set(address: int, size: int, value: int, count: int, where: str) -> None:
    if count > size:
        raise CallError(Code.INVALID_PARAM, f"{where}: {count} bytes do not fit into {size}")
    process().memory.at(address, count, where=where, write=True)[:] = value & 0xFF


def _copy(destination: int, destination_size: int, source: int, count: Any, kind: int, where: str) -> None:
    if kind not in _COPY_KINDS:
        raise CallError(Code.INVALID_PARAM, f"{where}: the kind is {kind!r}, expected 0 to 4")
    if not isinstance(count, int) or count < 1 or count > destination_size:
        raise CallError(Code.INVALID_PARAM, f"{where}: {count!r} bytes do not fit into {destination_size!r}")
    memory = process().memory
    taken = memory.at(source, count, where=where)
    memory.at(destination, count, where=where, write=True)[:] = taken


__getattr__ = refuse(__name__, __all__)
