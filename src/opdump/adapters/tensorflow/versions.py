"""Says which TensorFlow runs here."""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from opdump.adapters.host.reader import HostRuntime

FRAMEWORK: Final = "tensorflow"
FRAMEWORK_VERSION: Final = str(tf.__version__)


def device_target() -> str:
    """The kind of device that operators run on."""
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def runtime() -> HostRuntime:
    """The runtime as a recording asks for it."""
    return HostRuntime(FRAMEWORK, FRAMEWORK_VERSION, device_target())
