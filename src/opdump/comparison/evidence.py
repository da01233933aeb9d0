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
    makers = sorted(violation.writers - {-1})
    maker = trace.nodes[makers[-1]].op.op_name if makers else record.source or "the step before"
    return f"{violation.changed:,} of {violation.size:,} elements are not what {maker} left there, and no operator wrote them"


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
