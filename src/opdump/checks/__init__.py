"""Checks of what operators read and wrote: pure functions over live tensors or over the records of a dump.

overflow_status("matmul", "aten::matmul", {}, inputs, outputs)      # 0x400: the status bits of one executed operator
Checks(Thresholds()).findings(op, tensors)                          # NaN, Inf, all zero, extremes of a recorded operator
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdump.interpreter.late_imports import late_names

if TYPE_CHECKING:
    from opdump.checks.overflow import OVERFLOW_KINDS, OverflowStatus, overflow_kind, overflow_status
    from opdump.checks.registry import CHECKS, Checks
    from opdump.checks.tensor_checks import (
        CheckName,
        Finding,
        InspectedTensor,
        TensorStats,
        Thresholds,
        stats_of_summary,
    )

__all__ = [
    "CHECKS",
    "OVERFLOW_KINDS",
    "CheckName",
    "Checks",
    "Finding",
    "InspectedTensor",
    "OverflowStatus",
    "TensorStats",
    "Thresholds",
    "overflow_kind",
    "overflow_status",
    "stats_of_summary",
]

__getattr__ = late_names(__name__, ".tensor_checks", ".overflow", ".registry")
