"""Adds names of TensorFlow 1 to the module `tensorflow`, for programs that were written for it.

A program for Ascend devices uses `tf.ConfigProto`, `tf.Session`, `tf.train.AdamOptimizer`. There are two ways:

    give_v1_names()     names that `tensorflow` lacks are taken from `tensorflow.compat.v1`; existing names keep their meaning
    use_version_1()     all names have their meaning in TensorFlow 1, as under `import tensorflow.compat.v1 as tf`

The second is for programs that cannot have been written for TensorFlow 2: `tf.nn.dropout(x, 0.9)` keeps nine of ten values in version 1,
and drops them in version 2. Both add `tf.estimator` if TensorFlow has none, and errors with a solution for names that cannot be provided.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, Final, NoReturn

from opdump.errors import FrameworkMissingError, OpdumpError, PackageMissingError

try:
    import tensorflow as tf
except ImportError as error:
    raise FrameworkMissingError(
        f"the npu_bridge of opdump needs TensorFlow, which cannot be imported ({error}); pip install tensorflow"
    ) from error
from tensorflow.core.protobuf.config_pb2 import ConfigProto, GraphOptions, OptimizerOptions
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.data.ops.dataset_ops import DatasetV2

_SPACES: Final = (
    "train",
    "losses",
    "metrics",
    "data",
    "summary",
    "random",
    "initializers",
    "nn",
    "io",
    "test",
    "estimator",
)
"""Modules in which TensorFlow 1 had more names; the others are the same module in both versions."""
_ITERATORS: Final = ("make_one_shot_iterator", "make_initializable_iterator")


class GoneNameError(OpdumpError, AttributeError):
    """A name of TensorFlow 1 that this version of TensorFlow does not support."""


class _Gone:
    """Replaces a module of TensorFlow 1: access to a name in it raises an error with the advice."""

    def __init__(self, name: str, advice: str) -> None:
        self.__name__ = name
        self._advice = advice

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise GoneNameError(f"{self.__name__}.{name} does not exist: {self._advice}")


def give_v1_names() -> None:
    """Add the names that TensorFlow lacks."""
    # `import tensorflow.compat.v1 as tf` creates another module than the existing `tf.compat.v1`, and replaces it.
    old: Any = importlib.import_module("tensorflow.compat.v1")
    gone = {"contrib": "it was removed with TensorFlow 1; do not use the module, or use its successor"}
    if not hasattr(old.layers, "dense"):  # from Keras 3
        gone["layers"] = (
            "it was removed with Keras 2; pip install tf_keras, and set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported"
        )
    try:
        old.estimator = estimators()
    except PackageMissingError as error:
        gone["estimator"] = str(error)
    for module in (tf, old):
        for name, advice in gone.items():
            setattr(module, name, _Gone(f"tf.{name}", advice))
    if not hasattr(tf, "RewriterConfig"):
        tf.RewriterConfig = RewriterConfig
    _fill(tf, old)
    for name in _SPACES:
        own, other = getattr(tf, name, None), getattr(old, name, None)
        if own is not None and other is not None and own is not other:
            _fill(own, other)
    for name in _ITERATORS:
        if not hasattr(DatasetV2, name):
            setattr(DatasetV2, name, getattr(old.data, name))


def use_version_1() -> None:
    """Give top-level names their meaning in TensorFlow 1: operators are added to a graph and run in a session.

    Variables remain resource variables, whose readers are guaranteed to see them before an update. Shapes, comparisons of tensors and control
    flow are those of TensorFlow 1. The modules of TensorFlow itself do not use these names.
    """
    old = tf.compat.v1
    old.disable_eager_execution()
    old.disable_v2_tensorshape()
    old.disable_tensor_equality()
    old.disable_control_flow_v2()
    for name in dir(old):
        if not name.startswith("_") and name not in ("compat", "version"):
            setattr(tf, name, getattr(old, name))


def _fill(own: ModuleType, old: Any) -> None:
    for name in dir(old):
        if not name.startswith("_") and name != "compat" and not hasattr(own, name):
            setattr(own, name, getattr(old, name))


# `tf.estimator`: TensorFlow's own up to 2.15; from 2.16 on, the package tensorflow-estimator, which contains the former module.
#
# The package's last release imports three modules that TensorFlow has no longer: the export of its names, the coordinator of distributed
# training, embeddings of TPUs. Replacements are provided; everything except these features works.


class EstimatorDistributionError(OpdumpError):
    """An estimator requests distribution, which this version of TensorFlow does not support."""


def estimators() -> Any:
    """The module that replaces `tf.compat.v1.estimator`. Raises PackageMissingError if there is none."""
    own = getattr(tf.compat.v1, "estimator", None)
    if isinstance(own, ModuleType):
        return own
    for name, members in _INSTEAD.items():
        sys.modules.setdefault(name, module_from_spec(ModuleSpec(name, None))).__dict__.update(members)
    try:
        return importlib.import_module("tensorflow_estimator._api.v1.estimator")
    except ImportError as error:
        raise PackageMissingError(
            f"TensorFlow {tf.__version__} has no tf.estimator (2.15 is the last version with it), and the package that replaces it cannot be imported "
            f"({error}); pip install --upgrade tensorflow-estimator"
        ) from error


def _refuse(_run_config: Any, _tf_config: Any) -> NoReturn:
    raise EstimatorDistributionError(
        f"RunConfig: found a distribution strategy, but TensorFlow {tf.__version__} does not distribute estimators (2.15 is the last version that does); "
        "remove train_distribute, eval_distribute and experimental_distribute"
    )


_EXPORTS: Final = {"estimator_export": lambda *_names, **_more: lambda exported: exported}
_DISTRIBUTES: Final = {"init_run_config": _refuse, "should_run_distribute_coordinator": lambda _config: False}
_INSTEAD: Final[Mapping[str, Mapping[str, Any]]] = {
    "tensorflow_estimator.python.estimator.estimator_export": _EXPORTS,
    "tensorflow.python.distribute.estimator_training": _DISTRIBUTES,
    "tensorflow_estimator._api.v1.estimator.tpu": {},
}
"""The replacements of modules, by their names."""


# Creates and reads session configurations with an entry NpuOptimizer, and RunConfig, for the drop-in replacement of npu_bridge.
#
# Stock TensorFlow accepts an entry of an unknown graph optimizer, and ignores it.

try:
    import tensorflow as tf
except ImportError as error:
    raise FrameworkMissingError(
        f"the npu_bridge of opdump needs TensorFlow, which cannot be imported ({error}); pip install tensorflow"
    ) from error


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
