"""The error for an invalid dump configuration of TensorFlow.

If the TensorFlow adapter of Ascend devices has a message for a mistake, the error contains it, so that a search finds the same
mistake. If the adapter ends the process, opdump raises the error.
"""

from __future__ import annotations

from typing import Literal

from opdump.errors import ConfigError

TensorflowCode = Literal["E10001", "E10058"]
"""Codes of the graph engine: an invalid value, a missing value."""


class TensorflowConfigError(ConfigError):
    """A dump configuration of TensorFlow is invalid. `code` is the code of the graph engine, if it has one."""

    def __init__(self, message: str, code: TensorflowCode | None = None) -> None:
        super().__init__(message if code is None else f"{code}: {message}")
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # the message has the code already, so it does not pass through __init__ again
        return _rebuilt, (str(self), self.code)


def _rebuilt(message: str, code: TensorflowCode | None) -> TensorflowConfigError:
    error = TensorflowConfigError.__new__(TensorflowConfigError, message)
    error.args = (message,)
    error.code = code
    return error
