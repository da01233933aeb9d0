"""The overflow file of an operator to be written, and its record in a dump that is read.

Atomic additions have an accelerator and a status of their own (docs/overflow.md#atomic-additions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from opdump.checks.overflow import OverflowStatus
from opdump.dump_file import DumpFile
from opdump.dump_file.opdebug import OpdebugRecord, atomic_status, overflow_dump_file, overflow_record
from opdump.records import OpRecord

_ATOMIC = "DHA Atomic Add"


@dataclass(frozen=True, slots=True, repr=False)
class OverflowRecord(OpRecord):
    """A record among the operators of a step, without tensors. `files` are below the directory of the device."""

    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, op: OpRecord, files: Sequence[str]) -> OverflowRecord:
        """Convert an operator to such a record; its arguments contain the paths of the files."""
        named: Mapping[str, Any] = {"file": files[0]} | ({"files": list(files)} if files[1:] else {})
        kept = {item.name: getattr(op, item.name) for item in fields(OpRecord)}
        return cls(**{**kept, "arguments": named}, files=tuple(files))


def overflow_of(op: OpRecord, status: OverflowStatus) -> OpdebugRecord:
    """The record of an operator that overflowed."""
    return overflow_record(**_report_of(op, status))


def overflow_file_of(op: OpRecord, status: OverflowStatus) -> DumpFile:
    """The dump file of that record."""
    return overflow_dump_file(**_report_of(op, status), dump_time=op.timestamp)


def _report_of(op: OpRecord, status: OverflowStatus) -> dict[str, Any]:
    is_atomic = status.kind == "atomic"
    return {
        "status": atomic_status(_ATOMIC) if is_atomic else status.bits,
        "accelerator": _ATOMIC if is_atomic else "AI Core",
        "model_id": op.graph_id,
        "stream_id": op.stream_id,
        "task_id": op.task_id,
    }
