"""`npu_bridge.estimator.npu.npu_config`: the configuration of an estimator.

NPURunConfig is a subclass of `tf.estimator.RunConfig`, from TensorFlow or from the package tensorflow-estimator. The class is therefore
created, and TensorFlow imported, on first access.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opdump.configs.tensorflow.run_config import PlainRunConfig
from opdump.npu_bridge.estimator.npu.dump_config import DumpConfig
from opdump.npu_bridge.estimator.npu.run_config import run_config_class

__all__ = ["DumpConfig", "NPURunConfig"]

if TYPE_CHECKING:
    NPURunConfig: Any


def __getattr__(name: str) -> Any:
    if name != "NPURunConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    base, new_session_config = _of_tensorflow()
    globals()[name] = made = run_config_class(base, new_session_config, __name__)
    return made


def _of_tensorflow() -> tuple[type, Callable[[], Any]]:
    """The base class of NPURunConfig, and a function that creates an empty ConfigProto, or returns None without TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return PlainRunConfig, lambda: None
    from opdump.adapters.tensorflow.estimator import config as estimator_config

    return estimator_config.run_config_base() or PlainRunConfig, estimator_config.new_session_config
