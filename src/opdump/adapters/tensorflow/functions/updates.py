"""Finds out what traced functions do for the steps of the program: whether they compute gradients, which variables they update."""

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
"""Names of the operators that a function computes gradients with."""
_OF_BACKWARD: Final = re.compile(r"^__\w*_backward_")
"""Names of functions that are gradients of others."""
# Metrics, generators and statistics of layers count with these too; an optimizer that uses them is seen when it is traced.
_COUNTERS: Final = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True, slots=True)
class StepPart:
    """What a call of a traced function is of a step."""

    differentiates: bool
    """It computes gradients, and so a forward, itself."""
    updates: bool
    """It updates variables: by an optimizer, or by gradients that it computes."""
    assigned: tuple[int, ...]
    """Its arguments that are variables which it gives a value otherwise."""


class TracedUpdates:
    """What traced functions do for the steps of the program."""

    def __init__(self) -> None:
        self._of_optimizers: set[tuple[str, frozenset[str]]] = set()
        """Names of functions, and of the updates that an optimizer made in them."""

    def optimizer_traced(self, function: str, operators: frozenset[str]) -> None:
        """An optimizer was traced within a function, and made these updates."""
        self._of_optimizers.add((function, operators))

    def part_of(self, definitions: Sequence[Definition], library: Library) -> StepPart:
        """What a function does: the first of these definitions; the others are what it runs."""
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
    """Whether a variable is given what depends on a gradient that is computed beside it."""
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
    """The numbers of the arguments that a function, or one that it runs, assigns to."""
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
