"""Converts between addresses and Python's own objects, and starts threads (`acl.util`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.acl.handles import CallError, Code, numpy_type, refuse, returns_code, returns_plain
from opdump.acl.process import process

_NO_SUCH_THREAD: Final = 3  # ESRCH of the operating system


class _Thread(threading.Thread):
    def __init__(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        super().__init__(target=function, args=arguments, daemon=True)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            self.error = error
            raise  # the interpreter prints it


# The threads that were started and not yet waited for. They belong to the interpreter, not to the state that `acl.init` creates.
_STARTED: Final[dict[int, _Thread]] = {}

_NOTHING: npt.NDArray[Any] = np.empty(0, np.uint8)
_NOTHING.flags.writeable = False


@returns_plain(0)
def numpy_to_ptr(array: Any) -> int:
    """The address of an array's elements; 0 if they are not contiguous. Keep the array."""
    if not isinstance(array, np.ndarray) or array.dtype.hasobject or not array.flags.c_contiguous:
        raise CallError(
            Code.INVALID_PARAM,
            "expected an array of numbers in C order; use numpy.ascontiguousarray, and keep its result",
        )
    return process().memory.register(array)


def numpy_contiguous_to_ptr(array: Any) -> tuple[int, Any]:
    """The address of an array in C order and that array: the given one, or a copy. Keep it. 0 and None if it is not an array."""
    if not isinstance(array, np.ndarray):
        return numpy_to_ptr(array), None
    contiguous = np.ascontiguousarray(array)
    return numpy_to_ptr(contiguous), contiguous


@returns_plain(_NOTHING)
def ptr_to_numpy(address: int, shape: Sequence[Any], numpy_type_number: int) -> npt.NDArray[Any]:
    """An array over memory, without a copy; `numpy_type_number` is `dtype.num`. Empty for invalid memory."""
    kind = numpy_type(numpy_type_number)
    if kind is None or not all(isinstance(dim, int) and dim >= 0 for dim in shape):
        raise CallError(
            Code.INVALID_PARAM,
            f"found shape {shape!r} and type {numpy_type_number!r}, expected numpy's own number "
            "(numpy.dtype.num: 11 for float32)",
        )
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    found: npt.NDArray[Any] = process().memory.at(address, size).view(kind)
    return found.reshape(tuple(shape))


@returns_plain(0)
def bytes_to_ptr(data: Any) -> int:
    """The address of a bytes object. Keep the object. Copies into it change it; an object of a single byte is constant."""
    if not isinstance(data, bytes) or not data:
        raise CallError(Code.INVALID_PARAM, f"found a {type(data).__name__}, expected bytes, not empty")
    return process().memory.register_bytes(data)


@returns_plain(b"")
def ptr_to_bytes(address: int, size: int) -> bytes:
    """A copy of `size` bytes; empty for invalid memory."""
    return process().memory.at(address, size).tobytes()


def start_thread(function: Callable[..., object], data: Any) -> tuple[int, int]:
    """Run `function(data)` in a thread, or `function()` if `data` is None; returns the thread's number, and the code. Raises
    TypeError if the function is not callable.
    """
    if not callable(function):
        raise TypeError(f"acl.util.start_thread: found {function!r}, expected a function and its argument")
    thread = _Thread(function, () if data is None else (data,))
    thread.start()
    assert thread.ident is not None, "it was started"
    _STARTED[thread.ident] = thread
    return thread.ident, Code.SUCCESS.value


@returns_code
def stop_thread(thread: int) -> None:
    """Wait until a thread has ended. Returns 3 for one that `start_thread` did not start. Raises RuntimeError if it ended with an
    error.
    """
    started = _STARTED.pop(thread, None)
    if started is None:
        raise CallError(_NO_SUCH_THREAD, f"{thread!r} is not a thread of acl.util.start_thread, or was stopped before")
    started.join()
    error = started.error
    if error is not None:
        raise RuntimeError(f"acl.util.stop_thread: the thread ended by {type(error).__name__}: {error}") from error


__getattr__ = refuse(__name__)
