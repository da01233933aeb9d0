"""Converts the attributes of TensorFlow operators, and their device if it is not the first CPU, to JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_LONGEST = 64
"""Maximum number of list elements that are kept."""


def arguments_of(node: Any) -> dict[str, Any]:
    """The attributes of a NodeDef by name: numbers, texts, dtypes by name, shapes as lists. Tensors, functions and internals are omitted."""
    values = {name: _value(node.attr[name]) for name in sorted(node.attr) if not name.startswith("_")}
    return {name: value for name, value in values.items() if value is not None} | device_of(node.device)


def arguments_of_call(attrs: Sequence[Any], op_def: Any) -> dict[str, Any]:
    """The attributes of an operator that ran eagerly: names and values alternate, dtypes are numbers. The result equals that for a NodeDef:
    omitted attributes have their default.
    """
    kinds = {attribute.name: attribute.type for attribute in op_def.attr}
    found = dict(_defaults(op_def.name))
    for name, value in zip(attrs[::2], attrs[1::2], strict=True):
        given = None if name.startswith("_") else _given(value, kinds.get(name, ""))
        if given is not None:
            found[name] = given
    return found


@cache
def _defaults(op_type: str) -> Mapping[str, Any]:
    """The attributes of a type that have a default, with the default."""
    op_def = op_def_registry.get(op_type)
    attributes = [] if op_def is None else [each for each in op_def.attr if each.HasField("default_value")]
    values = {each.name: _value(each.default_value) for each in attributes}
    return {name: value for name, value in values.items() if value is not None}


def _given(value: Any, kind: str) -> Any:
    """An argument of a call as JSON; None for a function or a tensor."""
    if isinstance(value, list | tuple):
        items = [_given(item, kind.removeprefix("list(").removesuffix(")")) for item in value[:_LONGEST]]
        return None if any(item is None for item in items) else items
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, tf.dtypes.DType):
        return value.name
    if isinstance(value, tf.TensorShape):
        return None if value.rank is None else [-1 if size is None else size for size in value]
    if isinstance(value, bool | int | float | str):
        return tf.dtypes.as_dtype(value).name if kind == "type" else value
    return None


def device_of(name: str) -> dict[str, Any]:
    """The device of an operator as `CPU:1`, from TensorFlow's name for it; empty for the first CPU, and if none is named."""
    device = name.lower().rpartition("device:")[2].upper()
    return {} if device in ("", "CPU:0", "CPU:*") or "device:" not in name.lower() else {"device": device}


def _value(attr: Any) -> Any:
    kind = attr.WhichOneof("value")
    if kind == "list":
        return _list(attr.list)
    return _CONVERSIONS[kind](getattr(attr, kind)) if kind in _CONVERSIONS else None


def _list(values: Any) -> list[Any]:
    for kind, convert in _CONVERSIONS.items():
        if items := getattr(values, kind):
            return [convert(item) for item in items[:_LONGEST]]
    return []


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _dtype(number: int) -> str:
    return str(tf.dtypes.as_dtype(number).name)


def _shape(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]


_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = MappingProxyType(
    {"s": _text, "i": int, "f": float, "b": bool, "type": _dtype, "shape": _shape}
)
"""The conversions for the kinds of values in an AttrValue, and in its lists."""
