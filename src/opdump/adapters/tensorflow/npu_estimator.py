"""NPUEstimator: an Estimator whose sessions have the entry NpuOptimizer of its NPURunConfig.

It extends `tf.estimator.Estimator`, from TensorFlow itself or, from 2.16 on, from the package tensorflow-estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from opdump.adapters.tensorflow.estimator import OPTIMIZER, estimators, npu_optimizer_of
from opdump.configs.tensorflow import parameters_of_run_config
from opdump.errors import PackageMissingError


class _NoEstimator:
    """Replaces the base class if the package is missing: a program may import NPUEstimator without using it."""

    def __init__(self, **_given: Any) -> None:
        estimators()


try:
    _Estimator: Any = estimators().Estimator
except PackageMissingError:
    _Estimator = _NoEstimator


class NPUEstimator(_Estimator):  # type: ignore[misc] # what it extends is known when it is made, and has no types
    """An Estimator that dumps as the `dump_config` of its NPURunConfig requests.

    model_fn, model_dir, params, warm_start_from   as for an Estimator
    config           an NPURunConfig
    job_start_file   for several devices: no effect

    Raises ValueError if `config` is not an NPURunConfig, and PackageMissingError if TensorFlow has no estimators and their package is
    missing. An invalid DumpConfig is reported when training or evaluation begins.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        job_start_file: str = "",
        warm_start_from: Any = None,
    ) -> None:
        if not hasattr(config, "_dump_config"):
            raise ValueError(
                f"`config` must be provided with type `NPURunConfig`, found {type(config).__name__}; "
                "from npu_bridge.estimator.npu.npu_config import NPURunConfig"
            )
        asking = config.replace(session_config=session_config_of(config))
        super().__init__(
            model_fn=model_fn, model_dir=model_dir, config=asking, params=params, warm_start_from=warm_start_from
        )


def session_config_of(config: Any) -> Any:
    """A copy of the ConfigProto of an NPURunConfig, with the config's values in its entry NpuOptimizer.

    The values of an existing entry stay unless the config has a `dump_config`. Raises TypeError for values that a
    `parameter_map` cannot contain.
    """
    made = tf.compat.v1.ConfigProto()
    if config.session_config is not None:
        made.CopyFrom(config.session_config)
    entry = npu_optimizer_of(made)
    if entry is None:
        entry = made.graph_options.rewrite_options.custom_optimizers.add()
        entry.name = OPTIMIZER
    asks = config._dump_config is not None
    for key, value in parameters_of_run_config(config).items():
        if asks or key not in entry.parameter_map:
            assert value.kind is not None
            setattr(entry.parameter_map[key], value.kind, value.value)
    return made
