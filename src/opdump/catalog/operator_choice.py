"""Parses the name of operators as a user types it: whatever `opdump show` prints of one can be given back to it.

Default/network-Net/conv1-Conv2d/convolution-op7     its full name, or the end of it from a slash on
Default/network-Net/conv1-Conv2d                     all in this scope
convolution, Conv2D                                  all of this type, by any framework's name
aten::convolution                                    all of this kernel
name-regex(Default/.+)                               all whose full name this expression matches
Parameter.conv1.weight, conv1.weight                 a parameter
Default/network-Net/conv1-Conv2d/convolution-op7:0   who made a tensor, as the column "made by" has it
data-3, Parameter.exp_avg.fc.weight                  what no operator made: those that read it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opdump.catalog.execution import Execution
from opdump.plan import KernelPattern

_TENSOR = re.compile(r"(.+?)(?::(?:input|output))?:[0-9]+")
_PARAMETER = "Parameter"


@dataclass(frozen=True, slots=True)
class OperatorChoice:
    """A name as it was given, and what it may mean."""

    text: str
    pattern: KernelPattern

    @classmethod
    def parse(cls, text: str) -> OperatorChoice:
        """Raises ConfigError for a `name-regex(...)` that cannot be used."""
        return cls(text, KernelPattern.parse(text))

    def readings(self) -> Iterable[Callable[[Execution], bool]]:
        """What the name may mean, the likeliest first: of these the first that finds something counts."""
        yield self._is_named
        yield self._is_in_scope
        yield self._made_a_tensor
        yield self._reads_it

    def _is_named(self, execution: Execution) -> bool:
        op, text = execution.op, self.text
        return (
            op.op_name == text
            or op.op_name.endswith(f"/{text}")
            or (text != "" and text in (op.kernel, op.op_type))
            or (op.op_type == _PARAMETER and f"{_PARAMETER}.{op.op_name}" == text)
            or self.pattern.matches(op.op_name, op.op_type)
        )

    def _is_in_scope(self, execution: Execution) -> bool:
        name, scope = execution.op.op_name, self.text.rstrip("/")
        return bool(scope) and (name.startswith(f"{scope}/") or f"/{scope}/" in f"/{name}")

    def _made_a_tensor(self, execution: Execution) -> bool:
        found = _TENSOR.fullmatch(self.text)
        return found is not None and execution.op.op_name == found[1]

    def _reads_it(self, execution: Execution) -> bool:
        return any(
            self.text in (tensor.source, f"{_PARAMETER}.{tensor.source}")
            for tensor in execution.tensors
            if tensor.source
        )
