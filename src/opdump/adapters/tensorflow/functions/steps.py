"""Counts the steps of each model, and detects when one ends.

A call of a traced function is a step of that function. Operators outside such functions, and functions whose gradient is computed
outside, belong to the steps of the eager program. Such a step ends when variables were updated and the next forward begins:

- at the return of an optimizer, or of a traced function that updates variables; if another optimizer is applied or a gradient is computed
  before the next forward, the ended step continues (`reopened`)
- at the next forward, if the program assigned to a variable for which it had requested a gradient

A forward begins with a `GradientTape`, and with a function that computes gradients itself. From the first `manual_step` on, only this ends
steps, and all models share them.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.capture import Capture, Model
from opdump.adapters.tensorflow.graphs.library import (
    BRANCHING,
    Definition,
    Library,
    callees_of,
    graph_name,
    producer,
    reachable,
)
from opdump.adapters.tensorflow.graphs.operator_kinds import is_of_gradient, is_update, writes_variable
from opdump.adapters.tensorflow.stacks import EAGER, replace_methods


class ProgramSteps:
    """The steps of one capture. `changed` is called when the eager program enters another step."""

    def __init__(self, capture: Capture, *, manual: bool, changed: Callable[[], object]) -> None:
        self._capture = capture
        self._manual = manual
        self._changed = changed
        self._first = capture.plan.initial_iteration
        self._eager = self._first
        self._calls: Counter[int] = Counter()
        self._executions: dict[int, tuple[int, Counter[str]]] = {}
        self._orders: dict[int, Iterator[int]] = {}
        self.when_forked: Callable[[], str] = str
        self._differentiated = False  # a gradient was requested
        self._asked: set[int] = set()  # variables for which gradients were requested since the last end
        self._by_hand = False  # one of these was assigned to since
        self._provisional = False  # the previous step has ended, and no forward has begun since
        self._reopened = False  # it continues
        self._applying = 0  # running optimizers
        self._here = threading.local()

    @property
    def step(self) -> int:
        """The step of the eager program, and thereby the program's iteration."""
        return self._eager

    def wants(self, step: int) -> bool:
        """Whether the operators of a step are observed: it is dumped, and the dump continues."""
        return self._capture.wants(step) and not self._capture.is_over

    def of(self, model: Model, *, within_eager: bool) -> int:
        """The step of a call of a function."""
        if self._manual or within_eager:
            return self._eager
        return self._first + self._calls[model.number]

    def order(self, step: int) -> Iterator[int]:
        """Numbers the operators of a step, for all models."""
        if step not in self._orders:
            self._orders[step] = itertools.count()
        return self._orders[step]

    def executions(self, model: Model, step: int) -> Counter[str]:
        """The number of executions of each operator of a model in a step, by name."""
        known = self._executions.get(model.number)
        if known is None or known[0] != step:
            known = self._executions[model.number] = (step, Counter())
        return known[1]

    def call_begins(self, part: StepPart) -> None:
        """A function is about to be called. Raises DumpComplete like `forward_begins`."""
        if part.differentiates:
            self.forward_begins()
        elif part.updates:
            self.optimizer_begins()

    def called(self, model: Model, step: int, part: StepPart, inputs: Sequence[Any], *, within_eager: bool) -> None:
        """A call of a function has ended. Raises DumpComplete if the last selected step ended and the program is to end with it."""
        if not (self._manual or within_eager):
            with self._capture.lock:
                self._calls[model.number] += 1
            self._capture.ended(model.names, step)
            if self._capture.wants(step):
                self._capture.end_step(step)
        if part.differentiates:
            self._asks(each._id for each in inputs if hasattr(each, "_id"))
        if part.updates:
            self.updated()
        elif part.assigned:
            self.assigned(inputs[number]._id for number in part.assigned)

    def forward_begins(self) -> None:
        """The program begins a computation whose gradients it will request. Raises DumpComplete if the step that ended before was the
        last selected one, and the program is to end with it.
        """
        if self._manual:
            return
        if self._by_hand or self._reopened:
            self._end_eager()
        self._confirm()

    @property
    def is_in_gradient(self) -> bool:
        """Whether this thread computes gradients eagerly."""
        return getattr(self._here, "gradients", 0) > 0

    @contextmanager
    def in_gradient(self) -> Iterator[None]:
        """The operators in the block compute gradients."""
        self._here.gradients = getattr(self._here, "gradients", 0) + 1
        try:
            yield
        finally:
            self._here.gradients -= 1

    def gradients_begin(self, variables: Iterable[int]) -> None:
        """Gradients are computed eagerly."""
        if self._provisional and not self._manual:
            self._reopen()
        self._asks(variables)

    def assigned(self, variables: Iterable[int]) -> None:
        """Variables were assigned to. A program that requests the gradient of a variable and assigns to it trains it."""
        if not self._applying and not self._asked.isdisjoint(variables):
            self._by_hand = True

    def optimizer_begins(self) -> None:
        """An optimizer is about to be applied eagerly. Raises DumpComplete like `forward_begins`."""
        if self._provisional and not self._manual:
            if self._differentiated:
                self._reopen()
            else:  # gradients computed by hand leave no other trace: every update counts
                self._confirm()

    def applies(self, *, begins: bool) -> None:
        """An optimizer is running between the two calls: its assignments are not manual ones."""
        self._applying += 1 if begins else -1

    def updated(self) -> None:
        """An optimizer has updated variables, which provisionally ends a step of the eager program."""
        if not self._manual:
            self._end_eager()
            self._provisional = True

    def manual_step(self) -> None:
        """End the step of all models, except one that has just ended. Raises DumpComplete if it was the last selected one."""
        ended = self._provisional
        if not self._manual:
            self._manual = True
            self._provisional = False
            self._eager = max([self._eager, *(self._first + calls - 1 for calls in self._calls.values())])
        if not ended:
            self._end_eager()
        self._capture.complete(self._eager - 1)

    def abandon(self) -> str:
        """Stop in a forked process: the capture belongs to its parent."""
        return self.when_forked()

    def close(self) -> None:
        """End the unfinished step of the eager program, so that it is written."""
        if self._capture.wants(self._eager):
            self._capture.recorder.end_step(self._eager)

    def _asks(self, variables: Iterable[int]) -> None:
        self._differentiated = True
        self._asked.update(variables)

    def _confirm(self) -> None:
        self._provisional = False
        self._capture.complete(self._eager - 1)

    def _reopen(self) -> None:
        self._eager -= 1
        self._provisional, self._reopened = False, True
        self._changed()

    def _end_eager(self) -> None:
        ended = self._eager
        self._eager += 1
        self._asked.clear()
        self._by_hand = self._reopened = False
        self._capture.ended((EAGER,), ended)
        self._orders.pop(ended - 1, None)
        self._changed()
        if self._capture.wants(ended):
            self._capture.recorder.end_step(ended)


