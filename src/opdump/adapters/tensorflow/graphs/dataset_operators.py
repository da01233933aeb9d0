"""Finds the data sets that a run of a graph reads, and the functions that data sets and other operators run unobserved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import tensorflow as tf

from opdump.adapters.tensorflow.graphs.library import hidden_callees
from opdump.adapters.tensorflow.graphs.walks import reachable

_ITERATORS: Final = frozenset({"Iterator", "IteratorV2"})
_BY_NAME: Final = frozenset({"IteratorFromStringHandle", "IteratorFromStringHandleV2"})
_STARTS: Final = frozenset({"MakeIterator"})
_OF_GENERATORS: Final = "__inference_Dataset_from_generator_"
"""With such names begin functions of TensorFlow's own: they call the generator, whose Python is seen."""


def datasets_read(operations: Iterable[Any]) -> Iterator[Any]:
    """The operators of the data sets that iterators among these operations may go through: who starts an iterator runs apart."""
    starts: dict[str, Any] = {}
    for operation in operations:
        if operation.type in _ITERATORS:
            starts.update((reader.name, reader) for output in operation.outputs for reader in output.consumers())
        elif operation.type in _BY_NAME:  # the name of an iterator is fed: it may be any
            starts.update((each.name, each) for each in operation.graph.get_operations() if each.type in _STARTS)
    first = [start.inputs[0].op for start in starts.values() if start.type in _STARTS]
    return reachable(first, lambda each: (tensor.op for tensor in each.inputs if tensor.dtype.base_dtype == tf.variant))


def hidden_functions(node: Any) -> Iterator[tuple[str, str]]:
    """What stands in the path of a function's operators, and the function, for each that a node runs where nobody sees it."""
    if not hidden_callees(node):
        return
    found = []
    for attribute, value in sorted(node.attr.items()):
        names = [value.func.name] if value.func.name else [each.name for each in value.list.func]
        found += [(attribute, name) for name in names if not name.startswith(_OF_GENERATORS)]
    for number, (attribute, name) in enumerate(found):
        is_list = [each for each, _ in found].count(attribute) > 1
        yield (f"{attribute}_{number}/" if is_list else f"{attribute}/") if len(found) > 1 else "", name
