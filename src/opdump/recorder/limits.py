"""How much a recorder keeps in memory of a step that runs: more is filed before the step has ended."""

from __future__ import annotations

from typing import Final

from opdump.plan import DumpPlan
from opdump.recorder.step_parts import BYTES_OF_OPERATOR_AND_TENSORS

MOST_OPS = 50_000
"""A step of more operators is filed in parts, so that a program whose step never ends does not fill the memory."""
HELD_BYTES: Final = 2**28
"""More than this is not kept in memory to wait for the next step: then the operators belong to the step that they name."""
_LEAST_OPS: Final = 100
"""However small the memory (`max_memory`) is, a step is filed in no smaller parts."""


def most_operators(plan: DumpPlan) -> int:
    """Operators that wait for the end of their step."""
    if plan.held_bytes is None:
        return MOST_OPS
    return min(MOST_OPS, max(_LEAST_OPS, plan.held_bytes // 2 // BYTES_OF_OPERATOR_AND_TENSORS))


def most_held(plan: DumpPlan) -> int:
    """Bytes of elements that wait until it is known which step, and which rank, they belong to."""
    return HELD_BYTES if plan.held_bytes is None else min(HELD_BYTES, plan.held_bytes // 2)
