"""Finds the data sets that a run of a graph reads, and the functions that data sets and other operators run unobserved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import tensorflow as tf

from opdump.adapters.program_stacks import Stack
from opdump.adapters.tensorflow.effects import Library, definition_in
from opdump.adapters.tensorflow.graphs.library import are_handles, callees_of, hidden_callees, outputs_of
from opdump.adapters.tensorflow.graphs.program import ProgramOperator
from opdump.adapters.tensorflow.graphs.walks import reachable
from opdump.adapters.tensorflow.stacks import Stacks, stack_of_node
from opdump.adapters.tensorflow.xla import is_compiled
from opdump.records import SkipReason

_ITERATORS: Final = frozenset({"Iterator", "IteratorV2"})
_BY_NAME: Final = frozenset({"IteratorFromStringHandle", "IteratorFromStringHandleV2"})
_STARTS: Final = frozenset({"MakeIterator"})
_OF_GENERATORS: Final = "__inference_Dataset_from_generator_"
"""Prefixes of TensorFlow's own functions that call a generator. The generator's Python is observed."""


def datasets_read(operations: Iterable[Any]) -> Iterator[Any]:
    """The operators of the data sets whose iterators these operations may use; iterators are started in a separate run."""
    starts: dict[str, Any] = {}
    for operation in operations:
        if operation.type in _ITERATORS:
            starts.update((reader.name, reader) for output in operation.outputs for reader in output.consumers())
        elif operation.type in _BY_NAME:  # the name of an iterator is fed, so it may be any
            starts.update((each.name, each) for each in operation.graph.get_operations() if each.type in _STARTS)
    first = [start.inputs[0].op for start in starts.values() if start.type in _STARTS]
    return reachable(first, lambda each: (tensor.op for tensor in each.inputs if tensor.dtype.base_dtype == tf.variant))


def hidden_functions(node: Any) -> Iterator[tuple[str, str]]:
    """For each function that a node runs unobserved, the prefix of the path of its operators, and the function."""
    if not hidden_callees(node):
        return
    found = []
    for attribute, value in sorted(node.attr.items()):
        names = [value.func.name] if value.func.name else [each.name for each in value.list.func]
        found += [(attribute, name) for name in names if not name.startswith(_OF_GENERATORS)]
    for number, (attribute, name) in enumerate(found):
        is_list = [each for each, _ in found].count(attribute) > 1
        yield (f"{attribute}_{number}/" if is_list else f"{attribute}/") if len(found) > 1 else "", name


def hidden_operators(
    functions: Iterable[tuple[str, str, Stack]], library: Library, stacks: Stacks
) -> Iterator[tuple[ProgramOperator, SkipReason]]:
    """The operators of functions that run unobserved, and of those that these run, each with the reason why it is skipped.

    For each function the prefix of its operators' names, its own name, and the program lines for operators without any are given.
    """
    waiting = [(path, name, stack, frozenset[str]()) for path, name, stack in functions]
    while waiting:
        path, name, stack, around = waiting.pop(0)
        definition = None if name in around else definition_in(name, library)
        if definition is None:
            continue
        traced = stacks.of_function(name)
        for node in definition.node_def:
            own, shown = stack_of_node(node.name, traced, stack), f"{path}{node.name}"
            called = callees_of(node)
            is_handle = are_handles(outputs_of(node, library) or ())
            reason: SkipReason = "control flow" if called else "handle" if is_handle else "not observed"
            yield ProgramOperator(shown, node.op, node, own, (), (), is_pure=False), reason
            if not is_compiled(node):
                below = [(f"{each.label}/" if each.label else "", each.function) for each in called]
                below += hidden_functions(node)
                waiting += [(f"{shown}/{inner}", callee, own, around | {name}) for inner, callee in below]
