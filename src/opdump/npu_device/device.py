"""The device of a process: opened once, with the options of that time; dumped from `as_default` on."""

from __future__ import annotations

import functools
import os
import threading

from opdump.configs.tensorflow.plan import TrainingDump, training_dump_of_options
from opdump.npu_device.configs.npu_config import NpuConfig


@functools.cache
def global_options() -> NpuConfig:
    """The options of this process."""
    return NpuConfig()


class NpuDevice:
    """An open device, and what is dumped once it is the default."""

    def __init__(self, device_id: int, dump: TrainingDump) -> None:
        self.device_id = device_id
        self.dump = dump
        self._is_default = False

    def as_default(self) -> NpuDevice:
        """Dumps operators from here on, by the options at the time when the device was opened; a second call changes nothing."""
        from opdump.tensorflow import start

        if not self._is_default:
            start(self.dump)
            self._is_default = True
        return self


class _Devices:
    """The devices of this process: none, or one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.device: NpuDevice | None = None


@functools.cache
def opened() -> _Devices:
    """What this process has opened."""
    return _Devices()


def open_device(device_id: int | None = None) -> NpuDevice:
    """The device, with the options as they are now; where one is open already, that one.

    Without `device_id` ASCEND_DEVICE_ID and DEVICE_ID count, then 0.

    Raises TensorflowConfigError for options that cannot be used, and RuntimeError where another device is open.
    """
    process = opened()
    with process.lock:
        if process.device is None:
            texts = global_options().as_dict()
            if device_id is not None:
                texts["session_device_id"] = str(device_id)
            dump = training_dump_of_options(texts, environ=os.environ)
            process.device = NpuDevice(dump.device_id, dump)
        elif device_id not in (None, process.device.device_id):
            raise RuntimeError(
                f"Failed create npu instance on device {device_id} as existed instance on [{process.device.device_id}]; "
                f"open one device in a process"
            )
        return process.device
