"""Writes the log of the original to stderr:

2026-01-02 10:11:12 (4711) - [INFO] ...
"""

from __future__ import annotations

import os
import sys
import time
from typing import Literal

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
