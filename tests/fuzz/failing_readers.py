"""Readers that fail in every way that the fuzzer must notice; prints the finding for each, as JSON.

python -m tests.fuzz.failing_readers
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from opdump.errors import CorruptDumpError
from tests.fuzz.bounded import outcome
from tests.fuzz.readers import Reader


def _is_read(path: Path) -> None:
    path.read_bytes()


def _refuses(path: Path) -> None:
    raise CorruptDumpError(str(path))


def _raises(path: Path) -> None:
    raise ValueError(str(path))


def _swallows_everything(path: Path) -> None:
    while True:
        with contextlib.suppress(BaseException):
            path.read_bytes()


def _matches_for_ever(path: Path) -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")


def _asks_for_much_memory(path: Path) -> None:
    bytes(1 << 40)


def _takes_much_memory(path: Path) -> None:
    bytearray(200 << 20)[:: 1 << 12] = b"1" * (200 << 8)


def _writes_much(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _dies(path: Path) -> None:
    os.abort()


def _leaves(path: Path) -> None:
    raise SystemExit(0)


WAYS: Final[Mapping[str, Callable[[Path], object]]] = MappingProxyType(
    {
        function.__name__.strip("_"): function
        for function in (
            _is_read,
            _refuses,
            _raises,
            _swallows_everything,
            _matches_for_ever,
            _asks_for_much_memory,
            _takes_much_memory,
            _writes_much,
            _dies,
            _leaves,
        )
    }
)

if __name__ == "__main__":
    for name, read in WAYS.items():
        finding = outcome(Reader(name, read, "bytes"), "file", b"content", seconds=0.5)
        print(json.dumps([name, None if finding is None else finding.place]), flush=True)
