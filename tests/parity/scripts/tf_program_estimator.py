"""The answers, output and errors of an Estimator: TensorFlow's if it has one, otherwise the package's. Both must print the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from opdump.adapters.tensorflow.estimator import give_v1_names

give_v1_names()
v1 = tf.compat.v1
E = v1.estimator
folder = sys.argv[1]


def input_fn(mode: str, params: dict[str, Any], config: Any) -> Any:
    print("input_fn", mode, params, config.model_dir == folder)
    x = np.arange(40, dtype=np.float32).reshape(20, 2) / 40
    y = (x.sum(1) > 1).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat(3).batch(5)


def tensors_fn() -> Any:
    return {"x": tf.constant([[1.0, 2.0]])}, tf.constant([1])


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    weights = v1.get_variable("w", [2, 2], initializer=v1.constant_initializer(0.1))
    logits = tf.matmul(features["x"], weights)
    predictions = {"class": tf.argmax(logits, 1), "prob": tf.nn.softmax(logits)}
    if mode == E.ModeKeys.PREDICT:
        outputs = {"classify": E.export.PredictOutput(predictions)}
        return E.EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == E.ModeKeys.EVAL:
        accuracy = v1.metrics.accuracy(labels, predictions["class"])
        return E.EstimatorSpec(mode, loss=loss, eval_metric_ops={"accuracy": accuracy})
    optimizer = v1.train.GradientDescentOptimizer(params["rate"])
    train = optimizer.minimize(loss, global_step=v1.train.get_global_step())
    return E.EstimatorSpec(mode, loss=loss, train_op=train)


def told(what: Callable[[], Any]) -> None:
    try:
        answer = what()
    except Exception as error:  # noqa: BLE001  every refusal is printed
        answer = f"{type(error).__name__} {error}"
    text = type(answer).__name__ if isinstance(answer, E.Estimator) else str(answer)
    text = re.sub(r"np\.\w+\(([^()]*)\)|<function .*?>|0x[0-9a-f]+", r"\1", text.replace(folder, "DIR"))
    print("->", text)


class Listens(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc] # TensorFlow has no types here
    def after_save(self, session: Any, global_step_value: int) -> None:
        print("saved", global_step_value)


def not_a_number(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    step = v1.train.get_global_step()
    loss = v1.get_variable("w", [], initializer=v1.constant_initializer(float("nan"))) + 0.0
    return E.EstimatorSpec(mode, loss=loss, train_op=v1.assign_add(step, 1))


class PrintsLoss(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc] # TensorFlow has no types here
    def before_run(self, run_context: Any) -> Any:
        return E.SessionRunArgs(run_context.original_args.fetches[1])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        print("loss", run_values.results)


estimator = E.Estimator(
    model_fn, folder, params={"rate": 0.1}, config=E.RunConfig(save_checkpoints_steps=5, tf_random_seed=4)
)
print("first values")
told(lambda: estimator.evaluate(input_fn, steps=1))
told(lambda: next(estimator.predict(input_fn)))
told(estimator.get_variable_names)
print("training")
told(lambda: estimator.train(input_fn, hooks=[PrintsLoss()], saving_listeners=[Listens()]))
told(lambda: estimator.train(input_fn, max_steps=3))
told(lambda: estimator.train(input_fn, max_steps=14, hooks=[PrintsLoss()]))
told(lambda: estimator.train(tensors_fn, steps=1, hooks=[PrintsLoss()]))
told(lambda: sorted(path.name for path in Path(folder).iterdir() if "events" not in path.name))
print("evaluation and prediction")
told(lambda: estimator.evaluate(input_fn))
told(lambda: estimator.evaluate(input_fn, steps=2, name="x"))
told(lambda: estimator.evaluate(input_fn, checkpoint_path=f"{folder}/model.ckpt-5"))
told(lambda: next(estimator.predict(input_fn)))
told(lambda: next(estimator.predict(input_fn, yield_single_examples=False, predict_keys="class")))
told(lambda: len(list(estimator.predict(input_fn, predict_keys=["prob"]))))
told(
    lambda: (estimator.get_variable_names(), estimator.get_variable_value("w").tolist(), estimator.latest_checkpoint())
)
told(
    lambda: (
        estimator.params,
        estimator.model_dir,
        estimator.config.model_dir,
        estimator.eval_dir(),
        estimator.eval_dir("a"),
    )
)
told(
    lambda: E.Estimator(model_fn, f"{folder}/warm", params={"rate": 0.1}, warm_start_from=folder).train(
        tensors_fn, steps=1, hooks=[PrintsLoss()]
    )
)
print("both")
told(
    lambda: E.train_and_evaluate(
        estimator, E.TrainSpec(input_fn, max_steps=20), E.EvalSpec(input_fn, steps=1, throttle_secs=0)
    )
)
print("refusals")
told(lambda: next(estimator.predict(input_fn, predict_keys=["no"])))
told(lambda: estimator.train(input_fn, steps=0))
told(lambda: estimator.train(input_fn, steps=-1))
told(lambda: estimator.train(input_fn, max_steps=0))
told(lambda: estimator.train(input_fn, steps=1, max_steps=2))
told(lambda: estimator.evaluate(input_fn, steps=0))
told(lambda: estimator.evaluate(tensors_fn, checkpoint_path="/nowhere"))
told(lambda: estimator.get_variable_value("none"))
told(lambda: E.Estimator(None))
told(lambda: E.Estimator(lambda x: x))
told(lambda: E.Estimator(lambda features, other: features))
told(lambda: E.Estimator(lambda features: features, params={}))
told(lambda: E.Estimator(lambda features: features, config=3))
told(lambda: E.Estimator(lambda features: 1, model_dir="/tmp/a", config=E.RunConfig(model_dir="/tmp/b")))
told(lambda: E.Estimator(lambda features: 1).train(input_fn, steps=1))
told(lambda: E.Estimator(lambda features, labels: 1).train(input_fn, steps=1))
told(lambda: E.Estimator(lambda features, labels: 1).train(lambda: (1, 2, 3), steps=1))
told(lambda: estimator.train(3, steps=1))
told(lambda: estimator.train(input_fn, hooks=[3], steps=1))
told(lambda: estimator.train(input_fn, saving_listeners=[3], steps=1))
told(lambda: E.Estimator(not_a_number, params={}).train(input_fn, steps=2))
told(lambda: type("Other", (E.Estimator,), {"train": lambda self: self})(model_fn))
for settings in (
    {"mode": "train"},
    {"mode": "eval"},
    {"mode": "infer"},
    {"mode": "train", "loss": 1.0},
    {"mode": "train", "loss": [1.0, 2.0], "train_op": True},
    {"mode": "train", "loss": 1.0, "train_op": 3},
    {"mode": "eval", "loss": 1.0, "eval_metric_ops": 3},
    {"mode": "eval", "loss": 1.0, "eval_metric_ops": {"a": 3}},
):
    with tf.Graph().as_default():
        given = dict(settings)
        if "loss" in given:
            given["loss"] = tf.constant(given["loss"], name="loss")
        if given.get("train_op") is True:
            given["train_op"] = tf.no_op()
        told(lambda: E.EstimatorSpec(**given))  # noqa: B023  called at once
