"""Parses watchpoints from text: `gradient_vanishing abs_mean_lt=1e-9`, `recommended`.

tensor_range range_start_inclusive=-1 range_end_inclusive=1 range_percentage_lt=50
activation_range op=Tanh max_min_lt=0.01        only tensors of these operators
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from opdump.checks.watchpoints import WATCHPOINTS, Condition, Watchpoint
from opdump.errors import ConfigError
from opdump.plan.unmatched_names import with_nearest

RECOMMENDED: Final = "recommended"
_TANH: Final = math.tanh(8.8)
_SIGMOID: Final = 1 / (1 + math.exp(-16.2))
_RECOMMENDED: Final = (
    "weight_initialization zero_percentage_ge=100",
    "weight_change_too_large abs_mean_update_ratio_gt=1",
    "gradient_vanishing abs_mean_lt=1e-9",
    "operator_overflow",
    "tensor_overflow",
    "tensor_all_zero zero_percentage_ge=100",
    f"activation_range op=Tanh range_start_inclusive={-_TANH!r} range_end_inclusive={_TANH!r} range_percentage_lt=0.1",
    f"activation_range op=Sigmoid range_start_inclusive={1 - _SIGMOID!r} range_end_inclusive={_SIGMOID!r} range_percentage_lt=0.1",
    "activation_range op=ReLU range_start_inclusive=-1 range_end_inclusive=0 range_percentage_gt=99.9",
)
"""The set that MindSpore Insight recommends, with the values in its documents and its user interface."""
_OPERATORS: Final = "op"


def watchpoints_of(texts: Iterable[str]) -> tuple[Watchpoint, ...]:
    """The watchpoints of these texts, without duplicates. Raises ConfigError for an invalid name or value, with the valid ones."""
    found: dict[str, Watchpoint] = {}
    for text in texts:
        for each in _RECOMMENDED if text.strip() == RECOMMENDED else (text,):
            watchpoint = replace(_watchpoint(each), is_asked=each is text)
            found.setdefault(watchpoint.text, watchpoint)
    return tuple(found.values())


def _watchpoint(text: str) -> Watchpoint:
    words = text.replace(",", " ").split()
    if not words:
        raise ConfigError(
            f"watchpoint: found nothing; expected a condition and its parameters, as 'gradient_vanishing abs_mean_lt=1e-9', or "
            f"{RECOMMENDED!r}"
        )
    name, given = words[0], words[1:]
    if name not in WATCHPOINTS:
        known = (*WATCHPOINTS.names(), RECOMMENDED)
        said = with_nearest(f"watchpoint: unknown condition {name!r}", name, known)
        raise ConfigError(said if "nearest" in said else f"{said}; the conditions are {', '.join(known)}")
    condition = WATCHPOINTS.load(name)
    values: dict[str, float] = {}
    operators = ""
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ConfigError(
                f"watchpoint: {name}: found {word!r}; expected PARAMETER=VALUE, as in {_example(condition)!r}"
            )
        if key in values or (key == _OPERATORS and operators):
            raise ConfigError(f"watchpoint: {name}: {key} is given twice")
        if key == _OPERATORS:
            operators = value
            continue
        values[key] = _value(condition, key, value)
    return _complete(condition, values, operators, " ".join(words))


def _value(condition: Condition, key: str, value: str) -> float:
    parameter = condition.parameter(key)
    if parameter is None:
        names = [each.name for each in condition.parameters]
        has = f"; it has {', '.join((*names, _OPERATORS))}"
        raise ConfigError(with_nearest(f"watchpoint: {condition.id} has no parameter {key!r}{has}", key, names))
    try:
        return parameter.value_of(value)
    except ValueError as error:
        raise ConfigError(f"watchpoint: {condition.id}: {error}") from None


def _complete(condition: Condition, given: dict[str, float], operators: str, text: str) -> Watchpoint:
    """Adds the defaults: of thresholds if none is given, of other parameters always."""
    defaults = {each.name: each.default for each in condition.parameters if each.default is not None}
    thresholds = [each.name for each in condition.thresholds]
    enabled = tuple(name for name in thresholds if name in given) or tuple(filter(defaults.__contains__, thresholds))
    if thresholds and not enabled:
        raise ConfigError(
            f"watchpoint: {condition.id} needs at least one of {', '.join(thresholds)}, as in {_example(condition)!r}"
        )
    values = defaults | given
    for name in enabled:
        parameter = condition.parameter(name)
        missing = [each for each in (parameter.needs if parameter else ()) if each not in values]
        if missing:
            raise ConfigError(f"watchpoint: {condition.id}: {name} needs {' and '.join(missing)} too")
    _check_range(condition, values)
    return Watchpoint(condition, values, enabled, operators, text)


def _check_range(condition: Condition, values: Mapping[str, float]) -> None:
    start, end = values.get("range_start_inclusive"), values.get("range_end_inclusive")
    if start is not None and end is not None and start > end:
        raise ConfigError(
            f"watchpoint: {condition.id}: the range is from {start:g} to {end:g}; expected range_start_inclusive below "
            "range_end_inclusive"
        )


def _example(condition: Condition) -> str:
    if not condition.parameters:
        return condition.id
    threshold = condition.thresholds[-1]
    return f"{condition.id} {threshold.name}={1 if threshold.default is None else threshold.default:g}"
