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
from opdump.recorder.circumstances import Circumstances, Nothing
from opdump.recorder.operator_recorder import OperatorRecorder, OverflowDetector
from opdump.recorder.overflow_detector import overflow_detector_of
from opdump.recorder.own_errors import beside_the_program
from opdump.recorder.recorder import GAPS, Recorder, failure_text
from opdump.recorder.snapshots import Live, LiveTensor, PendingArray, Reader, TensorSnapshot
from opdump.recorder.writers import (
    StepWriter,
    SupportsExceptions,
    SupportsFlush,
    SupportsMetadata,
    SupportsOperatorFiles,
    SupportsOverflows,
    SupportsTensorFiles,
)

__all__ = [
    "GAPS",
    "Circumstances",
    "Live",
    "LiveTensor",
    "Nothing",
    "OperatorRecorder",
    "OverflowDetector",
    "PendingArray",
    "Reader",
    "Recorder",
    "StepWriter",
    "SupportsExceptions",
    "SupportsFlush",
    "SupportsMetadata",
    "SupportsOperatorFiles",
    "SupportsOverflows",
    "SupportsTensorFiles",
    "TensorSnapshot",
    "beside_the_program",
    "failure_text",
    "make_recorder",
]


def make_recorder(
    plan: DumpPlan, writer: StepWriter, reader: Reader, detector: OverflowDetector | None = None
) -> Recorder:
    """The recorder for a plan and a layout.

    `detector` says how an operator that has run overflowed; without one, overflow mode judges by the operator's data.
    """
    if plan.mode.files_selected and not isinstance(writer, SupportsOperatorFiles):
        return Recorder(plan, writer, reader)
    if detector is None and plan.mode.detects_overflow:
        detector = overflow_detector_of(plan)
    return OperatorRecorder(plan, writer, reader, detector)
