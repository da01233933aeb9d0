"""Assembles the arguments of a replayed operator: its tensors, and the other arguments as recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from opdump.adapters.torch.private_names import operator_schema
from opdump.errors import CannotReplayError
from opdump.records import OpRecord

# An element of a list argument: `tensors[1]`.
_ELEMENT: Final = re.compile(r"(\w+)\[(\d+)\]")
_MISSING: Final = object()


def has_unknown(value: Any) -> bool:
    """Whether an argument was recorded by type only: a generator, a script object."""
    if isinstance(value, str):
        return value.startswith("<")
    if isinstance(value, Mapping):
        return any(map(has_unknown, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_unknown, value))


def call_of(
    func: Any, op: OpRecord, tensors: Mapping[str, Any], floating: torch.dtype | None
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and keyword arguments. `tensors` has tensors, or placeholders, by argument (`weight`, `tensors[1]`).

    With `floating`, arguments that are floating-point dtypes become that one. Raises CannotReplayError for a missing one.
    """
    given: dict[str, Any] = {}
    for name, tensor in tensors.items():
        listed = _ELEMENT.fullmatch(name)
        if listed:
            elements = given.setdefault(listed[1], [])
            elements.extend([None] * (int(listed[2]) + 1 - len(elements)))
            elements[int(listed[2])] = tensor
        else:
            given[name] = tensor
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in _arguments_of(func):
        value = given.get(argument.name, _MISSING)
        if value is _MISSING and argument.name in op.arguments:
            value = _decoded(op.arguments[argument.name], argument.kind, floating)
        if value is _MISSING:
            value = _left_out(argument)
        if value is _MISSING:
            raise CannotReplayError(f"the dump does not have the argument {argument.name} of {op.kernel}")
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return args, kwargs


class _Argument(NamedTuple):
    """An argument of an operator's schema, of which PyTorch makes new objects each time."""

    name: str
    kind: str
    kwarg_only: bool
    of_schema: Any


@cache
def _arguments_of(func: Any) -> tuple[_Argument, ...]:
    return tuple(
        _Argument(argument.name, str(argument.type), argument.kwarg_only, argument)
        for argument in operator_schema(func).arguments
    )


def _left_out(argument: _Argument) -> Any:
    """The value of an argument that was not given."""
    if argument.of_schema.has_default_value():
        return argument.of_schema.default_value
    if "Optional" in argument.kind:
        return None
    return [] if "List[Tensor]" in argument.kind else _MISSING


def _decoded(value: Any, kind: str, floating: torch.dtype | None) -> Any:
    if isinstance(value, Mapping):
        if "float" in value:
            return float(value["float"])
        if "complex" in value:
            real, imaginary = (_decoded(part, kind, floating) for part in value["complex"])
            return complex(real, imaginary)
    if isinstance(value, list):
        return [_decoded(element, kind, floating) for element in value]
    if isinstance(value, str):
        if value.startswith("torch."):
            found = getattr(torch, value.removeprefix("torch."), None)
            if isinstance(found, torch.dtype):
                return floating if found.is_floating_point and floating is not None else found
            return value if found is None else found
        if "device" in kind.lower():
            return torch.device("cpu")
    return value
