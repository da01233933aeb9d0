"""The device of a process. It is opened once, with the options at that time, and dumps from `as_default` on."""

from __future__ import annotations

import functools
import os
import threading

from opdump.configs.tensorflow import TrainingDump, training_dump_of_options
from opdump.npu_device.configs.npu_config import NpuConfig


@functools.cache
def global_options() -> NpuConfig:
    """The options of this process."""
    return NpuConfig()


class NpuDevice:
    """An open device, and what it dumps once it is the default."""

    def __init__(self, device_id: int, dump: TrainingDump) -> None:
        self.device_id = device_id
        self.dump = dump
        self._is_default = False

    def as_default(self) -> NpuDevice:
        """Dump operators from now on, with the options at the time when the device was opened. A second call has no effect."""
        from opdump.tensorflow import start

        if not self._is_default:
            start(self.dump)
            self._is_default = True
        return self


class _Devices:
    """The devices of this process: none or one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.device: NpuDevice | None = None


@functools.cache
def opened() -> _Devices:
    """The device that this process opened."""
    return _Devices()


def open_device(device_id: int | None = None) -> NpuDevice:
    """Open the device with the current options, or return the one that is already open.

    Without `device_id`, ASCEND_DEVICE_ID is used, then DEVICE_ID, then 0.

    Raises TensorflowConfigError for invalid options, and RuntimeError if another device is open.
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
