"""Calls the functions of a program as an estimator does: `input_fn`, `model_fn`. Both say by the names of their arguments what they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.util import function_utils

from opdump.adapters.tensorflow.estimator.specs import EstimatorSpec

v1 = tf.compat.v1

_OF_MODEL_FN: Final = frozenset({"features", "labels", "mode", "params", "self", "config"})


@dataclass(frozen=True, slots=True)
class Inputs:
    """What an `input_fn` gave."""

    features: Any
    labels: Any
    hooks: tuple[Any, ...] = ()
    """Those that start an iterator."""


class _StartsIterator(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc] # TensorFlow has no types here
    """Runs the initialiser of an iterator once there is a session."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._initialiser: Any = None

    def begin(self) -> None:
        self._initialiser = self._iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._initialiser)


def arguments_of(function: Callable[..., Any]) -> frozenset[str]:
    """The names of the arguments that a function takes; none of those that a partial gave it. Raises TypeError for no function."""
    if not callable(function):
        raise TypeError(
            f"unsupported callable; found {function!r}, expected a function: give the function, not its result"
        )
    return frozenset(function_utils.fn_args(function))


def check_model_function(model_fn: Any, params: Any) -> None:
    """Raises ValueError where a `model_fn` does not take what it will be given."""
    if model_fn is None:
        raise ValueError("model_fn must be provided to Estimator.")
    arguments = arguments_of(model_fn)
    if "features" not in arguments:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    if params is not None and "params" not in arguments:
        raise ValueError(
            f"model_fn ({model_fn}) does not include params argument, but params ({params}) is passed to Estimator."
        )
    if unexpected := sorted(arguments - _OF_MODEL_FN):
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {unexpected}")


def call_input_function(input_fn: Any, mode: str, params: Mapping[str, Any], config: Any) -> Any:
    """What an `input_fn` gives, put onto the CPU, as TensorFlow's own does."""
    offered = {"mode": mode, "params": params, "config": config}
    arguments = arguments_of(input_fn)
    with tf.device("/cpu:0"):
        return input_fn(**{name: value for name, value in offered.items() if name in arguments})


def inputs_of(result: Any) -> Inputs:
    """Features and labels of what an `input_fn` gave: a Dataset, an iterator of it, or tensors.

    Raises ValueError for a list or tuple that is no pair.
    """
    hooks: tuple[Any, ...] = ()
    if isinstance(result, tf.compat.v2.data.Dataset):  # those of version 1 are such as well
        iterator = v1.data.make_initializable_iterator(result)
        hooks = (_StartsIterator(iterator),)
        result = iterator.get_next()
    elif hasattr(result, "get_next"):
        if getattr(result, "_initializer", None) is not None:
            hooks = (_StartsIterator(result),)
        result = result.get_next()
    if not isinstance(result, list | tuple):
        return Inputs(result, None, hooks)
    if len(result) != 2:
        raise ValueError("input_fn should return (features, labels) as a len 2 tuple.")
    return Inputs(result[0], result[1], hooks)


def call_model_function(
    model_fn: Callable[..., Any], features: Any, labels: Any, mode: str, params: Mapping[str, Any], config: Any
) -> EstimatorSpec:
    """The operators of a model for one mode. Raises ValueError for labels that `model_fn` does not take, and for what is no EstimatorSpec."""
    arguments = arguments_of(model_fn)
    given: dict[str, Any] = {}
    if "labels" in arguments:
        given["labels"] = labels
    elif labels is not None:
        raise ValueError("model_fn does not take labels, but input_fn returns labels.")
    offered = {"mode": mode, "params": params, "config": config}
    given |= {name: value for name, value in offered.items() if name in arguments}
    v1.logging.info("Calling model_fn.")
    spec = model_fn(features=features, **given)
    v1.logging.info("Done calling model_fn.")
    if not isinstance(spec, EstimatorSpec):
        raise ValueError("model_fn should return an EstimatorSpec.")
    return spec
