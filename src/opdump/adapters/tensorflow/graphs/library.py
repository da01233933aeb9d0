"""Reads a definition of the function library: its operators, their slots, the functions that they call.

In a `FunctionDef` a tensor is named `{argument}` where the caller gives it, `{node}:{output argument}:{number}` where an operator
makes it, and `^{node}` stands for "after". Source: TensorFlow's function.proto and op_def.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from opdump.adapters.tensorflow.xla import is_compiled
from opdump.records import SkipReason

Definition = Any
"""A FunctionDef."""
Library = Callable[[str], Definition]
"""The definition of a function by its name."""

# Type of operator -> attribute that names a function which it runs -> what stands in the path of the operators of that.
_BRANCHES: Final = {"then_branch": "then", "else_branch": "else"}
_LOOP: Final = {"cond": "cond", "body": "body"}
_CHOICES: Final = {"branches": "branch"}
_CALL: Final = {"f": ""}
_BODIES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
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
"""Element types of variables, iterators and the like, which have no elements."""


@dataclass(frozen=True, slots=True)
class NodeSlot:
    """A tensor in a slot of a node: `reference` is its name in the definition, `dtype` the number of its element type."""

    slot: int
    argument: str
    reference: str
    dtype: int


@dataclass(frozen=True, slots=True)
class Callee:
    """A function that a node runs: `attribute` names it, the one at `place` where that is a list; `label` is for paths."""

    attribute: str
    place: int
    label: str
    function: str


@dataclass(frozen=True, slots=True)
class LibraryNode:
    """A node of a definition. `known` is false where nothing says its slots: a custom operator of another process."""

    node: Any
    inputs: tuple[NodeSlot, ...]
    outputs: tuple[NodeSlot, ...]
    callees: tuple[Callee, ...]
    """None of a node that XLA compiles: that is one operator."""
    known: bool = True


@dataclass(frozen=True, slots=True)
class Body:
    """The nodes of a definition, each after those that it reads or waits for, as far as they were traced in another order."""

    definition: Definition
    nodes: tuple[LibraryNode, ...]
    needed: frozenset[str]
    """The names of those whose results are used, or that must run."""
    read: frozenset[str]
    """The tensors that those read, and the results that the caller uses."""


def body_of(definition: Definition, library: Library, used: Collection[int] | None = None) -> Body:
    """Reads a definition; `used` are the numbers of the results that the caller makes use of, None for all."""
    dtypes = {argument.name: argument.type for argument in definition.signature.input_arg}
    outputs = {}
    for node in definition.node_def:
        slots = outputs_of(node, library)
        outputs[node.name] = slots
        dtypes.update((slot.reference, slot.dtype) for slot in slots or ())
    nodes = []
    for node in definition.node_def:
        made = outputs[node.name]
        nodes.append(
            LibraryNode(
                node,
                _inputs(node, dtypes, library),
                made or (),
                () if is_compiled(node) else callees_of(node),
                known=made is not None,
            )
        )
    results = [argument.name for argument in definition.signature.output_arg]
    read = {definition.ret[name] for number, name in enumerate(results) if used is None or number in used}
    needed = _needed(definition, read)
    read.update(text for node in definition.node_def if node.name in needed for text in node.input)
    return Body(definition, tuple(_ordered(nodes)), needed, frozenset(read))


def _ordered(nodes: Sequence[LibraryNode]) -> list[LibraryNode]:
    named = {node.node.name: node for node in nodes}
    found: dict[str, LibraryNode] = {}
    for first in nodes:
        waiting = [first]
        while waiting:
            name = waiting[-1].node.name
            missing = () if name in found else [each for each in map(producer, waiting[-1].node.input) if each in named]
            behind = [named[each] for each in missing if each not in found]
            if behind:
                waiting += behind
            else:
                found.setdefault(name, waiting.pop())
    return list(found.values())


def callees_of(node: Any) -> tuple[Callee, ...]:
    """The functions that a node runs itself; those of datasets run elsewhere and are not among them."""
    found = []
    for attribute, label in _BODIES.get(node.op, {}).items():
        value = node.attr[attribute]
        if value.WhichOneof("value") == "func":
            found.append(Callee(attribute, 0, label, value.func.name))
        else:
            found += [
                Callee(attribute, place, f"{label}_{place}", each.name) for place, each in enumerate(value.list.func)
            ]
    return tuple(found)


def runs_functions(node: Any) -> bool:
    """Whether a node runs functions: one that it is named for, or some that it names."""
    return op_def_registry.get(node.op) is None or bool(callees_of(node))


def hidden_callees(node: Any) -> bool:
    """Whether a node names functions that run where nobody sees them: in the threads of a dataset, on another machine."""
    return not callees_of(node) and any(
        value.WhichOneof("value") == "func" or len(value.list.func) for value in node.attr.values()
    )


def reached(name: str, library: Library, *, into_compiled: bool = True) -> Iterable[Definition]:
    """The definition of a function, and those of all functions that it runs, each once; `into_compiled`: what XLA compiles too."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        definition = library(current)
        yield definition
        waiting += [
            callee.function
            for node in definition.node_def
            if into_compiled or not is_compiled(node)
            for callee in callees_of(node)
        ]


