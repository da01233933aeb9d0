"""Trains with an evaluation now and then, in one process."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf

from opdump.adapters.tensorflow.estimator.own_estimator import Estimator, EstimatorExportError
from opdump.adapters.tensorflow.estimator.specs import EvalSpec, TrainSpec

v1 = tf.compat.v1


class _Evaluates(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc] # TensorFlow has no types here
    """Evaluates behind every checkpoint but the first, when enough time has passed since the last evaluation."""

    def __init__(self, estimator: Estimator, eval_spec: EvalSpec) -> None:
        self._estimator = estimator
        self._spec = eval_spec
        self._is_first = True
        self._evaluated_at: float | None = None
        self.result: dict[str, Any] | None = None

    def after_save(self, session: Any, global_step_value: int) -> bool | None:
        if self._is_first:
            self._is_first = False
            return None
        now = time.monotonic()
        if self._evaluated_at is not None and now - self._evaluated_at < self._spec.throttle_secs:
            v1.logging.info(
                "Skip the current checkpoint eval due to throttle secs (%s secs).", self._spec.throttle_secs
            )
            return None
        self._evaluated_at = now
        self.evaluate()
        return None

    def evaluate(self) -> None:
        """Evaluates the newest checkpoint."""
        spec = self._spec
        self.result = self._estimator.evaluate(spec.input_fn, steps=spec.steps, name=spec.name, hooks=spec.hooks)


def train_and_evaluate(estimator: Any, train_spec: Any, eval_spec: Any) -> tuple[dict[str, Any] | None, list[Any]]:
    """Trains up to `train_spec.max_steps`, evaluates in between and at the end; the last metrics, and no exported models.

    Raises TypeError for what is no Estimator, TrainSpec, EvalSpec; EstimatorExportError where exporters are given.
    """
    for name, value, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"`{name}` must have type `tf.estimator.{kind.__name__}`, given {type(value)}")
    if eval_spec.exporters:
        raise EstimatorExportError("eval_spec.exporters: this estimator cannot export models; take them out")
    config = estimator.config
    if not (config.save_checkpoints_steps or config.save_checkpoints_secs):
        raise ValueError(
            "train_and_evaluate evaluates checkpoints; set save_checkpoints_steps or save_checkpoints_secs in the RunConfig"
        )
    evaluates = _Evaluates(estimator, eval_spec)
    listeners = [*train_spec.saving_listeners, evaluates]
    v1.logging.info("Start train and evaluate loop.")
    estimator.train(
        train_spec.input_fn, hooks=train_spec.hooks, max_steps=train_spec.max_steps, saving_listeners=listeners
    )
    at_end = estimator.get_variable_value(v1.GraphKeys.GLOBAL_STEP)
    if evaluates.result is None or evaluates.result["global_step"] != at_end:
        evaluates.evaluate()
    return evaluates.result, []
