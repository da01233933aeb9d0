"""Watchpoints: the conditions of the MindSpore Insight debugger, over the tensors of any dump or of a running program.

A condition is a row of `conditions.py`; a watchpoint is a condition with values for its parameters. `measured.py` computes the
measures of a tensor.
"""

from __future__ import annotations

from opdump.checks.watchpoints.conditions import WATCHPOINTS, Condition, Judgement, Parameter, above, at_least, below
from opdump.checks.watchpoints.measured import Interval, Measured
from opdump.checks.watchpoints.watchpoint import Targets, WatchHit, Watchpoint, WatchpointChecker, in_order_of_time

__all__ = [
    "WATCHPOINTS",
    "Condition",
    "Interval",
    "Judgement",
    "Measured",
    "Parameter",
    "Targets",
    "WatchHit",
    "Watchpoint",
    "WatchpointChecker",
    "above",
    "at_least",
    "below",
    "in_order_of_time",
]
