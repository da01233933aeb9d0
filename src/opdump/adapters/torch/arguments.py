"""Non-tensor arguments as JSON values, exact enough to call the operator again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch


def json_value(value: Any) -> Any:
    """A JSON value for an argument of an operator.

    dtype, layout, device and memory format become their torch spelling; NaN and infinities, which JSON lacks, become
    `{"float": "nan"}`; complex numbers `{"complex": [re, im]}`; what has no value (a generator) its class name.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if isinstance(value, (float, torch.SymFloat)):
        number = float(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if isinstance(value, complex):
        return {"complex": [json_value(value.real), json_value(value.imag)]}
    if isinstance(value, (torch.dtype, torch.layout, torch.device, torch.memory_format)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [json_value(element) for element in value]
    if isinstance(value, Mapping):
        return {str(key): json_value(element) for key, element in value.items()}
    return f"<{type(value).__name__}>"
