"""Puts names of TensorFlow 1 into the module `tensorflow`, for programs that were written for it.

A program for Ascend devices says `tf.ConfigProto`, `tf.Session`, `tf.train.AdamOptimizer`. There are two ways:

    give_v1_names()     what `tensorflow` lacks is taken from `tensorflow.compat.v1`; a name that it has keeps its meaning
    use_version_1()     names mean what they meant in TensorFlow 1, as under `import tensorflow.compat.v1 as tf`

The second is for programs that cannot have been written for TensorFlow 2: `tf.nn.dropout(x, 0.9)` keeps nine of ten there, and drops
them here. Both add `tf.estimator` where TensorFlow has none, and an error with a way out for what cannot be had.
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
"""Those in which TensorFlow 1 had more names; the others are one module in both."""
_ITERATORS: Final = ("make_one_shot_iterator", "make_initializable_iterator")


class GoneNameError(OpdumpError, AttributeError):
    """A name of TensorFlow 1 that this version of TensorFlow cannot serve."""


class _Gone:
    """Stands where a module of TensorFlow 1 was: who looks for a name in it is told the advice."""

    def __init__(self, name: str, advice: str) -> None:
        self.__name__ = name
        self._advice = advice

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise GoneNameError(f"{self.__name__}.{name} is not there: {self._advice}")


def give_v1_names() -> None:
    """Adds the names that TensorFlow lacks."""
    # `import tensorflow.compat.v1 as tf` makes another module than the `tf.compat.v1` that is there before, and puts it in its place.
    old: Any = importlib.import_module("tensorflow.compat.v1")
    gone = {"contrib": "it ended with TensorFlow 1; take the module out, or use its successor"}
    if not hasattr(old.layers, "dense"):  # of Keras 3
        gone["layers"] = (
            "it ended with Keras 2; pip install tf_keras, and set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported"
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
    """Names of the top level mean those of TensorFlow 1, and operators are put into a graph and run when a session runs them.

    Variables keep their resources: what reads them is then sure to see them before an update. Shapes, comparisons of tensors and control
    flow are those of TensorFlow 1. The modules of TensorFlow itself do not look at these names.
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
