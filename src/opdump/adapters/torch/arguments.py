"""Encodes non-tensor arguments as JSON values, exactly enough to replay the operator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from opdump.adapters.torch.schemas import OperatorSchema
from opdump.adapters.torch.sites import Site

COMPARABLE = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        list,
        tuple,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)
"""Argument classes that can be compared; lists and tuples only if all their elements can."""

_NO_ARGUMENTS: Mapping[str, Any] = {}


def json_value(value: Any) -> Any:
    """A JSON value for an argument of an operator.

    dtype, layout, device and memory format become their torch spelling. NaN and infinities, which JSON lacks, become
    `{"float": "nan"}`, and complex numbers `{"complex": [re, im]}`. Anything else, such as a generator, becomes its class name.
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


def arguments_of(
    site: Site, schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The non-tensor arguments as JSON values; the same object as last time if they are unchanged.

    They include numbers passed in place of tensors, such as `other` in `x + 1`.
    """
    raw = schema.others_among(args, kwargs)
    numbers = schema.numbers_among(args, kwargs)
    if numbers:
        raw = (*raw, *[part for number in numbers for part in number])
    elif not raw:
        return _NO_ARGUMENTS
    # 1, 1.0 and True are equal but different arguments, and so are 0.0 and -0.0.
    kinds = tuple([math.copysign(1.0, each) if each.__class__ is float and not each else type(each) for each in raw])
    if site.raw_arguments != (kinds, raw):
        given = len(args)
        site.arguments = {
            argument: json_value(value)
            for index, argument in schema.others
            if index < given or argument in kwargs
            for value in (args[index] if index < given else kwargs[argument],)
        }
        for argument, value in numbers:
            site.arguments[argument] = json_value(value)
        # None never equals the pair above, so arguments that cannot be compared are encoded each time.
        site.raw_arguments = (kinds, raw) if _are_comparable(raw) else None
    return site.arguments


def _are_comparable(values: Iterable[Any]) -> bool:
    return all(
        value.__class__ in COMPARABLE and (value.__class__ not in (list, tuple) or _are_comparable(value))
        for value in values
    )
