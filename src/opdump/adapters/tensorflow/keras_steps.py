"""Notices when an optimizer has been applied, or traced: that ends a step of the eager program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import tensorflow as tf
from tensorflow.python.framework import ops

from opdump.adapters.tensorflow.model_names import imported_module
from opdump.adapters.tensorflow.operator_kinds import is_assignment, is_update

# Those of Keras 3, of Keras 2 and its older ones, and of TensorFlow 1.
_OPTIMIZERS: Final = (
    ("keras.src.optimizers.base_optimizer", "BaseOptimizer", "apply"),
    ("keras.src.optimizers.optimizer", "_BaseOptimizer", "apply_gradients"),
    ("keras.src.optimizers.optimizer", "Optimizer", "apply_gradients"),
    ("keras.src.optimizers.legacy.optimizer_v2", "OptimizerV2", "apply_gradients"),
    ("tensorflow.python.training.optimizer", "Optimizer", "apply_gradients"),
)


class OptimizerSteps(Protocol):
    """Is told of optimizers: `ProgramSteps`."""

    def applies(self, *, begins: bool) -> object: ...
    def optimizer_begins(self) -> object: ...
    def updated(self) -> object: ...


@contextmanager
def optimizer_steps(steps: OptimizerSteps, traced: Callable[[str, frozenset[str]], object]) -> Iterator[None]:
    """While open, `steps` are told where an optimizer is applied eagerly, once for optimizers that wrap others.

    `traced` is called where one was traced: with the name of the function, and those of the updates that the optimizer made in it.
    """
    depth = 0

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            depth += 1
            graph = None if tf.executing_eagerly() else ops.get_default_graph()
            before = 0 if graph is None or depth > 1 else len(graph.get_operations())
            steps.applies(begins=True)
            try:
                if depth == 1 and graph is None:
                    steps.optimizer_begins()
                result = original(*args, **kwargs)
            finally:
                depth -= 1
                steps.applies(begins=False)
            if depth > 0:
                return result
            if graph is None:
                steps.updated()
            else:
                made = graph.get_operations()[before:]
                updates = frozenset(each.name for each in made if is_update(each.type) or is_assignment(each.type))
                if updates:
                    traced(str(getattr(graph, "name", "")), updates)
            return result

        return apply

    with _replaced(_OPTIMIZERS, around):
        yield


@contextmanager
def _replaced(
    places: tuple[tuple[str, str, str], ...], around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    undo: list[tuple[Any, str, Any]] = []
    try:
        for module_name, class_name, method in places:
            owner = getattr(imported_module(module_name), class_name, None)
            original = vars(owner).get(method) if owner is not None else None
            if original is not None:
                undo.append((owner, method, original))
                setattr(owner, method, around(original))
        yield
    finally:
        for owner, method, original in reversed(undo):
            setattr(owner, method, original)
