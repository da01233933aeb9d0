"""Delivers dumps to a callback: while one is registered, it receives each chunk, and nothing is written to disk.

See docs/acl.md#the-dump-in-memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdump.acl.codes import Code
from opdump.acl.failures import LOG, CallError
from opdump.index.writer import RunFacts
from opdump.layouts.ascend.writer import AscendWriter
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord, SkipReason
from opdump.sink import DirectorySink
from opdump.sink.file_bytes import Buffer

_HEADER: Final = struct.Struct("<4096sIIqi")
APPEND: Final = -1
_LARGEST_CHUNK: Final = 2**27
"""Files are passed in pieces of 128 MiB, as devices write them."""


@dataclass(frozen=True, slots=True)
class DumpChunk:
    """A piece of a file. `offset` is its position in the file; -1 appends it.

    `bytes(chunk)` is the C struct: the file's path in 4096 bytes, the length of the data (32 bits), whether it is the last piece
    (32 bits), the offset (64 bits, signed), the flag (32 bits, signed), then the data without padding.
    """

    file_name: str
    data: bytes
    is_last_chunk: bool = True
    offset: int = 0
    flag: int = 0

    def __bytes__(self) -> bytes:
        name = self.file_name.encode("utf-8", "surrogateescape")[: 4096 - 1]
        return _HEADER.pack(name, len(self.data), self.is_last_chunk, self.offset, self.flag) + self.data

    def __len__(self) -> int:
        return _HEADER.size + len(self.data)

    @classmethod
    def from_bytes(cls, raw: bytes) -> DumpChunk:
        """The chunk in these bytes. Raises ValueError for fewer bytes than it announces."""
        if len(raw) < _HEADER.size:
            raise ValueError(f"a chunk has {_HEADER.size} bytes and its data, and these are {len(raw)}")
        name, size, is_last, offset, flag = _HEADER.unpack_from(raw)
        data = raw[_HEADER.size : _HEADER.size + size]
        if len(data) != size:
            raise ValueError(f"a chunk of {size} bytes of data has {len(data)}")
        return cls(name.rstrip(b"\0").decode("utf-8", "surrogateescape"), data, bool(is_last), offset, flag)


Callback = Callable[[DumpChunk, int], int | None]
"""Called with a chunk and the length of its struct; returns 0 or None if it accepted it."""


class Delivery:
    """The callback of a process, if one is registered."""

    def __init__(self) -> None:
        self._callback: Callback | None = None

    @property
    def is_on(self) -> bool:
        return self._callback is not None

    def register(self, callback: Callback | None, flag: int) -> None:
        """A second registration is ignored. Raises CallError for an object that is not callable, and for a flag that is not 0."""
        if not callable(callback) or flag != 0:
            raise CallError(
                Code.FAILURE, f"reg_callback: found {callback!r} and flag {flag!r}, expected a function and the flag 0"
            )
        if self._callback is None:
            self._callback = callback

    def unregister(self) -> None:
        self._callback = None

    def send(self, path: str, data: bytes, *, append: bool = False) -> None:
        """Pass a file to the callback. Exceptions and rejections of the callback are logged: a dump never ends the run."""
        callback = self._callback
        if callback is None:
            return
        for start in range(0, max(len(data), 1), _LARGEST_CHUNK):
            piece = data[start : start + _LARGEST_CHUNK]
            last = start + len(piece) >= len(data)
            chunk = DumpChunk(path, piece, is_last_chunk=last, offset=APPEND if append else start)
            try:
                answer = callback(chunk, len(chunk))
            except Exception:  # noqa: BLE001  it is the program's own function, and its run goes on
                LOG.exception("the dump callback failed; %s is lost", path)
                return
            if answer:
                LOG.error("the dump callback returned %r; %s is lost", answer, path)
                return


class DeliveringSink(DirectorySink):
    """A directory whose files go to a callback while one is registered."""

    def __init__(self, root: Path, delivery: Delivery) -> None:
        super().__init__(root, file_mode=0o600, lazy=True)
        self._delivery = delivery

    def write_parts(self, relative: str, parts: Sequence[Buffer]) -> None:
        if not self._delivery.is_on:
            super().write_parts(relative, parts)
            return
        data = b"".join(bytes(part) for part in parts)
        # Text is passed with a terminating zero byte.
        self._delivery.send(f"{self.root}/{relative}", data + b"\0" if relative.endswith(".csv") else data)

    def write_small(self, files: Sequence[tuple[str, bytes]]) -> None:
        if not self._delivery.is_on:
            super().write_small(files)
            return
        for relative, data in files:
            self.write_parts(relative, [data])


class CallbackWriter(AscendWriter):
    """Writes dumps of models to disk, or passes them to the callback."""

    def __init__(self, plan: DumpPlan, run: RunFacts, delivery: Delivery) -> None:
        super().__init__(plan, run)
        self.sink = DeliveringSink(self.root, delivery)
        self._delivery = delivery

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        if not self._delivery.is_on:
            super().write_step(step, ops, tensors, files, counted)
        elif self.plan.saves_statistics:
            self._write_statistics(tensors)

    def _begin(self, op: OpRecord) -> None:
        if not self._delivery.is_on:
            super()._begin(op)

    def _append(self, relative: str, line: str) -> None:
        if self._delivery.is_on:
            self._delivery.send(f"{self.root}/{relative}", line.encode(), append=True)
        else:
            super()._append(relative, line)

    def _claim(self, above: str) -> None:
        if self._delivery.is_on:
            self._time = self.time  # nothing is on disk that another run could collide with
        else:
            super()._claim(above)

    def _protect(self, relative: str) -> None:
        if not self._delivery.is_on:
            super()._protect(relative)
