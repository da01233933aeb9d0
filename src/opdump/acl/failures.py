"""Converts errors to return codes: inside `acl`, a mistake raises an exception; the caller gets a number and a message.

`acl.get_recent_err_msg()` returns the message of the last failed call; the logger `opdump.acl` logs every one.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable
from enum import IntEnum
from fnmatch import fnmatchcase
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from opdump.configs.acl.error import AclConfigError
from opdump.errors import ConfigError, OpdumpError
from opdump.plan.unmatched_names import with_nearest

# Return codes, with the names of the public headers; docs/acl.md#return-codes lists when each is returned.


class Code(IntEnum):
    """The return code of a call."""

    SUCCESS = 0
    INVALID_PARAM = 100000
    UNINITIALIZE = 100001
    REPEAT_INITIALIZE = 100002
    INVALID_FILE = 100003
    PARSE_FILE = 100006
    INVALID_DUMP_CONFIG = 100009
    INVALID_MODEL_ID = 100011
    MODEL_INPUT_NOT_MATCH = 100017
    MODEL_OUTPUT_NOT_MATCH = 100018
    OP_INPUT_NOT_MATCH = 100021
    OP_OUTPUT_NOT_MATCH = 100022
    OP_NOT_FOUND = 100024
    UNSUPPORTED_DATA_TYPE = 100026
    REPEAT_FINALIZE = 100037
    DUMP_NOT_RUN = 100045
    INVALID_DEVICE_ID = 107001
    CONTEXT_NULL = 107002
    EVENT_TIMESTAMP_INVALID = 107006
    EVENT_TIMESTAMP_REVERSAL = 107007
    STREAM_SUBSCRIBE = 107011
    THREAD_SUBSCRIBE = 107012
    STREAM_NO_CALLBACK = 107015
    DYNAMIC_INPUT_LENGTH = 145012
    DYNAMIC_BATCH_SIZE = 145013
    INTERNAL_ERROR = 500000
    FAILURE = 500001
    REPORT_TIMEOUT = 507012
    STREAM_SYNC_TIMEOUT = 507046


# Errors of calls.

LOG: Final = logging.getLogger("opdump.acl")

Given = ParamSpec("Given")
Value = TypeVar("Value")


class CallError(Exception):
    """A call fails; `code` is its return value. `is_answer`: the code answers a query, and nothing is wrong."""

    def __init__(self, code: int, message: str, *, is_answer: bool = False) -> None:
        super().__init__(message)
        self.code = int(code)
        self.is_answer = is_answer


class Messages:
    """The messages of failed calls, until they are requested. Each thread has its own."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def keep(self, message: str) -> None:
        self._of_thread.last = message

    def take(self) -> str:
        """The last message of the calling thread; empty if none of its calls has failed since the last request."""
        message: str = getattr(self._of_thread, "last", "")
        self._of_thread.last = ""
        return message


MESSAGES: Final = Messages()


def code_of(error: Exception) -> int:
    """The return code of an error."""
    if isinstance(error, CallError):
        return error.code
    if isinstance(error, AclConfigError):
        return error.error_code
    return Code.INVALID_DUMP_CONFIG if isinstance(error, ConfigError) else Code.INTERNAL_ERROR


def returns_code(function: Callable[Given, None]) -> Callable[Given, int]:
    """Convert a function that raises to a call that returns 0 or an error code."""

    @functools.wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> int:
        try:
            function(*args, **kwargs)
        except (CallError, OpdumpError) as error:
            return _report(function.__qualname__, error)
        return Code.SUCCESS.value

    return call


def returns_value(nothing: Any) -> Callable[[Callable[Given, Value]], Callable[Given, tuple[Any, int]]]:
    """The same for a call that returns a value and the code: `nothing` is the value after a failure."""

    def wrap(function: Callable[Given, Value]) -> Callable[Given, tuple[Any, int]]:
        @functools.wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> tuple[Any, int]:
            try:
                return function(*args, **kwargs), Code.SUCCESS.value
            except (CallError, OpdumpError) as error:
                return nothing, _report(function.__qualname__, error)

        return call

    return wrap


