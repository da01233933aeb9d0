"""Reads a definition from the function library: its operators, their slots, the functions that they call.

In a `FunctionDef`, the name of a tensor is `{argument}` if the caller provides it, and `{node}:{output argument}:{number}` if an operator
makes it; `^{node}` means "after". Source: TensorFlow's function.proto and op_def.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from opdump.adapters.tensorflow.nodes import Library, definition_in, functions_of, producer
from opdump.adapters.tensorflow.xla import is_compiled

Definition = Any
"""A FunctionDef."""

# Type of operator -> attribute that names a function which it runs -> prefix of the path of the function's operators.
_BRANCHES: Final = {"then_branch": "then", "else_branch": "else"}
_LOOP: Final = {"cond": "cond", "body": "body"}
_CHOICES: Final = {"branches": "branch"}
_CALL: Final = {"f": ""}
BODIES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        **dict.fromkeys(("If", "StatelessIf", "_If"), _BRANCHES),
        **dict.fromkeys(("While", "StatelessWhile", "_While"), _LOOP),
        **dict.fromkeys(("Case", "StatelessCase"), _CHOICES),
        **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), _CALL),
    }
)
BRANCHING: Final = frozenset({"If", "StatelessIf", "_If", "Case", "StatelessCase"})
LOOPS: Final = frozenset({"While", "StatelessWhile", "_While"})
CALLS: Final = frozenset({"PartitionedCall", "StatefulPartitionedCall"})

HANDLES: Final = frozenset({tf.resource.as_datatype_enum, tf.variant.as_datatype_enum})
"""Element types of variables, iterators and similar objects, which have no values."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor in a slot of an operator. `key` is its name, `dtype` the number of its element type; `source` the maker of an input, if known."""

    slot: int
    argument: str
    key: str
    dtype: int
    source: str = ""

    @property
    def is_handle(self) -> bool:
        return self.dtype in HANDLES

    @property
    def dtype_name(self) -> str:
        return str(tf.dtypes.as_dtype(self.dtype).name)


def are_handles(slots: Collection[Slot]) -> bool:
    """Whether there are slots, and all of them are variables, iterators and the like, without data."""
    return bool(slots) and all(slot.is_handle for slot in slots)


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that a node runs; `label` is for paths."""

    label: str
    function: str


def callees_of(node: Any) -> tuple[Callee, ...]:
    """The functions that a node runs itself. Those of data sets run elsewhere and are not included."""
    found = []
    for attribute, label in BODIES.get(node.op, {}).items():
        value = node.attr[attribute]
        if value.WhichOneof("value") == "func":
            found.append(Callee(label, value.func.name))
        else:
            found += [Callee(f"{label}_{place}", each.name) for place, each in enumerate(value.list.func)]
    if op_def_registry.get(node.op) is None:  # a function in place of a type
        found.append(Callee("", node.op))
    return tuple(found)


def is_call(op_type: str) -> bool:
    """Whether an operator of this type runs one function, once."""
    return op_type in CALLS or op_def_registry.get(op_type) is None


def hidden_callees(node: Any) -> bool:
    """Whether a node names functions that run unobserved: in the threads of a data set, on another machine."""
    return not callees_of(node) and bool(functions_of(node))


def reached(name: str, library: Library, *, into_compiled: bool = True) -> Iterable[Definition]:
    """The definition of a function, and those of all functions that it runs, each once; `into_compiled` includes those that XLA compiles."""
    definition = functools.cache(lambda each: definition_in(each, library))

    def called(current: str) -> Iterator[str]:
        found = definition(current)
        for node in () if found is None else found.node_def:
            if into_compiled or not is_compiled(node):
                yield from (callee.function for callee in callees_of(node))

    return (found for each in reachable([name], called) if (found := definition(each)) is not None)


def outputs_of(node: Any, library: Library) -> tuple[Slot, ...] | None:
    """The slots of a node's outputs; None if unknown."""
    op_def = _op_def(node, library)
    if op_def is None:
        return None
    slots: list[Slot] = []
    for argument, dtypes, is_list in _arguments(op_def.output_arg, op_def, node):
        for number, dtype in enumerate(dtypes):
            name = f"{argument}_{number}" if is_list else argument
            slots.append(Slot(len(slots), name, f"{node.name}:{argument}:{number}", dtype))
    return tuple(slots)


def input_names(node: Any, library: Library, count: int) -> list[str]:
    """The argument names of a node with this number of inputs; empty if unknown."""
    op_def = _op_def(node, library)
    names = [] if op_def is None else argument_names(op_def.input_arg, op_def, node)
    return names if len(names) == count else [""] * count


def argument_names(arguments: Sequence[Any], op_def: Any, node: Any) -> list[str]:
    """The names of some of a type's arguments, one for each tensor of a node; those of a list are numbered."""
    return [
        f"{argument}_{number}" if is_list else argument
        for argument, dtypes, is_list in _arguments(arguments, op_def, node)
        for number in range(len(dtypes))
    ]


def _op_def(node: Any, library: Library) -> Any:
    """The signature of a node's type, which may be a function."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        definition = definition_in(node.op, library)
        return None if definition is None else definition.signature
    return op_def


def _arguments(arguments: Sequence[Any], op_def: Any, node: Any) -> Iterable[tuple[str, Sequence[int], bool]]:
    for argument in arguments:
        if argument.type_list_attr:
            yield argument.name, list(_attribute(node, op_def, argument.type_list_attr).list.type), True
        else:
            dtype = argument.type or _attribute(node, op_def, argument.type_attr).type
            if argument.number_attr:
                yield argument.name, [dtype] * _attribute(node, op_def, argument.number_attr).i, True
            else:
                yield argument.name, [dtype], False


def _attribute(node: Any, op_def: Any, name: str) -> Any:
    if name in node.attr:
        return node.attr[name]
    return next(attribute.default_value for attribute in op_def.attr if attribute.name == name)


def needed_nodes(definition: Definition, read: Iterable[str]) -> frozenset[str]:
    """The nodes that the runtime keeps: those behind results that are read, and behind nodes that must run."""
    first = [producer(reference) for reference in read]
    first += [producer(definition.control_ret[name]) for name in definition.signature.control_output]
    inputs = {node.name: node.input for node in definition.node_def}
    found = reachable(first, lambda name: map(producer, inputs.get(name, ())))
    return frozenset(inputs.keys() & set(found))


# Traverses a graph, for any kind of nodes.

Node = TypeVar("Node", bound=Hashable)


def reachable(first: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """These nodes, and all reachable ones, each once."""
    waiting = list(first)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            yield node
            waiting += following(node)


def in_order(nodes: Iterable[Node], before: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """These nodes and their predecessors, each after its predecessors: in the given order where possible, and without cycles."""
    found: dict[Node, None] = {}
    opened: set[Node] = set()
    for first in nodes:
        waiting = [first]
        while waiting:
            node = waiting[-1]
            missing = () if node in opened else [each for each in before(node) if each not in found]
            opened.add(node)
            if missing:
                waiting += missing
            else:
                found[node] = None
                waiting.pop()
    return list(found)
