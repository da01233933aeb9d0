"""Detects the eager actions that begin and end steps: tapes, gradients, manual assignments, optimizers.

A training loop may use an optimizer, or update variables itself. For traced functions, their definition is examined (`updates.py`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from opdump.adapters.replacements import Replacements
from opdump.adapters.tensorflow.functions.steps import ProgramSteps
from opdump.adapters.tensorflow.model_names import replace_methods
from opdump.adapters.tensorflow.operator_kinds import writes_variable

# Those of Keras 3, of Keras 2 and its older ones, and of TensorFlow 1.
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

    with Replacements() as replacements:
        replace_methods(replacements, _OPTIMIZERS, _Applying(steps, traced, closed).around)
        replacements.replace(tape, "__enter__", before(tape.__enter__, steps.forward_begins))
        for name in ("gradient", "jacobian"):
            replacements.replace(tape, name, before(getattr(tape, name), asked))
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
