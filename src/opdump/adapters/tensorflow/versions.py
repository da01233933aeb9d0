"""Which TensorFlow runs here."""

from __future__ import annotations

from typing import Final

import tensorflow as tf

FRAMEWORK: Final = "tensorflow"
FRAMEWORK_VERSION: Final = str(tf.__version__)


def device_target() -> str:
    """The kind of device that operators run on."""
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
