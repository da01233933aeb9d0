"""Estimator for versions of TensorFlow that have none (from 2.16 on): train, evaluate, predict over monitored sessions.

A subset of `tf.estimator.Estimator` of 2.15, with its files, log lines and errors: one process, no distribution, no export. What it runs in
a session is what that one runs: a training step fetches `train_op` and `loss`, an evaluation step the updates of the metrics.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import tensorflow as tf
from tensorflow.python.training import evaluation

from opdump.adapters.tensorflow.estimator.calls import (
    Inputs,
    call_input_function,
    call_model_function,
    check_model_function,
    inputs_of,
)
from opdump.adapters.tensorflow.estimator.specs import EstimatorSpec, ModeKeys, WarmStartSettings, checked_hooks
from opdump.configs.tensorflow.plain_run_config import PlainRunConfig
from opdump.errors import OpdumpError

v1 = tf.compat.v1

_MEMBERS: Final = ("train", "evaluate", "predict")
"""What a subclass is not to replace: hooks and `model_fn` are the places for it."""


class EstimatorExportError(OpdumpError):
    """A model of an estimator was to be exported."""


class Estimator:
    """Trains, evaluates and uses the model that `model_fn` builds; its variables live in the checkpoints of `model_dir`.

    model_fn         takes `features`, and whichever it wants of `labels`, `mode`, `params`, `config`; gives an EstimatorSpec
    model_dir        a directory, made where there is none; of the config where it is None; a temporary one where that has none
    config           a RunConfig
    params           a dictionary for `model_fn` and `input_fn`
    warm_start_from  a checkpoint, or WarmStartSettings: first values of variables, where `model_dir` holds no checkpoint yet

    Raises ValueError for a `model_fn` that does not take what it is given, and for two different directories.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        replaced = [name for name in _MEMBERS if getattr(type(self), name) is not getattr(Estimator, name)]
        if replaced:
            raise ValueError(
                f"Subclasses of Estimator cannot override members of Estimator. {type(self)} does override {replaced}"
            )
        check_model_function(model_fn, params)
        self._config = _with_directory(config, model_dir)
        v1.logging.info("Using config: %s", vars(self._config))
        self._model_fn = model_fn
        self._params = copy.deepcopy(dict(params or {}))
        self._warm_start_from = warm_start_from

    @property
    def model_dir(self) -> str:
        """Where checkpoints and summaries are."""
        return str(self._config.model_dir)

    @property
    def config(self) -> Any:
        """A copy of the RunConfig."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> dict[str, Any]:
        """A copy of the parameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The function that builds the model, with parameters and config given to it."""

        def public_model_fn(features: Any, labels: Any, mode: str, config: Any = None) -> EstimatorSpec:
            return self._build(Inputs(features, labels), mode, config)

        return public_model_fn

    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint of `model_dir`; None where it has none."""
        found: str | None = tf.train.latest_checkpoint(self.model_dir)
        return found

    def get_variable_names(self) -> list[str]:
        """The names in the newest checkpoint. Raises ValueError where there is none."""
        return [name for name, _ in tf.train.list_variables(self._checkpoint())]

    def get_variable_value(self, name: str) -> Any:
        """An array out of the newest checkpoint. Raises ValueError where there is none, NotFoundError for an unknown name."""
        return tf.train.load_checkpoint(self._checkpoint()).get_tensor(name)

    def eval_dir(self, name: str | None = None) -> str:
        """Where the summaries of an evaluation go."""
        return str(Path(self.model_dir) / (f"eval_{name}" if name else "eval"))

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Estimator:
        """Trains for `steps` steps, or up to the global step `max_steps`, or to the end of the input; from the newest checkpoint on.

        Raises ValueError for numbers below 1 and for both of them, NanLossDuringTrainingError for a loss that is NaN.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        _check_number("steps", steps)
        _check_number("max_steps", max_steps)
        listeners = _checked_listeners(saving_listeners)
        given = list(checked_hooks(hooks))
        if max_steps is not None and self._global_step_of_checkpoint() >= max_steps:
            v1.logging.info("Skipping training since max_steps has already saved.")
            return self
        if steps is not None or max_steps is not None:
            given.append(v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps))
        with self._graph():
            inputs = self._inputs(input_fn, ModeKeys.TRAIN)
            spec = self._build(inputs, ModeKeys.TRAIN)
            self._warm_start()
            loss = self._run_training(spec, [*inputs.hooks, *given], listeners)
        v1.logging.info("Loss for final step: %s.", loss)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The metrics over `steps` batches, or over the whole input, with `loss` (its mean over batches) and `global_step`.

        Variables are those of `checkpoint_path`, or of the newest checkpoint; freshly initialised where there is none. The numbers also
        go to the summaries of `eval_dir(name)`. Raises ValueError for `steps` below 1 and for a checkpoint that is not there.
        """
        _check_number("steps", steps)
        given = list(checked_hooks(hooks))
        checkpoint = self._checkpoint_for("evaluate", checkpoint_path)
        with self._graph():
            inputs = self._inputs(input_fn, ModeKeys.EVAL)
            spec = self._build(inputs, ModeKeys.EVAL)
            metrics = dict(spec.eval_metric_ops)
            if "loss" in metrics:
                raise ValueError(
                    'Metric with name "loss" is not allowed, because Estimator already defines a default metric with that name.'
                )
            metrics["loss"] = v1.metrics.mean(spec.loss)
            values: dict[str, Any] = evaluation._evaluate_once(
                checkpoint,
                scaffold=spec.scaffold,
                eval_ops=tf.group(*(metric[1] for metric in metrics.values())),
                final_ops={name: metric[0] for name, metric in metrics.items()}
                | {"global_step": v1.train.get_global_step()},
                hooks=[*inputs.hooks, *given, *spec.evaluation_hooks, evaluation._StopAfterNEvalsHook(steps)],
                config=self._config.session_config,
            )
            _file_evaluation(self.eval_dir(name), values, checkpoint)
        return values

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """The predictions for one example after the other, or, without `yield_single_examples`, for one batch after the other.

        `predict_keys` chooses among predictions that are a dictionary. Runs as the results are asked for. Raises ValueError for a key
        that no prediction has, for a checkpoint that is not there, and for predictions whose batches have different lengths.
        """
        given = list(checked_hooks(hooks))
        checkpoint = self._checkpoint_for("predict", checkpoint_path)
        with self._graph():
            inputs = self._inputs(input_fn, ModeKeys.PREDICT)
            spec = self._build(Inputs(inputs.features, None), ModeKeys.PREDICT)
            predictions = _chosen(spec.predictions, predict_keys)
            creator = v1.train.ChiefSessionCreator(spec.scaffold, None, self._config.session_config, None, checkpoint)
            opened = v1.train.MonitoredSession(creator, [*inputs.hooks, *given, *spec.prediction_hooks])
        # Outside of the graph, which would stay the program's default while it looks at a result.
        with opened as session:
            while not session.should_stop():
                batch = session.run(predictions)
                if yield_single_examples:
                    yield from _examples(batch)
                else:
                    yield batch

    def export_saved_model(self, *_: Any, **__: Any) -> NoReturn:
        """Raises EstimatorExportError: exported models are none of a dump."""
        raise EstimatorExportError(
            "export_saved_model: this estimator cannot export models; restore the checkpoint "
            f"{self.latest_checkpoint()} in a tf.Module and type tf.saved_model.save, or export with TensorFlow 2.15"
        )

    export_savedmodel = experimental_export_all_saved_models = export_saved_model

    @contextmanager
    def _graph(self) -> Iterator[Any]:
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(self._config.tf_random_seed)
            yield graph

    def _inputs(self, input_fn: Any, mode: str) -> Inputs:
        v1.train.create_global_step()
        return inputs_of(call_input_function(input_fn, mode, self.params, self.config))

    def _build(self, inputs: Inputs, mode: str, config: Any = None) -> EstimatorSpec:
        config = self.config if config is None else config
        return call_model_function(self._model_fn, inputs.features, inputs.labels, mode, self.params, config)

    def _run_training(self, spec: EstimatorSpec, hooks: Sequence[Any], listeners: Sequence[Any]) -> Any:
        config = self._config
        if all(summary.op.name != "loss" for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)):
            v1.summary.scalar("loss", spec.loss)
        every = config.log_step_count_steps
        always: list[Any] = [v1.train.NanTensorHook(spec.loss)]
        if every is not None:
            always.append(
                v1.train.LoggingTensorHook(
                    {"loss": spec.loss, "step": v1.train.get_global_step()}, every_n_iter=every, at_end=False
                )
            )
        if spec.scaffold.saver is None and not v1.get_collection(v1.GraphKeys.SAVERS):
            v1.add_to_collection(
                v1.GraphKeys.SAVERS,
                v1.train.Saver(
                    sharded=True,
                    max_to_keep=config.keep_checkpoint_max,
                    keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
                    defer_build=True,
                    save_relative_paths=True,
                ),
            )
        chief = [*spec.training_chief_hooks, *self._savers(spec, [*spec.training_hooks, *hooks], listeners)]
        loss = None
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=self.model_dir,
            scaffold=spec.scaffold,
            hooks=[*always, *hooks, *spec.training_hooks],
            chief_only_hooks=chief,
            save_checkpoint_secs=0,
            save_summaries_steps=config.save_summary_steps,
            config=config.session_config,
            log_step_count_steps=every,
        ) as session:
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        return loss

    def _savers(self, spec: EstimatorSpec, hooks: Sequence[Any], listeners: Sequence[Any]) -> list[Any]:
        """The hook that saves, unless the program has one; listeners go to whichever there is."""
        config = self._config
        own = [hook for hook in hooks if isinstance(hook, v1.train.CheckpointSaverHook)]
        if own:
            own[0]._listeners.extend(listeners)
            return []
        if not (config.save_checkpoints_secs or config.save_checkpoints_steps):
            if listeners:
                raise ValueError(
                    "CheckpointSaverHook must be provided for saving_listeners: set save_checkpoints_steps or save_checkpoints_secs in the config"
                )
            return []
        return [
            v1.train.CheckpointSaverHook(
                self.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                listeners=listeners,
            )
        ]

    def _warm_start(self) -> None:
        source = self._warm_start_from
        if source is None or self.latest_checkpoint() is not None:
            return
        settings = source if isinstance(source, WarmStartSettings) else WarmStartSettings(source)
        v1.train.warm_start(*settings)

    def _checkpoint(self) -> str:
        found = self.latest_checkpoint()
        if found is None:
            raise ValueError(f"Could not find trained model in model_dir: {self.model_dir}; train first")
        return found

    def _checkpoint_for(self, purpose: str, path: str | None) -> str | None:
        if path is not None:
            if not v1.train.checkpoint_exists(path):
                raise ValueError(f"The passed save_path is not a valid checkpoint: {path}")
            return path
        found = self.latest_checkpoint()
        if found is None:
            v1.logging.info(
                "Could not find trained model in model_dir: %s, running initialization to %s.", self.model_dir, purpose
            )
        return found

    def _global_step_of_checkpoint(self) -> int:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            return 0
        try:
            return int(tf.train.load_checkpoint(checkpoint).get_tensor(v1.GraphKeys.GLOBAL_STEP))
        except tf.errors.NotFoundError:  # a checkpoint of another program
            return 0


