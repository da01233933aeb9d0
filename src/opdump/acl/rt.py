"""Devices, contexts, streams and memory (`acl.rt`). There is one device, number 0: the host. Work is done when it is asked for."""

from __future__ import annotations

import os
from typing import Any

from opdump.acl.codes import Code
from opdump.acl.failures import CallError, returns_code, returns_value
from opdump.acl.handles import Context, Stream
from opdump.acl.process import process

_HOST = 1
_COPY_KINDS = range(5)


@returns_code
def set_device(device_id: int) -> None:
    """Chooses a device: 0 is the only one."""
    if device_id != 0:
        raise CallError(Code.INVALID_DEVICE_ID, f"acl.rt.set_device: found {device_id!r}, and the only device is 0")


@returns_code
def reset_device(device_id: int) -> None:
    if device_id != 0:
        raise CallError(Code.INVALID_DEVICE_ID, f"acl.rt.reset_device: found {device_id!r}, and the only device is 0")


def get_device() -> tuple[int, int]:
    return process().device_id, Code.SUCCESS.value


def get_device_count() -> tuple[int, int]:
    return 1, Code.SUCCESS.value


def get_run_mode() -> tuple[int, int]:
    """Where the program runs: on the host (1)."""
    return _HOST, Code.SUCCESS.value


@returns_value(0)
def create_context(device_id: int) -> int:
    if device_id != 0:
        raise CallError(Code.INVALID_DEVICE_ID, f"acl.rt.create_context: found {device_id!r}, and the only device is 0")
    return process().handles.add(Context(device_id))


@returns_code
def destroy_context(context: int) -> None:
    process().handles.remove(context, Context, "acl.rt.destroy_context")


@returns_code
def set_context(context: int) -> None:
    process().handles.get(context, Context, "acl.rt.set_context")


@returns_value(0)
def create_stream() -> int:
    return process().handles.add(Stream())


@returns_code
def destroy_stream(stream: int) -> None:
    process().handles.remove(stream, Stream, "acl.rt.destroy_stream")


@returns_code
def synchronize_stream(stream: int) -> None:
    """Everything is done already. The stream 0 is the default one."""
    check_stream(stream, "acl.rt.synchronize_stream")


def synchronize_device() -> int:
    return Code.SUCCESS.value


@returns_value(0)
def malloc(size: int, policy: int = 0) -> int:
    """Address of `size` bytes, all zero; `policy` has no meaning here."""
    del policy
    return process().memory.allocate(size)


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
    """Copies `count` bytes; `kind` says between whom (0 to 4), which is all the host here."""
    _copy(destination, destination_size, source, count, kind, "acl.rt.memcpy")


@returns_code
def memcpy_async(destination: int, destination_size: int, source: int, count: int, kind: int, stream: int) -> None:
    """The same, done when it returns."""
    check_stream(stream, "acl.rt.memcpy_async")
    _copy(destination, destination_size, source, count, kind, "acl.rt.memcpy_async")


@returns_code
def memset(address: int, size: int, value: int, count: int) -> None:
    """Sets `count` bytes to `value`, of which the lowest eight bits count."""
    if count > size:
        raise CallError(Code.INVALID_PARAM, f"acl.rt.memset: {count} bytes do not fit into {size}")
    process().memory.at(address, count, where="acl.rt.memset", write=True)[:] = value & 0xFF


@returns_value((0, 0))
def _mem_info() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")


def get_mem_info(attribute: int = 0) -> tuple[int, int, int]:
    """Free bytes, all bytes, and the code: of the host's memory."""
    del attribute
    (free_bytes, all_bytes), ret = _mem_info()
    return free_bytes, all_bytes, ret


def check_stream(stream: int, where: str) -> None:
    """Raises CallError for what is no stream."""
    if stream:
        process().handles.get(stream, Stream, where)


def _copy(destination: int, destination_size: int, source: int, count: Any, kind: int, where: str) -> None:
    if kind not in _COPY_KINDS:
        raise CallError(Code.INVALID_PARAM, f"{where}: the kind is {kind!r}, expected 0 to 4")
    if not isinstance(count, int) or count < 1 or count > destination_size:
        raise CallError(Code.INVALID_PARAM, f"{where}: {count!r} bytes do not fit into {destination_size!r}")
    memory = process().memory
    taken = memory.at(source, count, where=where)
    memory.at(destination, count, where=where, write=True)[:] = taken
