"""NamedOperator: an operator of a graph. UniqueNames: the names of the operators of one graph in MindSpore's layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opdump.records import Frame, Phase, SkipReason

_VALUE: Final = "Parameter"
_NUMBER: Final = re.compile(r"-op[0-9]+\Z")


@dataclass(frozen=True, slots=True)
class NamedOperator:
    """An operator of a graph: the common part of the records of all its executions.

    `task_id` is its position in the graph, if the runtime counts it; `kernel` the runtime's name for it, if that differs from the type;
    `stack` the program lines that created it, empty if unknown; `skip` the reason why it is skipped.
    """

    op_type: str
    op_name: str
    task_id: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    stack: Sequence[Frame] = ()
    kernel: str = ""
    skip: SkipReason = ""
    phase: Phase = "forward"

    @property
    def own_kernel(self) -> str:
        """The runtime's name for it; empty for a value that no operator made."""
        return self.kernel or ("" if self.op_type == _VALUE else self.op_type)


class UniqueNames:
    """Full names whose last components are unique in a graph, as in MindSpore, whose files contain only this component.

    If another name already has the same last component, a number is appended.

    >>> names = UniqueNames()
    >>> [names.of(name) for name in ("conv1/Conv", "conv2/Conv", "conv2/Relu-op0", "conv3/Relu-op0", "conv2/Conv")]
    ['conv1/Conv', 'conv2/Conv-op1', 'conv2/Relu-op0', 'conv3/Relu-op1', 'conv2/Conv-op1']
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}
        """The next number to try, by the last component without its number."""

    def of(self, name: str) -> str:
        """The unique name of an operator. The same name always has the same result."""
        known = self._names.get(name)
        if known is None:
            scope, slash, last = name.rpartition("/")
            stem = _NUMBER.sub("", last)
            number = self._numbers.get(stem, 1)
            while last in self._taken:
                last = f"{stem}-op{number}"
                number += 1
            self._numbers[stem] = number
            self._taken.add(last)
            known = self._names[name] = f"{scope}{slash}{last}"
        return known
