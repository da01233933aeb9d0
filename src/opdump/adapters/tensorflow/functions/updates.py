"""Finds the effect of traced functions on the steps of the program: whether they compute gradients, and which variables they update."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opdump.adapters.tensorflow.effects import Library, producer
from opdump.adapters.tensorflow.function_names import graph_name
from opdump.adapters.tensorflow.graphs.library import BRANCHING, Definition, callees_of
from opdump.adapters.tensorflow.graphs.walks import reachable
from opdump.adapters.tensorflow.operator_kinds import is_update, writes_variable

_GRADIENTS: Final = re.compile(r"(^|/)(gradient_tape|gradients)/")
"""Names of the operators with which a function computes gradients."""
_OF_BACKWARD: Final = re.compile(r"^__\w*_backward_")
"""Names of functions that are gradients of others."""
# Metrics, generators and statistics of layers also count with these; an optimizer that uses them is detected when it is traced.
_COUNTERS: Final = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True, slots=True)
class StepPart:
    """The effect of a call of a traced function on a step."""

    differentiates: bool
    """It computes gradients itself, and so it is a forward, too."""
    updates: bool
    """It updates variables: by an optimizer, or by gradients that it computes."""
    assigned: tuple[int, ...]
    """Its variable arguments to which it assigns in another way."""


class TracedUpdates:
    """The effect of traced functions on the steps of the program."""

    def __init__(self) -> None:
        self._of_optimizers: set[tuple[str, frozenset[str]]] = set()
        """Names of functions, and of the updates that an optimizer made in them."""

    def optimizer_traced(self, function: str, operators: frozenset[str]) -> None:
        """An optimizer was traced within a function, and made these updates."""
        self._of_optimizers.add((function, operators))

    def part_of(self, definitions: Sequence[Definition], library: Library) -> StepPart:
        """The effect of a function, the first of these definitions; the others are functions that it runs."""
        root = definitions[0]
        differentiates = _OF_BACKWARD.match(root.signature.name) is None and any(
            _GRADIENTS.search(node.name) for each in definitions for node in each.node_def
        )
        updates = any(self._optimizer_updates(each) or _applies_gradients(each) for each in definitions)
        assigned = () if updates else tuple(sorted(_assigned(root, library, frozenset())))
        return StepPart(differentiates, updates, assigned)

    def _optimizer_updates(self, definition: Definition) -> bool:
        name = graph_name(definition.signature.name)
        names = {node.name for node in definition.node_def}
        is_known = any(function == name and made <= names for function, made in self._of_optimizers)
        return is_known or any(is_update(node.op) and node.op not in _COUNTERS for node in definition.node_def)


def _applies_gradients(definition: Definition) -> bool:
    """Whether a variable is assigned a value that depends on a gradient computed in the same function."""
    readers: dict[str, list[str]] = {}
    for node in definition.node_def:
        for reference in node.input:
            if not reference.startswith("^"):
                readers.setdefault(producer(reference), []).append(node.name)
    gradients = [node.name for node in definition.node_def if _GRADIENTS.search(node.name)]
    first = [reader for name in gradients for reader in readers.get(name, ())]
    behind = set(reachable(first, lambda name: readers.get(name, ())))
    return any(node.name in behind and writes_variable(node.op) for node in definition.node_def)


def _assigned(definition: Definition, library: Library, running: frozenset[str]) -> set[int]:
    """The numbers of the arguments to which a function, or one that it runs, assigns."""
    name = definition.signature.name
    places = {argument.name: number for number, argument in enumerate(definition.signature.input_arg)}
    found: set[int] = set()
    for node in definition.node_def:
        given = [producer(reference) for reference in node.input if not reference.startswith("^")]
        if writes_variable(node.op):
            found |= {places[each] for each in given[:1] if each in places}
            continue
        given = given[1:] if node.op in BRANCHING else given
        for callee in callees_of(node):
            if callee.function not in running:
                inner = _assigned(library(callee.function), library, running | {name})
                found |= {places[given[number]] for number in inner if given[number] in places}
    return found
