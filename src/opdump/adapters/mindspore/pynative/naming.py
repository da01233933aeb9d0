"""Names of operators, and the number of executions of each in a step.

    Default/network-WithLossCell/_backbone-LeNet/conv1-Conv2d/Conv2D-op0
    Gradients/Default/network-WithLossCell/_backbone-LeNet/fc1-Dense/Grad_MatMul/MatMul-op0

These are the names that MindSpore gives to the operators of a compiled network.
"""

from __future__ import annotations

from collections import Counter

_DEFAULT = "Default"
_GRADIENTS = "Gradients"


class Names:
    """Numbers the operators of one type in one scope, in execution order. Not thread-safe.

    `unique`: file names contain only the last component, so each operator has its own number, in the order of first executions.
    """

    def __init__(self, *, unique: bool = False) -> None:
        self._numbers: dict[str, int] | None = {} if unique else None
        self._counts: Counter[tuple[bool, str]] = Counter()
        self._executions: Counter[str] = Counter()

    def name(self, scope: str, op_type: str, *, again: bool = False) -> str:
        """The next name of an operator. `again`: it is recomputed, and gets the name of its first execution."""
        stem = f"{scope}/{op_type}"
        number = self._counts[again, stem]
        self._counts[again, stem] = number + 1
        name = f"{stem}-op{number}"
        if self._numbers is None:
            return name
        return f"{stem}-op{self._numbers.setdefault(name, len(self._numbers))}"

    def occurrence(self, op_name: str) -> int:
        """The number of earlier executions of this name in the step. Counts one execution."""
        found = self._executions[op_name]
        self._executions[op_name] = found + 1
        return found

    def restart(self) -> None:
        """Number operators from 0 again, because the program calls its network again."""
        self._counts.clear()

    def clear(self) -> None:
        """Forget the step, which has ended."""
        self._counts.clear()
        self._executions.clear()


def forward_scope(path: str) -> str:
    return f"{_DEFAULT}/{path}" if path else _DEFAULT


def gradient_scope(path: str | None = None, forward_type: str = "") -> str:
    """The scope of operators that compute the gradient of a forward operator; `Gradients/Default` if that is unknown."""
    if path is None:
        return f"{_GRADIENTS}/{_DEFAULT}"
    scope = f"{_GRADIENTS}/{forward_scope(path)}"
    return f"{scope}/Grad_{forward_type}" if forward_type else scope
