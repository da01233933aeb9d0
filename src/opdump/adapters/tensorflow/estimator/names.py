"""Gives `tf.estimator` to versions of TensorFlow that have none (from 2.16 on): what programs with a `model_fn` of their own use."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import numpy as np
import tensorflow as tf

from opdump.adapters.tensorflow.estimator import loops as estimator_loops
from opdump.adapters.tensorflow.estimator import own_estimator
from opdump.adapters.tensorflow.estimator import specs as estimator_specs
from opdump.configs.tensorflow.plain_run_config import PlainRunConfig
from opdump.errors import OpdumpError

v1 = tf.compat.v1

_HOOKS: Final = (
    *("CheckpointSaverHook", "CheckpointSaverListener", "FeedFnHook", "FinalOpsHook", "GlobalStepWaiterHook"),
    *("LoggingTensorHook", "NanLossDuringTrainingError", "NanTensorHook", "ProfilerHook", "SecondOrStepTimer"),
    *("SessionRunArgs", "SessionRunContext", "SessionRunHook", "SessionRunValues", "StepCounterHook"),
    *("StopAtStepHook", "SummarySaverHook", "VocabInfo"),
)
"""What `tf.estimator` shares with `tf.compat.v1.train`."""


class EstimatorNameError(OpdumpError, AttributeError):
    """A name of `tf.estimator` that opdump does not have."""


class ExportOutput:
    """What would be exported of a model; `model_fn`s name it in `export_outputs`, and nothing reads it here."""

    def __init__(self, outputs: Any = None, **other: Any) -> None:
        self.outputs = outputs
        self.__dict__.update(other)


class _Space(ModuleType):
    """A module that says of a name that it lacks what to use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise EstimatorNameError(
            f"{self.__name__}.{name} is not there: TensorFlow {tf.__version__} has no tf.estimator (the last is 2.15), and opdump's has "
            f"{', '.join(sorted(key for key in vars(self) if not key.startswith('_')))}; write a model_fn, or use TensorFlow 2.15"
        )


def has_estimators() -> bool:
    """Whether TensorFlow has estimators itself."""
    found = getattr(tf.compat.v1, "estimator", None)
    return found is not None and not isinstance(found, _Space)


def estimator_class() -> Any:
    """The class Estimator of this TensorFlow, or opdump's own."""
    return tf.compat.v1.estimator.Estimator if has_estimators() else own_estimator.Estimator


def estimator_space() -> ModuleType:
    """A module in the place of `tf.estimator`."""
    space = _Space("tf.estimator", __doc__)
    inputs = _Space("tf.estimator.inputs", "Functions that make an `input_fn`.")
    inputs.__dict__["numpy_input_fn"] = numpy_input_fn
    export = _Space("tf.estimator.export", "What would be exported of a model.")
    for name in ("ClassificationOutput", "EvalOutput", "PredictOutput", "RegressionOutput", "TrainOutput"):
        export.__dict__[name] = ExportOutput
    space.__dict__.update(
        Estimator=own_estimator.Estimator,
        EstimatorSpec=estimator_specs.EstimatorSpec,
        EvalSpec=estimator_specs.EvalSpec,
        ModeKeys=estimator_specs.ModeKeys,
        RunConfig=PlainRunConfig,
        TrainSpec=estimator_specs.TrainSpec,
        WarmStartSettings=estimator_specs.WarmStartSettings,
        train_and_evaluate=estimator_loops.train_and_evaluate,
        inputs=inputs,
        export=export,
        **{name: getattr(v1.train, name) for name in _HOOKS if hasattr(v1.train, name)},
    )
    return space


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,  # noqa: ARG001  of the original's queue; one order alone is given here
) -> Any:
    """An `input_fn` that gives arrays in batches: of `x`, an array or a dictionary of arrays, and of `y` where there is one.

    Batches cross the ends of epochs; `num_epochs` None repeats for ever. The order under `shuffle` is not that of the original.
    Raises TypeError for another `x`, ValueError for a missing `shuffle` and for different lengths.
    """
    if shuffle not in (True, False):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it as True for training); "
            f"got {shuffle}"
        )
    if not isinstance(x, dict | np.ndarray):
        raise TypeError(f"x must be a dict or array; got {type(x).__name__}")
    parts = [
        part
        for part in (*(x.values() if isinstance(x, dict) else [x]), *(y.values() if isinstance(y, dict) else [y]))
        if part is not None
    ]
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise ValueError(f"Length of tensors in x and y is mismatched: found {sorted(lengths)}, expected one length")

    def input_fn() -> Any:
        dataset = tf.compat.v2.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        if shuffle:
            dataset = dataset.shuffle(queue_capacity)
        return dataset.repeat(num_epochs).batch(batch_size)

    return input_fn
