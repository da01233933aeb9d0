"""`tf.estimator`: TensorFlow's own up to 2.15; from 2.16 on, the package tensorflow-estimator, which contains the former module.

The package's last release imports three modules that TensorFlow has no longer: the export of its names, the coordinator of distributed
training, embeddings of TPUs. Replacements are provided; everything except these features works.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any, Final, NoReturn

import tensorflow as tf

from opdump.errors import OpdumpError, PackageMissingError


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
