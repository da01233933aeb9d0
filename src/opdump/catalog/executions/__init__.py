"""Executions of operators with their tensors, and which of them a person means by a name or by a line of the program."""

from __future__ import annotations

from opdump.catalog.execution import Execution
from opdump.catalog.operator_choice import OperatorChoice
from opdump.catalog.source_place import SourcePlace

__all__ = ["Execution", "OperatorChoice", "SourcePlace"]