def draws_seeded_numbers(definitions: Iterable[Definition]) -> bool:
    """Whether an operator in these definitions draws random numbers from a state of its own that a seed determines.

    Such a state belongs to the operator of one function: a copy of the function would start from the beginning.
    """
    for definition in definitions:
        for node in definition.node_def:
            if "seed" in node.attr and "seed2" in node.attr and (node.attr["seed"].i or node.attr["seed2"].i):
                op_def = op_def_registry.get(node.op)
                if op_def is not None and op_def.is_stateful:
                    return True
    return False


def reason_of_handles(node: LibraryNode, *, wants_inputs: bool) -> SkipReason:
    """`handle` where a node gives handles alone, and nothing that it reads is wanted."""
    gives = bool(node.outputs) and all(slot.dtype in HANDLES for slot in node.outputs)
    reads = wants_inputs and any(slot.dtype not in HANDLES for slot in node.inputs)
    return "handle" if gives and not reads else ""


def producer(reference: str) -> str:
    """The node behind a reference; the name of the argument where the caller gives it."""
    return reference.removeprefix("^").partition(":")[0]


def outputs_of(node: Any, library: Library) -> tuple[NodeSlot, ...] | None:
    """The slots of what a node gives; None where nothing says them."""
    op_def = _op_def(node, library)
    if op_def is None:
        return None
    slots: list[NodeSlot] = []
    for argument, dtypes, is_list in _arguments(op_def.output_arg, op_def, node):
        for number, dtype in enumerate(dtypes):
            name = f"{argument}_{number}" if is_list else argument
            slots.append(NodeSlot(len(slots), name, f"{node.name}:{argument}:{number}", dtype))
    return tuple(slots)


def _inputs(node: Any, dtypes: Mapping[str, int], library: Library) -> tuple[NodeSlot, ...]:
    references = [text for text in node.input if not text.startswith("^")]
    op_def = _op_def(node, library)
    names: list[str] = []
    if op_def is not None:
        for argument, found, is_list in _arguments(op_def.input_arg, op_def, node):
            names += [f"{argument}_{number}" if is_list else argument for number in range(len(found))]
    if len(names) != len(references):
        names = [""] * len(references)
    return tuple(
        NodeSlot(slot, name, reference, dtypes.get(reference, dtypes.get(f"{reference}:0", 0)))
        for slot, (name, reference) in enumerate(zip(names, references, strict=True))
    )


def _op_def(node: Any, library: Library) -> Any:
    """The signature of a node's type; a function may stand in the place of a type."""
    op_def = op_def_registry.get(node.op)
    if op_def is not None:
        return op_def
    try:
        return library(node.op).signature
    except Exception:  # noqa: BLE001  the runtime's NotFoundError: neither a type nor a function
        return None


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


def _needed(definition: Definition, read: Iterable[str]) -> frozenset[str]:
    """What the runtime keeps: what is behind the results that are read, and behind what must run."""
    waiting = [producer(reference) for reference in read]
    waiting += [producer(definition.control_ret[name]) for name in definition.signature.control_output]
    named = {node.name: node for node in definition.node_def}
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in found or name not in named:
            continue
        found.add(name)
        waiting += [producer(reference) for reference in named[name].input]
    return frozenset(found)
