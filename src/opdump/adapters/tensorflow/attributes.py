"""Attributes of TensorFlow nodes as JSON values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_LONGEST = 64
"""Elements of a list that are kept."""


def arguments_of(node: Any) -> dict[str, Any]:
    """The attributes of a NodeDef by name: numbers, texts, dtypes by name, shapes as lists. Tensors, functions and internals are left out."""
    found = {}
    for name in sorted(node.attr):
        if name.startswith("_"):
            continue
        value = _value(node.attr[name])
        if value is not None:
            found[name] = value
    return found


def _value(attr: Any) -> Any:
    kind = attr.WhichOneof("value")
    if kind in ("i", "b"):
        return getattr(attr, kind)
    if kind == "f":
        return float(attr.f)
    if kind == "s":
        return attr.s.decode("utf-8", "replace")
    if kind == "type":
        return _dtype(attr.type)
    if kind == "shape":
        return _shape(attr.shape)
    if kind == "list":
        return _list(attr.list)
    return None


def _list(values: Any) -> list[Any]:
    for field, convert in (("s", _text), ("i", int), ("f", float), ("b", bool), ("type", _dtype), ("shape", _shape)):
        items = getattr(values, field)
        if items:
            return [convert(item) for item in items[:_LONGEST]]
    return []


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _dtype(number: int) -> str:
    return str(tf.dtypes.as_dtype(number).name)


def _shape(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dim.size for dim in shape.dim]
