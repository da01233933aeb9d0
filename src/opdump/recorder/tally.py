"""Counts the operators that ran, those that left data, and why the others did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from opdump.plan import StepSet
from opdump.recorder.snapshots import TensorSnapshot
from opdump.records import OpRecord, SkipReason
from opdump.step_columns import VALUE, BlockPattern

GAPS: frozenset[SkipReason] = frozenset(
    {"no storage", "unsupported layout", "opaque", "device graph", "not observed", "not written"}
)
"""Reasons that leave a gap in a dump; `strict` makes them an error."""


class Tally:
    """Counts what was written, left out and lost. `steps` are the selected steps."""

    def __init__(self, steps: StepSet) -> None:
        self.executed = 0
        self.captured = 0
        self.tensors = 0
        self.skipped: Counter[str] = Counter()
        """Number of operators without data, by reason."""
        self.tensors_skipped: Counter[str] = Counter()
        self.steps: list[int] = []
        self._wanted = steps
        self._known_steps: set[int] = set()

    def filed(self, steps: set[int], ops: Sequence[OpRecord], entries: Sequence[TensorSnapshot]) -> None:
        self.executed += sum(1 for op in ops if op.op_type != VALUE)
        for op in ops:
            if op.skip:
                self.skipped[op.skip] += 1
            elif op.op_type != VALUE:
                self.captured += 1
        left_out = [entry.skip for entry in entries if entry.skip]
        self.tensors_skipped.update(left_out)
        self.tensors += len(entries) - len(left_out)
        self.steps.extend(sorted(step for step in steps - self._known_steps if step in self._wanted))
        self._known_steps.update(steps)

    def filed_block(self, pattern: BlockPattern) -> None:
        """Count a run of a block, in a step that was passed to `filed`."""
        ran = pattern.op_types.total() - pattern.op_types[VALUE]
        self.executed += ran
        self.captured += ran
        self.tensors_skipped.update(pattern.left_out)
        self.tensors += len(pattern.tensor_places) - pattern.left_out.total()

    def left_out(self, reasons: Counter[SkipReason]) -> None:
        """Count operators that left no data and are not listed, by reason."""
        self.executed += reasons.total()
        self.skipped.update(reasons)

    def dropped(self, ops: Iterable[OpRecord]) -> None:
        """Count operators that were kept in memory and never written, because no trigger fired."""
        for op in ops:
            if op.op_type != VALUE:
                self.executed += 1
                self.skipped[op.skip or "not triggered"] += 1

    def lost(self, ops: Iterable[OpRecord], tensors: int) -> None:
        """Count operators, and a number of tensors, that were recorded and can no longer be written."""
        for op in ops:
            if op.op_type != VALUE:
                self.executed += 1
                self.skipped[op.skip or "not written"] += 1
        if tensors:
            self.tensors_skipped["not written"] += tensors

    @property
    def gaps(self) -> dict[str, int]:
        """Number of operators and tensors that should have left data and did not, by reason."""
        total = self.skipped + self.tensors_skipped
        return {reason: count for reason, count in total.items() if reason in GAPS}
