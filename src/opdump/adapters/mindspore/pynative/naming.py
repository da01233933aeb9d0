"""Names of operators, and how often each ran in a step.

    Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0
    Gradients/Default/network-WithLossCell/_backbone-LeNet/fc1-Dense/Grad_MatMul/MatMul-op0

are the names that MindSpore gives to the operators of a compiled network.
"""

from __future__ import annotations

from collections import Counter

_DEFAULT = "Default"
_GRADIENTS = "Gradients"


class Names:
    """Numbers the operators of one type in one scope in the order in which they run. Not for use by several threads at once.

    `unique`: files have only the last part of a name, so each operator has a number of its own, in the order in which they first run.
    """

    def __init__(self, *, unique: bool = False) -> None:
        self._numbers: dict[str, int] | None = {} if unique else None
        self._counts: Counter[tuple[bool, str]] = Counter()
        self._executions: Counter[str] = Counter()

    def name(self, scope: str, op_type: str, *, again: bool = False) -> str:
        """The next name of an operator; one that is computed `again` has the name that it had first."""
        stem = f"{scope}/{op_type}"
        number = self._counts[again, stem]
        self._counts[again, stem] = number + 1
        name = f"{stem}-op{number}"
        if self._numbers is None:
            return name
        return f"{stem}-op{self._numbers.setdefault(name, len(self._numbers))}"

    def occurrence(self, op_name: str) -> int:
        """How often an operator of that name ran before in this step; it runs now."""
        found = self._executions[op_name]
        self._executions[op_name] = found + 1
        return found

    def restart(self) -> None:
        """The program calls its network anew: the operators have the names that they had."""
        self._counts.clear()

    def clear(self) -> None:
        """The step has ended."""
        self._counts.clear()
        self._executions.clear()


def forward_scope(path: str) -> str:
    return f"{_DEFAULT}/{path}" if path else _DEFAULT


def gradient_scope(path: str | None = None, forward_type: str = "") -> str:
    """The scope of what computes the gradient of an operator; `Gradients/Default` where it is not known which."""
    if path is None:
        return f"{_GRADIENTS}/{_DEFAULT}"
    scope = f"{_GRADIENTS}/{forward_scope(path)}"
    return f"{scope}/Grad_{forward_type}" if forward_type else scope