def _with_directory(config: Any, model_dir: str | None) -> Any:
    """The config with the directory that counts."""
    if config is None:
        v1.logging.info("Using default config.")
        config = PlainRunConfig()
    elif not isinstance(config, PlainRunConfig):
        raise ValueError(f"config must be an instance of `RunConfig`, but provided {config}.")
    if config.train_distribute is not None or config.eval_distribute is not None:
        raise ValueError("train_distribute, eval_distribute: this estimator runs in one process; leave them out")
    if config.session_config is None:
        config = config.replace(session_config=v1.ConfigProto())
    if model_dir is None:
        model_dir = config.model_dir
    elif config.model_dir not in (None, str(model_dir)):
        raise ValueError(
            "`model_dir` are set both in constructor and `RunConfig`, but with different values. "
            f"In constructor: '{model_dir}', in `RunConfig`: '{config.model_dir}' "
        )
    if model_dir is None:
        model_dir = tempfile.mkdtemp()
        v1.logging.warning("Using temporary folder as model directory: %s", model_dir)
    return config.replace(model_dir=str(model_dir))


def _check_number(name: str, number: int | None) -> None:
    if number is not None and number <= 0:
        raise ValueError(f"Must specify {name} > 0, given: {number}")


def _checked_listeners(listeners: Sequence[Any] | None) -> list[Any]:
    found = list(listeners or ())
    for listener in found:
        if not isinstance(listener, v1.train.CheckpointSaverListener):
            raise TypeError(f"saving_listeners must be a list of CheckpointSaverListener, given: {listener}")
    return found


