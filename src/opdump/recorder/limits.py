"""How much of a running step a recorder keeps in memory. Beyond these limits, part of the step is written before the step ends."""

from __future__ import annotations

from typing import Final

from opdump.plan import DumpPlan
from opdump.recorder.step_parts import BYTES_OF_OPERATOR_AND_TENSORS

MOST_OPS = 50_000
"""A step with more operators is written in parts, so that a program whose step never ends does not fill the memory."""
HELD_BYTES: Final = 2**28
"""Limit for elements that wait for the next step. Above it, the operators are assigned to the step that they name."""
_LEAST_OPS: Final = 100
"""A part of a step has at least this many operators, even if `max_memory` is small."""


def most_operators(plan: DumpPlan) -> int:
    """Return how many operators may wait for the end of their step."""
    if plan.held_bytes is None:
        return MOST_OPS
    return min(MOST_OPS, max(_LEAST_OPS, plan.held_bytes // 2 // BYTES_OF_OPERATOR_AND_TENSORS))


def most_held(plan: DumpPlan) -> int:
    """Return how many bytes of elements may wait until their step and rank are known."""
    return HELD_BYTES if plan.held_bytes is None else min(HELD_BYTES, plan.held_bytes // 2)
