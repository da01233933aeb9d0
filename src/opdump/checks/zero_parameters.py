"""Finds parameters of zeros that a step does not change while it changes others.

A bias, the scale of a last normalisation and the second matrix of an adapter begin with zeros, and the optimizer changes them. A
parameter that stays zero while all others change has no gradient: its layer is dead, or it is not trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opdump.checks.consequences import PARAMETER, Known, is_root_input
from opdump.checks.tensor_stats import TensorStats
from opdump.records import OpRecord

PREFIX: Final = f"{PARAMETER}."


class Parameters:
    """The parameters of one step, when they were first read and at its end."""

    def __init__(self) -> None:
        self._before: dict[str, TensorStats] = {}
        self._after: dict[str, Known] = {}

    def observe(self, op: OpRecord, inputs: Sequence[Known], outputs: Sequence[Known]) -> None:
        """Process the next operator of the step, in execution order."""
        for record, stats in inputs:
            if record.source.startswith(PREFIX):
                self._before.setdefault(record.source.removeprefix(PREFIX), stats)
        if op.op_type == PARAMETER:
            for each in outputs:
                self._after[op.op_name] = each

    def is_trained(self, source: str) -> bool:
        """Whether the step changed parameters, and the dump has this one (`Parameter.fc.weight`) at its end."""
        return self._changed() and source.removeprefix(PREFIX) in self._after

    def that_stay_zero(self) -> list[Known]:
        """Parameters with two axes or more that are zero at the end of a step that changed another one."""
        if not self._changed():
            return []
        return [
            (record, stats)
            for name, (record, stats) in self._after.items()
            if len(record.shape) >= 2 and stats.count and stats.zero == stats.count and not is_root_input(name)
        ]

    def _changed(self) -> bool:
        return any(self._before.get(name, stats) != stats for name, (_, stats) in self._after.items())
