"""What is wrong with a dump configuration of TensorFlow.

Where the TensorFlow adapter of Ascend devices has words for a mistake, they stand in the message, so that a search for them
finds the same mistake here. What ends the process there raises here.
"""

from __future__ import annotations

from typing import Literal

from opdump.errors import ConfigError

TensorflowCode = Literal["E10001", "E10058"]
"""Codes of the graph engine: a value that cannot be used, a value that is missing."""


class TensorflowConfigError(ConfigError):
    """A dump configuration of TensorFlow cannot be used. `code` is that of the graph engine, where it has one."""

    def __init__(self, message: str, code: TensorflowCode | None = None) -> None:
        super().__init__(message if code is None else f"{code}: {message}")
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # the message already holds the code, so that it is not given to __init__ again
        return _rebuilt, (str(self), self.code)


def _rebuilt(message: str, code: TensorflowCode | None) -> TensorflowConfigError:
    error = TensorflowConfigError.__new__(TensorflowConfigError, message)
    error.args = (message,)
    error.code = code
    return error
