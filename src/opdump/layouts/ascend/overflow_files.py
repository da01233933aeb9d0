"""What an overflow file says of an operator.

Source: section 6 of the dump specification: an atomic addition is told by another accelerator, and in other bits, than all else.
"""

from __future__ import annotations

from opdump.checks.overflow import overflow_kind
from opdump.dump_file.opdebug import OpdebugRecord, atomic_status, overflow_record
from opdump.records import OpRecord

_ATOMIC = "DHA Atomic Add"


def overflow_of(op: OpRecord, status: int) -> OpdebugRecord:
    """The record of an operator that overflowed; `status` has the bits of the AI Core."""
    is_atomic = overflow_kind(op.op_type, op.arguments) == "atomic"
    return overflow_record(
        atomic_status(_ATOMIC) if is_atomic else status,
        accelerator=_ATOMIC if is_atomic else "AI Core",
        model_id=op.graph_id,
        stream_id=op.stream_id,
        task_id=op.task_id,
    )
