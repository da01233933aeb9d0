"""Finds what may run once more than the program has it run: what is known to compute from its inputs and to touch nothing else.

TensorFlow's registry says of a type of operator whether it is stateful, and that is not enough. Host callbacks may be declared to have no
state (`tf.numpy_function(..., stateful=False)`), and so may operators of other libraries; some types of TensorFlow's own write into what they
read, or to the disk. So an operator counts as pure where TensorFlow itself brought its type along, and nothing speaks against it.
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
        # These write into the memory of what they read.
        *("InplaceAdd", "InplaceSub", "InplaceUpdate", "ParallelConcat"),
        # These leave the graph: for files, for debuggers, with an error.
        *("ReadFile", "MatchingFiles", "Copy", "CopyHost", "DebugIdentity", "DebugNanCount", "DebugNumericSummary"),
        *("DebugIdentityV2", "DebugNumericSummaryV2", "DebugIdentityV3", "Abort"),
        # These run a data set, and with it the functions of the program.
        *("GetElementAtIndex", "ComputeBatchSize", "WindowOp", "GetOptions"),
        # A text argument says which array these change.
        *("TensorArrayWriteV2", "TensorArrayReadV2", "TensorArraySizeV2", "TensorArrayScatterV2", "TensorArrayGatherV2"),
        *("TensorArraySplitV2", "TensorArrayConcatV2", "TensorArrayCloseV2", "TensorArrayUnpackV2", "TensorArrayPackV2"),
    }
)  # fmt: skip
_SHARED: Final = frozenset({"container", "shared_name"})
"""An attribute of such a name says that the operator has something in common with others."""


def definitions_of(graph: Any) -> dict[str, Any]:
    """The definitions of a graph's functions, by name."""
    library = graph.as_graph_def(from_version=graph.version).library  # from there on the graph has no operators
    return {function.signature.name: function for function in library.function}


def is_pure(node: Any, library: Library) -> bool:
    """Whether a node, run once more on the same, gives the same and changes nothing; so do the functions that it runs."""
    return _is_pure(node, library, set())


def _is_pure(node: Any, library: Library, seen: set[str]) -> bool:
    op_def = op_def_registry.get(node.op)
    if op_def is not None and not _is_pure_type(op_def):
        return False
    stands_in = [node.op] if op_def is None else []  # a function, in the place of a type
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
    """The definition of a function; None where the library has none."""
    try:
        return library(name)
    except (KeyError, ValueError, tf.errors.OpError):
        return None


def producer(reference: str) -> str:
    """The node behind a reference; the name of the argument where the caller gives it."""
    return reference.removeprefix("^").partition(":")[0]
