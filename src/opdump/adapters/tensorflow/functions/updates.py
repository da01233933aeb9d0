"""Finds out what the program does for its steps: where a forward begins, of what gradients are asked, which variables are updated, and by whom.

A training loop may be written with an optimizer or by hand, at once or in traced functions. Of a traced function its definition tells; what
runs at once goes through methods of `GradientTape` and of variables.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.graphs.library import (
    BRANCHING,
    Definition,
    Library,
    callees_of,
    producer,
)
from opdump.adapters.tensorflow.operator_kinds import is_assignment, is_update

_GRADIENTS: Final = re.compile(r"(^|/)(gradient_tape|gradients)/")
"""Names of the operators that a function computes gradients with."""
_OF_BACKWARD: Final = re.compile(r"^__\w*_backward_")
"""Names of functions that are gradients of others."""
_TRACED: Final = re.compile(r"^__(inference|forward|backward)_|_\d+$")
# Metrics, generators and statistics of layers count with these too; an optimizer that uses them is seen when it is traced.
_COUNTERS: Final = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})
_VARIABLES: Final = (resource_variable_ops.BaseResourceVariable, resource_variable_ops.ResourceVariable)
_ASSIGNING: Final = (
    *("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update"),
    *("scatter_nd_add", "scatter_nd_sub", "scatter_nd_update"),
)


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
        name = _TRACED.sub("", definition.signature.name)
        names = {node.name for node in definition.node_def}
        if any(function == name and made <= names for function, made in self._of_optimizers):
            return True
        return any(is_update(node.op) and node.op not in _COUNTERS for node in definition.node_def)


def _applies_gradients(definition: Definition) -> bool:
    """Whether a variable is given what depends on a gradient that is computed beside it."""
    readers: dict[str, list[Any]] = {}
    for node in definition.node_def:
        for reference in node.input:
            if not reference.startswith("^"):
                readers.setdefault(producer(reference), []).append(node)
    waiting = [node.name for node in definition.node_def if _GRADIENTS.search(node.name)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for reader in readers.get(name, ()):
            if _assigns(reader):
                return True
            waiting.append(reader.name)
    return False


def _assigned(definition: Definition, library: Library, running: frozenset[str]) -> set[int]:
    """The numbers of the arguments that a function, or one that it runs, assigns to."""
    name = definition.signature.name
    places = {argument.name: number for number, argument in enumerate(definition.signature.input_arg)}
    found: set[int] = set()
    for node in definition.node_def:
        given = [producer(reference) for reference in node.input if not reference.startswith("^")]
        if _assigns(node):
            found |= {places[each] for each in given[:1] if each in places}
            continue
        given = given[1:] if node.op in BRANCHING else given
        for callee in callees_of(node):
            if callee.function not in running:
                inner = _assigned(library(callee.function), library, running | {name})
                found |= {places[given[number]] for number in inner if given[number] in places}
    return found


def _assigns(node: Any) -> bool:
    return is_assignment(node.op) or is_update(node.op)


class EagerSteps(Protocol):
    """Is told of what runs at once: `ProgramSteps`."""

    def forward_begins(self) -> object: ...
    def gradients_begin(self, variables: Iterable[int]) -> object: ...
    def assigned(self, variables: Iterable[int]) -> object: ...


@contextmanager
def hand_written_steps(steps: EagerSteps) -> Iterator[None]:
    """Tells of tapes, gradients and assignments while the block runs, in all threads."""
    replacements = Replacements()
    tape = tf.GradientTape

    def before(original: Callable[..., Any], told: Callable[..., object]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(own: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                told(*args, **kwargs)
            return original(own, *args, **kwargs)

        return method

    def assigning(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(own: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(own, *args, **kwargs)
            if tf.executing_eagerly():
                steps.assigned(handles_of(own))
            return result

        return method

    def asked(target: Any, sources: Any, *_: Any, **__: Any) -> None:  # noqa: ARG001  the program may name them
        steps.gradients_begin(number for source in tf.nest.flatten(sources) for number in handles_of(source))

    replacements.replace(tape, "__enter__", before(tape.__enter__, steps.forward_begins))
    for name in ("gradient", "jacobian"):
        replacements.replace(tape, name, before(getattr(tape, name), asked))
    for owner, name in itertools.product(_VARIABLES, _ASSIGNING):
        if name in vars(owner):
            replacements.replace(owner, name, assigning(getattr(owner, name)))
    try:
        yield
    finally:
        replacements.restore()


def handles_of(variable: Any) -> list[int]:
    """What tells a variable from others; of a replicated one, what tells its copies; nothing of what is no variable."""
    if isinstance(variable, resource_variable_ops.BaseResourceVariable):
        handle = variable.handle
        return [handle._id] if hasattr(handle, "_id") else []
    copies = getattr(variable, "values", None)
    if isinstance(copies, tuple):
        return [number for copy in copies for number in handles_of(copy)]
    inner = getattr(
        variable, "_value", getattr(variable, "_variable", None)
    )  # of Keras 3, and under mixed precision before
    return [] if inner is None or inner is variable else handles_of(inner)
