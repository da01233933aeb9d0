"""What to capture: the one object that every config dialect resolves to.

>>> from pathlib import Path
>>> plan = DumpPlan(path=Path("/tmp/dump"), steps=StepSet.parse("0|5-8"), saved_data="full")
>>> 6 in plan.steps
True
>>> plan.selects("Default/fc-Linear/addmm-op0", "addmm")
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdump.interpreter.late_imports import late_names

if TYPE_CHECKING:
    from opdump.plan.dump_plan import (
        DATA,
        EXCEPTION,
        MODES,
        OVERFLOW,
        TRIGGERS,
        WATCH,
        Captures,
        DumpLevel,
        DumpPlan,
        ExceptionDetail,
        FileFormat,
        Mode,
        OnError,
        OverflowKind,
        SavedData,
        Selection,
        StatCalcMode,
        StatPrecision,
        SyncLayoutName,
        Trigger,
        WatchedLook,
    )
    from opdump.plan.layouts import LayoutFacts
    from opdump.plan.selection import Exclusion, KernelPattern, ModelFilter, ModelSelection, OperatorRange, StepSet

__all__ = [
    "DATA",
    "EXCEPTION",
    "MODES",
    "OVERFLOW",
    "TRIGGERS",
    "WATCH",
    "Captures",
    "DumpLevel",
    "DumpPlan",
    "ExceptionDetail",
    "Exclusion",
    "FileFormat",
    "KernelPattern",
    "LayoutFacts",
    "Mode",
    "ModelFilter",
    "ModelSelection",
    "OnError",
    "OperatorRange",
    "OverflowKind",
    "SavedData",
    "Selection",
    "StatCalcMode",
    "StatPrecision",
    "StepSet",
    "SyncLayoutName",
    "Trigger",
    "WatchedLook",
]

__getattr__ = late_names(__name__, ".selection", ".layouts", ".dump_plan")
