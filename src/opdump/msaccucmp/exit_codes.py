"""The exit codes of the original, and the error that carries one.

See docs/msaccucmp.md#exit-codes.
"""

from __future__ import annotations

from enum import IntEnum

from opdump.errors import OpdumpError


class ExitCode(IntEnum):
    OK = 0
    UNEXPECTED = 1
    NO_DUMP = 2
    BAD_PATH = 3
    BAD_DEBUG_FILE = 4
    BAD_PARAMETER = 6
    CANNOT_OPEN = 7
    BAD_DUMP = 11
    BAD_INDEX = 12
    BAD_JSON = 13
    SEVERAL_RECORDS = 17
    BAD_FILE_NAME = 18
    CANNOT_WRITE = 19
    BAD_COMBINATION = 20
    BAD_DATA_TYPE = 21
    BAD_FORMAT_PAIR = 22
    BAD_SHAPE = 23
    BAD_TYPE = 24
    SCRIPT_FAILED = 26
    BAD_ALGORITHM = 31
    BAD_NZ_SHAPE = 34
    BAD_ACCELERATOR = 35
    NO_STATUS = 36
    BAD_TASK_TYPE = 37
    BAD_SIZE = 39
    BAD_SLICES = 42


class CommandError(OpdumpError):
    """A failure for which the original has an exit code."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[CommandError], tuple[ExitCode, str]]:
        # An error with two arguments cannot be unpickled from a worker process by default.
        return CommandError, (self.code, str(self))


class AbortError(OpdumpError):
    """A failure that ends the whole run of the original with exit code 1: an exception that it does not expect."""
