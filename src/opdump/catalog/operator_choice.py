"""Parses the name of operators as a user types it. Every name that `opdump show` prints is accepted.

Default/network-Net/conv1-Conv2d/convolution-op7     its full name, or the end of it after a slash
Default/network-Net/conv1-Conv2d                     all in this scope
convolution, Conv2D                                  all of this type, in the spelling of any framework
aten::convolution                                    all of this kernel
name-regex(Default/.+)                               all whose full name matches this expression
Parameter.conv1.weight, conv1.weight                 a parameter
Default/network-Net/conv1-Conv2d/convolution-op7:0   the producer of a tensor, as in the column "made by"
data-3, Parameter.exp_avg.fc.weight                  a value that no operator produced: its readers
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
    """A name as typed, and its possible meanings."""

    text: str
    pattern: KernelPattern

    @classmethod
    def parse(cls, text: str) -> OperatorChoice:
        """Parse a name. Raises ConfigError for a `name-regex(...)` that cannot be used."""
        return cls(text, KernelPattern.parse(text))

    def readings(self) -> Iterable[Callable[[Execution], bool]]:
        """Return the possible meanings of the name, most likely first. The first one that matches an operator counts."""
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
