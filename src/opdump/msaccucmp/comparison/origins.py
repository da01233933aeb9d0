"""Finds the counterpart of a tensor of the device: an output of an operator of the framework.

The counterpart of an input is that of the output that it reads. Cast and TransData only pass on their inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from opdump.msaccucmp.comparison.fusion_rules import FusionRules, RuleOperator
from opdump.msaccucmp.comparison.incomparable import IncomparableError
from opdump.msaccucmp.exit_codes import ExitCode
from opdump.msaccucmp.journal import log

_PASSING: Final = frozenset({"Cast", "TransData"})
_INVALID_INPUT: Final = "The input information ({}) is invalid. {}"


@dataclass(frozen=True, slots=True)
class Origin:
    """An output of an operator of the framework, and its format there (empty if unknown)."""

    operator: str
    index: int
    format: str


def origin_of_input(rules: FusionRules, operator: RuleOperator, index: int) -> Origin | None:
    """The counterpart of the input; None if the rules do not have it. Raises IncomparableError if they are invalid."""
    seen: set[tuple[str, int]] = set()
    while True:
        operator, index = _source(rules, operator, index)
        if (operator.name, index) in seen:
            raise IncomparableError(ExitCode.BAD_JSON, "", f"{operator.name} reads what it gives, through others")
        seen.add((operator.name, index))
        if operator.op_type not in _PASSING:
            return _own_origin(rules, operator, index)


def origin_of_output(rules: FusionRules, operator: RuleOperator, index: int) -> Origin | None:
    """The counterpart of the output; None if the rules do not have it. Raises IncomparableError if they are invalid."""
    if operator.op_type in _PASSING:
        return origin_of_input(rules, operator, index)
    return _own_origin(rules, operator, index)


def _source(rules: FusionRules, operator: RuleOperator, index: int) -> tuple[RuleOperator, int]:
    """The operator that makes the input, and the number of its output."""
    if index >= len(operator.inputs):
        raise IncomparableError(
            ExitCode.BAD_INDEX,
            "",
            f"{operator.name} has {len(operator.inputs)} inputs in the rules; {index} is none of them",
        )
    text = operator.inputs[index]
    parts = text.split(":")
    if len(parts) != 2:
        raise IncomparableError(ExitCode.BAD_JSON, _INVALID_INPUT.format(text, "It only supports op_name:index."))
    name, number = parts[0], parts[1].strip()
    if not name:
        raise IncomparableError(ExitCode.BAD_JSON, _INVALID_INPUT.format(text, "The input operator name is empty."))
    if not number.isdecimal():
        raise IncomparableError(
            ExitCode.BAD_JSON, _INVALID_INPUT.format(text, "The input index only supports numbers.")
        )
    found = rules.operators.get(name)
    if found is None:
        raise IncomparableError(ExitCode.BAD_JSON, f'There is no "{name}" in the fusion rule file.')
    return found, int(number)


def _own_origin(rules: FusionRules, operator: RuleOperator, index: int) -> Origin | None:
    is_one_to_one = rules.group_of[operator.name].is_one_to_one
    if not operator.outputs:
        if is_one_to_one:
            return Origin(operator.originals[0], index, "")
        log("WARNING", f"the rules describe no output of {operator.name}")
        return None
    if index >= len(operator.outputs):
        index = 0
    described = operator.outputs[index]
    name = described.name
    if not name and is_one_to_one:
        name = operator.originals[0]
    if not name:
        log("WARNING", f"the rules do not name the origin of {operator.name}:output:{index}")
        return None
    return Origin(name, index if described.index is None else described.index, described.format)
