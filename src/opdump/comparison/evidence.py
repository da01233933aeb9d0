"""What is said of two values that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.differences import equal_elements
from opdump.comparison.integrity import Violation
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord

Array = NDArray[Any]


def changed(violation: Violation, record: TensorRecord, trace: Trace) -> str:
    """How much of an input is not what was written there."""
    maker = maker_of(violation, record, trace)
    return f"{violation.changed:,} of {violation.size:,} elements are not what {maker} left there, and no operator wrote them"


def maker_of(violation: Violation, record: TensorRecord, trace: Trace) -> str:
    """What had written an input that was changed since: the name of the last operator of the step, or whose output it was before."""
    makers = sorted(violation.writers - {-1})
    return trace.nodes[makers[-1]].op.op_name if makers else record.source or "the step before"


def amount_apart(one: Array, other: Array) -> str:
    """How many elements differ, of how many: `1 of 8 elements`. Empty of other shapes."""
    if one.shape != other.shape:
        return ""
    with np.errstate(all="ignore"):
        return f"{int((~equal_elements(one, other)).sum()):,} of {one.size:,} elements"


def apart(one: Array, other: Array) -> str:
    """How many elements differ, and the first of them."""
    if one.shape != other.shape:
        return f"shape {one.shape} in A, {other.shape} in B"
    with np.errstate(all="ignore"):
        unequal = ~equal_elements(one, other)
    first = int(np.flatnonzero(unequal.reshape(-1))[0])
    return (
        f"{int(unequal.sum()):,} of {one.size:,} elements, the first at {first} "
        f"({one.reshape(-1)[first]:g} in A, {other.reshape(-1)[first]:g} in B)"
    )