def returns_plain(nothing: Value) -> Callable[[Callable[Given, Value]], Callable[Given, Value]]:
    """The same for a call without a code: it returns `nothing` after a failure."""

    def wrap(function: Callable[Given, Value]) -> Callable[Given, Value]:
        @functools.wraps(function)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Value:
            try:
                return function(*args, **kwargs)
            except (CallError, OpdumpError) as error:
                _report(function.__qualname__, error)
                return nothing

        return call

    return wrap


def _report(name: str, error: Exception) -> int:
    code = code_of(error)
    MESSAGES.keep(str(error))
    level = logging.DEBUG if isinstance(error, CallError) and error.is_answer else logging.ERROR
    LOG.log(level, "%s returns %d: %s", name, code, error)
    return code


# Names of pyACL that are missing here: the reason, the alternative, or the nearest name.

_PAGE: Final = "docs/acl.md lists every call"
_IMAGES: Final = (
    "the units of a device that decode, resize and encode images and video (DVPP) are not simulated; use OpenCV, Pillow or numpy, and "
    "copy the array: acl.rt.memcpy(address, size, array.ctypes.data, array.nbytes, 1)"
)
_COMPILED: Final = (
    "operators are not compiled ahead; call acl.op.execute_v2, which makes the model of an operator when it runs"
)
_REASONS: Final[tuple[tuple[str, str], ...]] = (
    ("media", _IMAGES),
    ("himpi", _IMAGES),
    ("blas", "matrix products of the library are not simulated; call acl.op.execute_v2 with MatMul or Gemm of ONNX, or numpy.matmul"),
    ("prof", "times are those of the host, so profiling is not simulated; take the times of the whole program"),
    ("fv", "search for features is not simulated; use numpy"),
    ("tdt", "channels between host and device are not simulated; copy with acl.rt.memcpy"),
    ("mdl.*aipp*", "AIPP, the preprocessing inside a model, is not simulated; crop, scale and normalise with numpy before acl.rt.memcpy"),
    ("mdl.*_with_q", "queues are not simulated; call acl.mdl.load_from_file and acl.mdl.execute"),
    ("mdl.bundle_*", "bundles of models are not simulated; load each ONNX file with acl.mdl.load_from_file"),
    ("mdl.create_and_get_op_desc", "tasks of a device are not simulated; the files of the dump contain operators and shapes"),
    ("op.*compile*", _COMPILED),
    ("op.*handle*", _COMPILED),
    ("op.*cast*", "call acl.op.execute_v2 with Cast of ONNX"),
    ("op.*inference_shape*", "acl.op.execute_v2 writes the resulting shapes into the descriptions of the outputs"),
    ("rt.*exception*", 'failing operators are dumped by "dump_scene" in acl.json'),
    ("rt.*physical*", "memory of a device is that of the host; call acl.rt.malloc"),
    ("rt.*peer*", "there is one device"),
    ("rt.memcpy2d*", "copy each row with acl.rt.memcpy, or the array with numpy"),
    ("set_tensor_const", "a constant input is passed like any other input"),
)  # fmt: skip


def refuse(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module, `opdump.acl` or a submodule, with the names in `known`."""
    names = tuple(known)
    prefix = f"{module.removeprefix('opdump.acl').lstrip('.')}.".lstrip(".")

    def __getattr__(name: str) -> NoReturn:  # noqa: N807  it becomes the module's
        whole = f"{prefix}{name}"
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        for pattern, reason in _REASONS:
            if fnmatchcase(whole, pattern):
                raise AttributeError(f"acl.{whole} is not here: {reason}; {_PAGE}", name=name)
        text = with_nearest(f"acl.{whole} is not here", name, names)
        raise AttributeError(f"{text}; {_PAGE}", name=name)

    return __getattr__