def _file_evaluation(directory: str, values: Mapping[str, Any], checkpoint: str | None) -> None:
    """Files the results for TensorBoard, and logs them. Results that are no numbers are left out of the file."""
    step = int(values["global_step"])
    v1.logging.info(
        "Saving dict for global step %d: %s",
        step,
        ", ".join(f"{name} = {value!s}" for name, value in sorted(values.items())),
    )
    summary = v1.Summary()
    for name, value in values.items():
        if name == "global_step":
            continue
        if np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            summary.value.add(tag=name, simple_value=float(value))
        else:
            v1.logging.warning("Skipping summary for %s, must be a float, np.float32, np.int64, np.int32 or int.", name)
    writer = v1.summary.FileWriter(directory)
    writer.add_summary(summary, step)
    writer.close()
    if checkpoint is not None:
        v1.logging.info("Saving 'checkpoint_path' summary for global step %d: %s", step, checkpoint)


def _chosen(predictions: Any, keys: str | Sequence[str] | None) -> Any:
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise ValueError("predict_keys argument is not valid in case of non-dict predictions.")
    wanted = [keys] if isinstance(keys, str) else list(keys)
    chosen = {key: value for key, value in predictions.items() if key in wanted}
    if not chosen:
        raise ValueError(f"Expected to run at least one output from {predictions.keys()}, provided {wanted}.")
    return chosen


def _examples(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, dict):
        yield from batch
        return
    lengths = {name: np.shape(value)[0] for name, value in batch.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"Batch length of predictions should be same; found {lengths}. Ask for batches: yield_single_examples=False"
        )
    for row in range(next(iter(lengths.values()))):
        yield {name: value[row] for name, value in batch.items()}
