"""Reads the schema of an operator, and finds the tensors among arguments and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import torch

from opdump.adapters.torch.operator_kinds import (
    factor_of_self,
    is_asynchronous,
    is_native,
    kind_of,
    true_name,
    unread_of,
    writes_of,
)
from opdump.adapters.torch.private_names import KEY_OF_COUNTS, has_kernel, operator_schema
from opdump.records import SkipReason

_Tensor = torch.Tensor
_Parameter = torch.nn.Parameter
_NUMBERS: Final = frozenset({int, float, complex, bool})
Found = tuple[int, str, torch.Tensor]
"""Slot, name of the argument or result, tensor."""


@dataclass(frozen=True, slots=True)
class OperatorSchema:
    """What the mode needs to know about an operator, computed once."""

    op_type: str
    kernel: str
    kind: SkipReason
    tensors: tuple[tuple[int, str], ...]
    """Positions and names of the arguments that are tensors or lists of tensors, in schema order."""
    others: tuple[tuple[int, str], ...]
    written: tuple[tuple[int, str], ...]
    """Positions and names of the arguments that the operator writes and does not return."""
    asynchronous: bool = False
    """Whether its results are still being written when it returns (collectives)."""
    non_blocking: int | None = None
    """Position of the argument with which a program skips waiting for a copy to the host; None without one."""
    changes: frozenset[str] = frozenset()
    """Names of the arguments that the operator writes, returned or not."""
    counted: tuple[tuple[int, str], ...] = ()
    """Positions and names of the written arguments whose version counter PyTorch increments."""
    declares_writes: bool = False
    """Whether `changes` is known to be complete, which it is not for a custom operator."""
    unread: frozenset[str] = frozenset()
    """Names of the arguments whose values the operator does not read."""
    factor: int | None = None
    """Position of the argument `beta`; if that is 0, `self` is not read. None without one."""
    pickers: dict[int, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = field(default_factory=dict)
    """Functions that take `others` from the positional arguments, by the number of these."""

    def is_late(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether tensors on the host may still be written when the operator returns, until the program waits for them."""
        place = self.non_blocking
        if place is None:
            return False
        return bool(args[place] if place < len(args) else kwargs.get("non_blocking"))

    def unread_among(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> frozenset[str]:
        """Names of the arguments whose values this call of the operator does not read."""
        place = self.factor
        if place is None or (args[place] if place < len(args) else kwargs.get("beta", 1)) != 0:
            return self.unread
        return self.unread | {"self"}

    def others_among(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments other than tensors; each keyword argument is preceded by its name."""
        pick = self.pickers.get(len(args))
        if pick is None:
            pick = self.pickers[len(args)] = _picker([index for index, _ in self.others if index < len(args)])
        if not kwargs:
            return pick(args)
        named = [part for _, name in self.others if name in kwargs for part in (name, kwargs[name])]
        return (*pick(args), *named)

    def numbers_among(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The numbers given for tensor arguments (`other` of `x + 1`), with their names; in a list, None for each tensor."""
        given = len(args)
        found: tuple[tuple[str, Any], ...] = ()
        for index, name in self.tensors:
            value = args[index] if index < given else kwargs.get(name)
            kind = value.__class__
            if kind is _Tensor or kind is _Parameter or value is None:
                continue
            if kind is list or kind is tuple:
                if any(element.__class__ in _NUMBERS for element in value):
                    numbers = [element if element.__class__ in _NUMBERS else None for element in value]
                    found = (*found, (name, numbers))
            elif isinstance(value, (int, float, complex)):
                found = (*found, (name, value))
        return found


def schema_of(func: Any) -> OperatorSchema:
    """What the mode needs to know about an operator, derived from its schema."""
    arguments = operator_schema(func).arguments
    tensors: list[tuple[int, str]] = []
    others: list[tuple[int, str]] = []
    for index, argument in enumerate(arguments):
        is_tensor = "Tensor" in str(argument.type)
        (tensors if is_tensor else others).append((index, argument.name))
    op_type, kernel = true_name(func)
    names = {argument.name: index for index, argument in enumerate(arguments)}
    returned = sum(
        1 for value in operator_schema(func).returns if value.alias_info is not None and value.alias_info.is_write
    )
    writes = writes_of(func)
    written = tuple((names[name], name) for name in writes) if not returned else _unreturned(func, names)
    return OperatorSchema(
        op_type,
        kernel,
        kind_of(func),
        tuple(tensors),
        tuple(others),
        written,
        is_asynchronous(func),
        names.get("non_blocking"),
        frozenset(writes),
        _counted(func),
        is_native(func),
        unread_of(func),
        factor_of_self(func),
    )


def _picker(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that returns these places of a tuple, always as a tuple, unlike `itemgetter` for fewer than two."""
    if len(places) > 1:
        return itemgetter(*places)
    if places:
        return itemgetter(slice(places[0], places[0] + 1))
    return itemgetter(slice(0))


def _counted(func: Any) -> tuple[tuple[int, str], ...]:
    """Written tensors whose writes PyTorch counts: not those in lists, and only if the operator has a kernel that counts."""
    schema = operator_schema(func)
    found = [
        (index, argument.name)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write and "[]" not in str(argument.type)
    ]
    return tuple(found) if found and has_kernel(func.name(), KEY_OF_COUNTS) else ()


def _unreturned(func: Any, names: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
    """Written arguments that no return value aliases."""
    aliased: set[str] = set()
    for value in operator_schema(func).returns:
        if value.alias_info is not None:
            aliased |= set(value.alias_info.before_set)
    kept = []
    for name in writes_of(func):
        info = operator_schema(func).arguments[names[name]].alias_info
        if info is None or aliased.isdisjoint(info.before_set):
            kept.append((names[name], name))
    return tuple(kept)


def tensors_among(
    places: Sequence[tuple[int, str]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Found]:
    """The tensors among the arguments; None keeps its slot, a list takes a slot for each element."""
    given = len(args)
    slot = 0
    for index, argument in places:
        value = args[index] if index < given else kwargs.get(argument)
        if value is None:
            slot += 1
        elif isinstance(value, _Tensor):
            yield slot, argument, value
            slot += 1
        elif isinstance(value, (list, tuple)):
            for position, element in enumerate(value):
                if isinstance(element, torch.Tensor):
                    yield slot, f"{argument}[{position}]", element
                elif isinstance(element, (list, tuple)):  # collectives have a list per rank
                    for path, inner in nested_tensors(element, f"{argument}[{position}]"):
                        yield slot, path, inner
                        slot += 1
                    continue
                slot += 1
        else:
            slot += 1


def tensors_returned(
    schema: OperatorSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
) -> list[Found]:
    """The tensors that an operator returned, then those that it wrote without returning them."""
    if isinstance(result, _Tensor):
        found = [(0, "", result)]
    elif isinstance(result, (tuple, list)):
        found = [
            (slot, path, value)
            for slot, (path, value) in enumerate(nested_tensors(result, "", keep_none=True))
            if value is not None
        ]
    else:
        found = []
    if schema.written:
        first = max((slot for slot, _, _ in found), default=-1) + 1
        written = tensors_among(schema.written, args, kwargs)
        found += [(first + slot, argument, tensor) for slot, argument, tensor in written]
    return found


def nested_tensors(values: Any, path: str, *, keep_none: bool = False) -> Iterator[tuple[str, Any]]:
    """The tensors in nested sequences and mappings, with their paths."""
    items = values.items() if isinstance(values, Mapping) else enumerate(values)
    for key, value in items:
        here = f"{path}[{key}]"
        if isinstance(value, torch.Tensor) or (keep_none and value is None):
            yield here, value
        elif isinstance(value, (list, tuple, Mapping)):
            yield from nested_tensors(value, here, keep_none=keep_none)
