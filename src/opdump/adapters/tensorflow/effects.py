"""Finds the operators that may run an additional time: those known to compute only from their inputs, without side effects.

TensorFlow's registry records whether a type of operator is stateful, which is not sufficient. Host callbacks may be declared as
stateless (`tf.numpy_function(..., stateful=False)`), and so may operators of other libraries; some types of TensorFlow itself write into
their inputs, or to the disk. An operator therefore counts as pure if its type is TensorFlow's own and no rule below excludes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

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
