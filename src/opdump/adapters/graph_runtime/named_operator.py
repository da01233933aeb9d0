"""NamedOperator: an operator of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from opdump.records import Frame, Phase, SkipReason

_VALUE: Final = "Parameter"


@dataclass(frozen=True, slots=True)
class NamedOperator:
    """An operator of a graph: what the records of all its executions say.

    `task_id` is its place in the graph, where the runtime counts that; `kernel` what the runtime calls it, where that is not its
    type; `stack` where the program made it, empty where nobody knows; `skip` why it leaves no data.
    """

    op_type: str
    op_name: str
    task_id: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stack: tuple[Frame, ...] = ()
    kernel: str = ""
    skip: SkipReason = ""
    phase: Phase = "forward"

    @property
    def own_kernel(self) -> str:
        """What the runtime calls it; nothing of a value that no operator made."""
        return self.kernel or ("" if self.op_type == _VALUE else self.op_type)
