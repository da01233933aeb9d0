"""What `kernels` of a configuration names and no operator had."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opdump.plan import DumpPlan
from opdump.plan.nearest import with_nearest


def unmatched_kernels(plan: DumpPlan, matched: Collection[str], seen: Mapping[str, str]) -> list[str]:
    """What `kernels` names and is not among `matched`, in words, with the nearest names of what was there: `seen`, operators and their types."""
    if not seen:
        return []  # nothing was there at all: that is another reason
    candidates: dict[str, None] = {}
    for op_name, op_type in seen.items():
        candidates[op_type] = None
        candidates[op_name] = None
        candidates[op_name.rpartition("/")[2].rpartition("-op")[0]] = None
    return [
        with_nearest(f"kernels: {text!r} matched no operator", text, candidates)
        for text in plan.unused_kernels(matched)
    ]
