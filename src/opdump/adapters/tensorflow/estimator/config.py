"""Creates and reads session configurations with an entry NpuOptimizer, and RunConfig, for the drop-in replacement of npu_bridge.

Stock TensorFlow accepts an entry of an unknown graph optimizer, and ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opdump.errors import FrameworkMissingError, PackageMissingError

try:
    import tensorflow as tf
except ImportError as error:
    raise FrameworkMissingError(
        f"the npu_bridge of opdump needs TensorFlow, which cannot be imported ({error}); pip install tensorflow"
    ) from error
from tensorflow.core.protobuf.config_pb2 import ConfigProto, GraphOptions, OptimizerOptions
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from opdump.adapters.tensorflow.estimator.v1_names import estimators

OPTIMIZER: Final = "NpuOptimizer"


def run_config_base() -> type | None:
    """`tf.estimator.RunConfig`; None if no estimators are installed."""
    try:
        found: type = estimators().RunConfig
    except PackageMissingError:
        return None
    return found


def new_session_config() -> Any:
    """An empty ConfigProto."""
    return ConfigProto()


def npu_optimizer_of(config: Any) -> Any:
    """The first entry NpuOptimizer of a ConfigProto; None if it has none."""
    entries = config.graph_options.rewrite_options.custom_optimizers
    return next((entry for entry in entries if entry.name == OPTIMIZER), None)


def parameter_map_of(config: Any) -> Mapping[str, Any] | None:
    """The `parameter_map` of a ConfigProto's entry NpuOptimizer, which its session requests. None without an entry or a ConfigProto."""
    entry = None if config is None else npu_optimizer_of(config)
    if entry is None:
        return None
    found: Mapping[str, Any] = entry.parameter_map
    return found


def with_npu_optimizer(config: Any = None) -> Any:
    """The ConfigProto, or a new one if the argument is not a ConfigProto, with an entry NpuOptimizer and the settings that it needs."""
    if not isinstance(config, ConfigProto):
        config = ConfigProto()
    rewriting = config.graph_options.rewrite_options
    if npu_optimizer_of(config) is None:
        rewriting.custom_optimizers.add().name = OPTIMIZER
        # As the adapter writes it; in this field its number means MANUAL.
        rewriting.memory_optimization = RewriterConfig.OFF
    config.allow_soft_placement = True
    config.log_device_placement = False
    rewriting.remapping = RewriterConfig.OFF
    without_jit_graph(config.graph_options)
    return config


def without_jit_graph(options: Any = None) -> Any:
    """The GraphOptions, or new ones if the argument is of another type, without just-in-time compilation."""
    if not isinstance(options, GraphOptions):
        options = GraphOptions()
    without_jit(options.optimizer_options)
    return options


def without_jit(options: Any = None) -> Any:
    """The OptimizerOptions, or new ones if the argument is of another type, without just-in-time compilation."""
    if not isinstance(options, OptimizerOptions):
        options = OptimizerOptions()
    options.global_jit_level = OptimizerOptions.OFF
    return options


def new_session(config: Any = None) -> Any:
    """A session of the default graph with an entry NpuOptimizer."""
    return tf.compat.v1.Session(config=with_npu_optimizer(config))


def keras_session(config: Any = None) -> Any:
    """The same, for use by the Keras of TensorFlow 1."""
    session = new_session(config)
    _keras_backend().set_session(session)
    return session


def clear_keras_session() -> None:
    """Clear the graph of the Keras of TensorFlow 1."""
    _keras_backend().clear_session()


def _keras_backend() -> Any:
    """The backend of the Keras within TensorFlow. Keras 3 (from 2.16 on) has no sessions."""
    from tensorflow.python.keras import backend

    return backend


class NpuEmptyHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc] # TensorFlow has no types here
    """A hook that does nothing."""
