"""The record of an overflow that a device told of in files of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from opdump.records import OpRecord


@dataclass(frozen=True, slots=True, repr=False)
class OverflowRecord(OpRecord):
    """Stands among the operators of a step, without tensors. `files` are below the directory of the device."""

    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, op: OpRecord, files: Sequence[str]) -> OverflowRecord:
        """The same operator as such a record; its arguments name the files to who reads them."""
        named: Mapping[str, Any] = {"file": files[0]} | ({"files": list(files)} if files[1:] else {})
        kept = {item.name: getattr(op, item.name) for item in fields(OpRecord)}
        return cls(**{**kept, "arguments": named}, files=tuple(files))
