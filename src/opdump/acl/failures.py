"""Converts errors to return codes: inside `acl`, a mistake raises an exception; the caller gets a number and a message.

`acl.get_recent_err_msg()` returns the message of the last failed call; the logger `opdump.acl` logs every one.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from opdump.acl.codes import Code
from opdump.configs.acl.error import AclConfigError
from opdump.errors import ConfigError, OpdumpError

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
