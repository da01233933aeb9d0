"""The exit codes of the original, the error that carries one, and the log.

See docs/msaccucmp.md#exit-codes.
"""

from __future__ import annotations

import os
import sys
import time
from enum import IntEnum
from typing import Literal

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


# The log of the original on stderr.

Level = Literal["INFO", "WARNING", "ERROR"]


def log(level: Level, message: str) -> None:
    """Print one line; line breaks and other control characters in names are replaced by underscores."""
    text = message
    if not message.isprintable():
        text = "".join(character if character.isprintable() else "_" for character in message)
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({os.getpid()}) - [{level}] {text}\n"
    sys.stderr.write(line if line.isascii() else line.encode(errors="backslashreplace").decode())


class Progress:
    """Lines such as `[ >>>>>>>>>>          20%]`: fifty characters wide, at most one line per second, and one at the end."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._last = 0.0

    def step(self) -> None:
        self._done += 1
        now = time.monotonic()
        percent = self._done * 100 // self._total
        if percent < 100 and now - self._last < 1:
            return
        self._last = now
        log("INFO", f"[ {'>' * (percent // 2):<50} {percent:>3}%]")
