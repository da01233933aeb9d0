"""The version of TensorFlow that runs here."""

from __future__ import annotations

from typing import Final

import tensorflow as tf

from opdump.adapters.host import HostRuntime

FRAMEWORK: Final = "tensorflow"
FRAMEWORK_VERSION: Final = str(tf.__version__)


def device_target() -> str:
    """The kind of device on which operators run."""
    return "GPU" if tf.config.list_physical_devices("GPU") else "CPU"


def runtime() -> HostRuntime:
    """The runtime's description for a recording."""
    return HostRuntime(FRAMEWORK, FRAMEWORK_VERSION, device_target())
