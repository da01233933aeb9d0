"""Select, summarise and write: the only object that an adapter calls.

    opened = recorder.before_op(op, inputs)     # the true inputs, before an in-place kernel overwrites them
    ...the operator runs...
    recorder.after_op(opened, outputs)          # or, if it raised: recorder.failed_op(opened, error, inputs)
    recorder.end_step(step)                     # statistic.csv, index, graphs

The adapter knows what a tensor is and how to read it: it provides a `Reader`. The layout knows how files are arranged: it provides a
`RankWriter`.
"""

from __future__ import annotations

from opdump.layouts.base import RankWriter
from opdump.plan import DumpPlan
from opdump.recorder.capture_errors import failure_text, isolated_as_a_whole, isolated_from_program
from opdump.recorder.operator_recorder import (
    DataOverflowDetector,
    FailureRecorder,
    OperatorRecorder,
    OverflowDetector,
    OverflowRecorder,
    WatchRecorder,
)
from opdump.recorder.program_facts import GAPS, Nothing
from opdump.recorder.recorder import Recorder
from opdump.recorder.snapshots import Elements, Live, LiveTensor, Reader, TensorSnapshot

__all__ = [
    "GAPS",
    "Elements",
    "FailureRecorder",
    "Live",
    "LiveTensor",
    "Nothing",
    "OperatorRecorder",
    "Reader",
    "Recorder",
    "TensorSnapshot",
    "WatchRecorder",
    "failure_text",
    "isolated_as_a_whole",
    "isolated_from_program",
    "make_recorder",
]


def make_recorder(
    plan: DumpPlan, writer: RankWriter, reader: Reader, detector: OverflowDetector | None = None
) -> Recorder:
    """Return the recorder for a plan and a layout.

    `detector` decides whether an operator that has run overflowed. Without one, overflow mode decides from the data of the operator.
    """
    mode = plan.mode
    if mode.detects_overflow:
        return OverflowRecorder(plan, writer, reader, detector or DataOverflowDetector(plan.overflow_kinds))
    if mode.failures_only:
        return FailureRecorder(plan, writer, reader)
    if mode.watches:
        return WatchRecorder(plan, writer, reader)
    return (OperatorRecorder if plan.layout_facts.files == "operators" else Recorder)(plan, writer, reader)