# Finds the effect of traced functions on the steps of the program: whether they compute gradients, and which variables they update.

_OF_BACKWARD: Final = re.compile(r"^__\w*_backward_")
"""Names of functions that are gradients of others."""
# Metrics, generators and statistics of layers also count with these; an optimizer that uses them is detected when it is traced.
_COUNTERS: Final = frozenset({"AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True, slots=True)
class StepPart:
    """The effect of a call of a traced function on a step."""

    differentiates: bool
    """It computes gradients itself, so it is also a forward."""
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
            is_of_gradient(node.name) for each in definitions for node in each.node_def
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
    gradients = [node.name for node in definition.node_def if is_of_gradient(node.name)]
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


# Detects the eager actions that begin and end steps: tapes, gradients, manual assignments, optimizers.
#
# A training loop may use an optimizer, or update variables itself. For traced functions, their definition is examined (`TracedUpdates`).

# The base classes of optimizers in Keras 3, in Keras 2 (new and legacy), and in TensorFlow 1.
_OPTIMIZERS: Final = (
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    ("keras.src.optimizers.optimizer", "_BaseOptimizer", "apply_gradients"),
    ("keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    ("keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("tensorflow.python.training.optimizer", "Optimizer", "apply_gradients"),
)
_VARIABLES: Final = (resource_variable_ops.BaseResourceVariable, resource_variable_ops.ResourceVariable)
_ASSIGNING: Final = (
    *("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update"),
    *("scatter_nd_add", "scatter_nd_sub", "scatter_nd_update"),
)


@contextmanager
def eager_steps(steps: ProgramSteps, traced: Callable[[str, frozenset[str]], object]) -> Iterator[None]:
    """While the block runs, report tapes, gradients, assignments and optimizers of all threads to `steps`.

    `traced` is called when an optimizer was traced, with the name of the function and the names of the updates that the optimizer made in it.
    """
    closed = Event()  # code that replaced a method after opdump did may call opdump's for longer
    tape = tf.GradientTape

    def before(original: Callable[..., Any], told: Callable[..., object]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(own: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and not closed.is_set():
                told(*args, **kwargs)
            return original(own, *args, **kwargs)

        return method

    def assigning(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(own: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(own, *args, **kwargs)
            if tf.executing_eagerly() and not closed.is_set():
                steps.assigned(handles_of(own))
            return result

        return method

    def asked(target: Any, sources: Any, *_: Any, **__: Any) -> None:  # noqa: ARG001  the program may pass them by name
        steps.gradients_begin(number for source in tf.nest.flatten(sources) for number in handles_of(source))

    def differentiating(original: Callable[..., Any]) -> Callable[..., Any]:
        told = before(original, asked)

        @functools.wraps(original)
        def method(own: Any, *args: Any, **kwargs: Any) -> Any:
            with steps.in_gradient():
                return told(own, *args, **kwargs)

        return method

    with Replacements() as replacements:
        replace_methods(replacements, _OPTIMIZERS, _Applying(steps, traced, closed).around)
        replacements.replace(tape, "__enter__", before(tape.__enter__, steps.forward_begins))
        for name in ("gradient", "jacobian"):
            replacements.replace(tape, name, differentiating(getattr(tape, name)))
        for owner, name in itertools.product(_VARIABLES, _ASSIGNING):
            if name in vars(owner):
                replacements.replace(owner, name, assigning(getattr(owner, name)))
        try:
            yield
        finally:
            closed.set()


class _Applying:
    """Running optimizers, until `closed`; if optimizers wrap others, only the outermost counts."""

    def __init__(self, steps: ProgramSteps, traced: Callable[[str, frozenset[str]], object], closed: Event) -> None:
        self._steps = steps
        self._traced = traced
        self._closed = closed
        self._depth = 0

    def around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(*args: Any, **kwargs: Any) -> Any:
            if self._closed.is_set():
                return original(*args, **kwargs)
            self._depth += 1
            graph = None if tf.executing_eagerly() else ops.get_default_graph()
            before = 0 if graph is None or self._depth > 1 else len(graph.get_operations())
            self._steps.applies(begins=True)
            try:
                if self._depth == 1 and graph is None:
                    self._steps.optimizer_begins()
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
                self._steps.applies(begins=False)
            if self._depth > 0:
                return result
            if graph is None:
                self._steps.updated()
            else:
                made = graph.get_operations()[before:]
                updates = frozenset(each.name for each in made if writes_variable(each.type))
                if updates:
                    self._traced(str(getattr(graph, "name", "")), updates)
            return result

        return apply


def handles_of(variable: Any) -> list[int]:
    """An identity of a variable; for a replicated one, of its copies; empty for any other object."""
    if isinstance(variable, resource_variable_ops.BaseResourceVariable):
        handle = variable.handle
        return [handle._id] if hasattr(handle, "_id") else []
    copies = getattr(variable, "values", None)
    if isinstance(copies, tuple):
        return [number for copy in copies for number in handles_of(copy)]
    # Of Keras 3, and under mixed precision before.
    inner = getattr(variable, "_value", getattr(variable, "_variable", None))
    return [] if inner is None or inner is variable else handles_of(inner)
