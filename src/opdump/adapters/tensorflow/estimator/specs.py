"""What the parts of an estimator's program say to each other: EstimatorSpec, TrainSpec, EvalSpec, ModeKeys.

Names, order and defaults of the fields, and the checks, are those of `tf.estimator` up to TensorFlow 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

v1 = tf.compat.v1


class ModeKeys:
    """What a model is built for."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class _SpecFields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Any
    export_outputs: Any
    training_chief_hooks: Any
    training_hooks: Any
    scaffold: Any
    evaluation_hooks: Any
    prediction_hooks: Any


class EstimatorSpec(_SpecFields):
    """What a `model_fn` gives: operators and hooks for one mode.

    TRAIN needs `loss` and `train_op`, EVAL `loss`, PREDICT `predictions`. A loss holds one element.

    Raises ValueError for what is missing, and for tensors of another graph; TypeError for what is no tensor, metric or hook.
    """

    __slots__ = ()

    def __new__(  # noqa: PYI034  typing has Self from Python 3.11 on
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Mapping[str, Any] | None = None,
        training_chief_hooks: Sequence[Any] | None = None,
        training_hooks: Sequence[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Sequence[Any] | None = None,
        prediction_hooks: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        if train_op is None and mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op.")
        if loss is None and mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        if predictions is None and mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions.")
        if train_op is not None and not isinstance(train_op, (tf.Operation, tf.Tensor, tf.Variable)):
            raise TypeError(f"train_op must be Operation or Tensor, given: {train_op}")
        metrics = _checked_metrics(eval_metric_ops)
        predicted = {} if predictions is None else predictions
        for name, tensor in predicted.items() if isinstance(predicted, dict) else [("predictions", predicted)]:
            if not tf.is_tensor(tensor):
                raise TypeError(f"predictions[{name!r}] must be Tensor, given: {tensor}")
        if scaffold is not None and not isinstance(scaffold, v1.train.Scaffold):
            raise TypeError(f"scaffold must be tf.train.Scaffold, given: {scaffold}")
        return super().__new__(
            cls,
            mode=mode,
            predictions=predicted,
            loss=_checked_loss(loss),
            train_op=train_op,
            eval_metric_ops=metrics,
            export_outputs=export_outputs,
            training_chief_hooks=checked_hooks(training_chief_hooks),
            training_hooks=checked_hooks(training_hooks),
            scaffold=scaffold or v1.train.Scaffold(),
            evaluation_hooks=checked_hooks(evaluation_hooks),
            prediction_hooks=checked_hooks(prediction_hooks),
        )


def checked_hooks(hooks: Sequence[Any] | None) -> tuple[Any, ...]:
    """The hooks. Raises TypeError for what is none."""
    found = tuple(hooks or ())
    for hook in found:
        if not isinstance(hook, v1.train.SessionRunHook):
            raise TypeError(f"Hooks must be a SessionRunHook, given: {hook}")
    return found


def _checked_loss(loss: Any) -> Any:
    if loss is None:
        return None
    tensor = tf.convert_to_tensor(loss)
    if tensor.shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {tensor}")
    return tensor if tensor.shape.rank in (None, 0) else tf.reshape(tensor, [])


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise TypeError(f"eval_metric_ops must be a dict, given: {metrics}")
    for name, value in metrics.items():
        if hasattr(value, "update_state"):
            raise TypeError(
                f"eval_metric_ops[{name!r}]: found the metric {type(value).__name__} of Keras, which has no place in a graph from "
                "Keras 3 on; take one of tf.compat.v1.metrics"
            )
        if not isinstance(value, tuple) or len(value) != 2:
            raise TypeError(
                f"Values of eval_metric_ops must be (metric_value, update_op) tuples, given: {value} for key: {name}"
            )
    return metrics


class TrainSpec(NamedTuple):
    """How `train_and_evaluate` trains: up to the step `max_steps`, or to the end of the input where that is None."""

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Sequence[Any] = ()
    saving_listeners: Sequence[Any] = ()


class EvalSpec(NamedTuple):
    """How `train_and_evaluate` evaluates: `steps` batches, every `throttle_secs` seconds at most."""

    input_fn: Callable[..., Any]
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Any] = ()
    exporters: Any = None
    start_delay_secs: float = 120
    throttle_secs: float = 600


class WarmStartSettings(NamedTuple):
    """From which checkpoint which variables get their first values."""

    ckpt_to_initialize_from: str
    vars_to_warm_start: Any = ".*"
    var_name_to_vocab_info: Any = None
    var_name_to_prev_var_name: Any = None
