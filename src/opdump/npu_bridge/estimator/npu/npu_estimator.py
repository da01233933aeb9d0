"""`npu_bridge.estimator.npu.npu_estimator`: NPUEstimator, which needs TensorFlow and imports it on first access."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["NPUEstimator"]

if TYPE_CHECKING:
    NPUEstimator: Any


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    globals()[name] = made = getattr(importlib.import_module("opdump.adapters.tensorflow.npu_estimator"), name)
    return made
