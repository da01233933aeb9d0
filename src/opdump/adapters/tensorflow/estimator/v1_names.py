"""Puts names of TensorFlow 1 into the module `tensorflow`, for programs that were written for it.

A program for Ascend devices says `tf.ConfigProto`, `tf.Session`, `tf.train.AdamOptimizer`. There are two ways:

    give_v1_names()     what `tensorflow` lacks is taken from `tensorflow.compat.v1`; a name that it has keeps its meaning
    use_version_1()     names mean what they meant in TensorFlow 1, as under `import tensorflow.compat.v1 as tf`

The second is for programs that cannot have been written for TensorFlow 2: `tf.nn.dropout(x, 0.9)` keeps nine of ten there, and drops
them here. Both add `tf.estimator` where TensorFlow has none, and an error with a way out for what went with Keras 3.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.data.ops.dataset_ops import DatasetV2

from opdump.adapters.tensorflow.estimator.names import estimators
from opdump.errors import OpdumpError, PackageMissingError

# Those in which TensorFlow 1 had more names; the others are one module in both.
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
_ITERATORS: Final = ("make_one_shot_iterator", "make_initializable_iterator")
# What is no name of an interface.
_OWN: Final = frozenset({"compat", "version"})
_LAYERS: Final = {
    "dense": "tf.matmul(x, tf.get_variable('kernel', [inputs, units])) + tf.get_variable('bias', [units])",
    "conv2d": "tf.nn.conv2d(x, tf.get_variable('kernel', [height, width, channels, filters]), strides, padding)",
    "max_pooling2d": "tf.nn.max_pool2d(x, size, strides, 'VALID')",
    "average_pooling2d": "tf.nn.avg_pool2d(x, size, strides, 'VALID')",
    "flatten": "tf.reshape(x, [-1, size])",
    "dropout": "tf.nn.dropout(x, rate=rate)",
    "batch_normalization": "tf.nn.fused_batch_norm(x, scale, offset, epsilon=1e-3)",
}
"""Functions of `tf.layers`, and what does the same."""


class GoneNameError(OpdumpError, AttributeError):
    """A name of TensorFlow 1 that this version of TensorFlow cannot serve."""


class _Gone:
    """Stands where a module of TensorFlow 1 was: who looks for a name in it is told the advice."""

    def __init__(self, name: str, advice: str, instead: dict[str, str] | None = None) -> None:
        self.__name__ = name
        self._advice = advice
        self._instead = instead or {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        own = f"write {self._instead[name]}, or " if name in self._instead else ""
        raise GoneNameError(f"{self.__name__}.{name} is not there in TensorFlow {tf.__version__}: {own}{self._advice}")


def give_v1_names() -> tuple[str, ...]:
    """Adds the names; returns those of the top level that were added."""
    # `import tensorflow.compat.v1 as tf` makes another module than the `tf.compat.v1` that is there before, and puts it in its place.
    old: Any = importlib.import_module("tensorflow.compat.v1")
    try:
        old.estimator = estimators()
    except PackageMissingError as error:
        old.estimator = _Gone("tf.estimator", str(error))
    added = _fill(tf, old)
    for name, value in _additions().items():
        if isinstance(value, _Gone):
            setattr(old, name, value)
        if isinstance(value, _Gone) or not hasattr(tf, name):
            setattr(tf, name, value)
            added.append(name)
    for name in _SPACES:
        own, other = getattr(tf, name, None), getattr(old, name, None)
        if own is not None and other is not None and own is not other:
            _fill(own, other)
    for name in _ITERATORS:
        if not hasattr(DatasetV2, name):
            setattr(DatasetV2, name, getattr(old.data, name))
    return tuple(sorted(added))


def use_version_1() -> None:
    """Names of the top level mean those of TensorFlow 1, and operators are put into a graph and run when a session runs them.

    Variables keep their resources: what reads them is then sure to see them before an update. Shapes, comparisons of tensors and control
    flow are those of TensorFlow 1. The modules of TensorFlow itself do not look at these names.
    """
    old = tf.compat.v1
    old.disable_eager_execution()
    old.disable_v2_tensorshape()
    old.disable_tensor_equality()
    old.disable_control_flow_v2()
    given = set(_additions())
    for name in dir(old):
        if name.startswith("_") or name in _OWN or name in given:
            continue
        value = getattr(old, name)
        if getattr(tf, name, None) is not value:
            setattr(tf, name, value)


def _additions() -> dict[str, Any]:
    """What `tensorflow.compat.v1` does not have either."""
    found: dict[str, Any] = {"RewriterConfig": RewriterConfig}
    found["contrib"] = _Gone(
        "tf.contrib", "tf.contrib ended with TensorFlow 1; take the module out, or use its successor"
    )
    if _layers_are_gone():
        found["layers"] = _Gone(
            "tf.layers",
            "pip install tf_keras and set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported",
            _LAYERS,
        )
    return found


def _layers_are_gone() -> bool:
    """Whether Keras 3 stands behind `tf.layers`, which then has no functions."""
    return not hasattr(tf.compat.v1.layers, "dense")


def _fill(own: ModuleType, old: Any) -> list[str]:
    added = []
    for name in dir(old):
        if not name.startswith("_") and name != "compat" and not hasattr(own, name):
            setattr(own, name, getattr(old, name))
            added.append(name)
    return added
