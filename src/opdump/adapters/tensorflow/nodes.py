"""Nodes of a graph by themselves: whether one may run an additional time, and its attributes as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

# Finds the operators that may run an additional time: those known to compute only from their inputs, without side effects.
#
# TensorFlow's registry records whether a type of operator is stateful, which is not sufficient. Host callbacks may be declared as
# stateless (`tf.numpy_function(..., stateful=False)`), and so may operators of other libraries; some types of TensorFlow itself write into
# their inputs, or to the disk. An operator therefore counts as pure if its type is TensorFlow's own and no rule below excludes it.

Library = Callable[[str], Any]
"""The definition of a function by its name."""

_WITH_EFFECTS: Final = frozenset(
    {
        # These run the program's Python.
        *("PyFunc", "PyFuncStateless", "EagerPyFunc"),
        # These write into the memory of their inputs.
        *("InplaceAdd", "InplaceSub", "InplaceUpdate", "ParallelConcat"),
        # These have effects outside the graph: files, debuggers, errors.
        *("ReadFile", "MatchingFiles", "Copy", "CopyHost", "DebugIdentity", "DebugNanCount", "DebugNumericSummary"),
        *("DebugIdentityV2", "DebugNumericSummaryV2", "DebugIdentityV3", "Abort"),
        # These run a data set, and thereby functions of the program.
        *("GetElementAtIndex", "ComputeBatchSize", "WindowOp", "GetOptions"),
        # A text argument names the array that these change.
        *("TensorArrayWriteV2", "TensorArrayReadV2", "TensorArraySizeV2", "TensorArrayScatterV2", "TensorArrayGatherV2"),
        *("TensorArraySplitV2", "TensorArrayConcatV2", "TensorArrayCloseV2", "TensorArrayUnpackV2", "TensorArrayPackV2"),
    }
)  # fmt: skip
_SHARED: Final = frozenset({"container", "shared_name"})
"""An attribute with such a name shows that the operator shares something with others."""


def definitions_of(graph: Any) -> dict[str, Any]:
    """The definitions of a graph's functions, by name."""
    library = graph.as_graph_def(from_version=graph.version).library  # this version selects no operators
    return {function.signature.name: function for function in library.function}


def is_pure(node: Any, library: Library) -> bool:
    """Whether a repeated run of a node with the same inputs has the same results and no effects, including the functions that it runs."""
    return _is_pure(node, library, set())


def _is_pure(node: Any, library: Library, seen: set[str]) -> bool:
    op_def = op_def_registry.get(node.op)
    if op_def is not None and not _is_pure_type(op_def):
        return False
    stands_in = [node.op] if op_def is None else []  # a function in place of a type
    for name in (*functions_of(node), *stands_in):
        if name in seen:
            continue
        seen.add(name)
        definition = definition_in(name, library)
        if definition is None or not all(_is_pure(inner, library, seen) for inner in definition.node_def):
            return False
    return True


def _is_pure_type(op_def: Any) -> bool:
    return not (
        op_def.is_stateful
        or op_def.name in _WITH_EFFECTS
        or "Dataset" in op_def.name
        or not hasattr(tf.raw_ops, op_def.name)
        or any(argument.is_ref for argument in (*op_def.input_arg, *op_def.output_arg))
        or any(attribute.name in _SHARED for attribute in op_def.attr)
    )


def functions_of(node: Any) -> list[str]:
    """The functions that a node's attributes name."""
    names = [value.func.name for value in node.attr.values() if value.func.name]
    return names + [each.name for value in node.attr.values() for each in value.list.func]


def definition_in(name: str, library: Library) -> Any | None:
    """The definition of a function; None if the library does not have it."""
    try:
        return library(name)
    except (KeyError, ValueError, tf.errors.OpError):
        return None


def producer(reference: str) -> str:
    """The node behind a reference; the name of the argument if it refers to one."""
    return reference.removeprefix("^").partition(":")[0]


# Converts the attributes of TensorFlow operators, and their device if it is not the first CPU, to JSON values.

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
