"""Watchpoints: the conditions of the MindSpore Insight debugger, over the tensors of any dump or of a running program.

A condition is a row of `table.py`; a watchpoint is a condition with values for its parameters. `measured.py` computes the
measures of a tensor.
"""

from __future__ import annotations

from opdump.checks.watchpoints.checker import WatchpointChecker, in_order_of_time
from opdump.checks.watchpoints.condition import Condition
from opdump.checks.watchpoints.interval import Interval
from opdump.checks.watchpoints.measured import Measured
from opdump.checks.watchpoints.parameter import Judgement, Parameter, above, at_least, below
from opdump.checks.watchpoints.table import WATCHPOINTS
from opdump.checks.watchpoints.targets import Targets
from opdump.checks.watchpoints.watchpoint import WatchHit, Watchpoint

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
