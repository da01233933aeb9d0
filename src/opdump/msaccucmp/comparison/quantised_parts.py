"""Finds the operators between a quantisation and its inverse: their results have no counterpart in the framework."""

from __future__ import annotations

from typing import Final

from opdump.msaccucmp.comparison.fusion_rules import FusionRules, RuleOperator

_QUANTISES: Final = ("_quant_layer", "DT_INT8")
_RESTORES: Final = ("_dequant_layer", "DT_FLOAT16")


def quantised_operators(rules: FusionRules) -> frozenset[str]:
    """The names of operators that read a quantised tensor and do not restore it."""
    gives: dict[str, bool] = {}
    for operator in rules.operators.values():
        sources = [text.rpartition(":")[0] for text in operator.inputs]
        restores = _is_like(operator, _RESTORES)
        passes = bool(sources) and all(gives.get(source, False) for source in sources)
        gives[operator.name] = _is_like(operator, _QUANTISES) or (passes and not restores)
    return frozenset(
        operator.name
        for operator in rules.operators.values()
        if not _is_like(operator, _RESTORES)
        and any(gives.get(text.rpartition(":")[0], False) for text in operator.inputs)
    )


def _is_like(operator: RuleOperator, sign: tuple[str, str]) -> bool:
    """Whether the name indicates this operation, and the first output has the type for it."""
    part, dtype = sign
    named = any(part in name for name in (operator.name, *operator.originals))
    return named and bool(operator.outputs) and operator.outputs[0].dtype == dtype
