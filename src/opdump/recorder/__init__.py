"""Select, summarise, file: the only object that an adapter calls.

    opened = recorder.before_op(op, inputs)     # the true inputs, before an in-place kernel overwrites them
    ...the operator runs...
    recorder.after_op(opened, outputs)          # or, where it raised: recorder.failed_op(opened, error, inputs)
    recorder.end_step(step)                     # statistic.csv, index, graphs

What a tensor is, and how to look at it, is the adapter's affair: it gives a `Reader`. How files are arranged is the layout's: it
gives a `StepWriter`.
"""

from __future__ import annotations

from opdump.plan import DumpPlan
from opdump.recorder.circumstances import Nothing
from opdump.recorder.failure_recorder import FailureRecorder
from opdump.recorder.operator_recorder import OperatorRecorder
from opdump.recorder.overflow_recorder import DataOverflowDetector, OverflowDetector, OverflowRecorder
from opdump.recorder.own_errors import beside_the_program, failure_text, whole_beside_the_program
from opdump.recorder.recorder import Recorder
from opdump.recorder.snapshots import Elements, Live, LiveTensor, Reader, TensorSnapshot
from opdump.recorder.tally import GAPS
from opdump.recorder.watch_recorder import WatchRecorder
from opdump.recorder.writers import StepWriter, SupportsMetadata, SupportsOperatorFiles, SupportsTensorFiles

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
    "SupportsMetadata",
    "SupportsOperatorFiles",
    "SupportsTensorFiles",
    "TensorSnapshot",
    "WatchRecorder",
    "beside_the_program",
    "failure_text",
    "make_recorder",
    "whole_beside_the_program",
]


def make_recorder(
    plan: DumpPlan, writer: StepWriter, reader: Reader, detector: OverflowDetector | None = None
) -> Recorder:
    """The recorder for a plan and a layout.

    `detector` says how an operator that has run overflowed; without one, overflow mode judges by the operator's data.
    """
    mode = plan.mode
    if mode.detects_overflow:
        return OverflowRecorder(plan, writer, reader, detector or DataOverflowDetector(plan.overflow_kinds))
    if mode.failures_only:
        return FailureRecorder(plan, writer, reader)
    if mode.watches:
        return WatchRecorder(plan, writer, reader)
    return (OperatorRecorder if isinstance(writer, SupportsOperatorFiles) else Recorder)(plan, writer, reader)
