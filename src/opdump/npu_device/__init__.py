"""The Python interface of the TensorFlow 2 adapter for Ascend devices, as far as a dump needs it, over stock TensorFlow.

    import opdump.npu_device                     # one line above; the script stays as it is

    import npu_device as npu
    npu.global_options().dump_config.enable_dump = True
    npu.global_options().dump_config.dump_path = "/tmp/dump"
    npu.open().as_default()

Importing it makes `import npu_device` give this package, unless there is another one of that name. It imports no TensorFlow.

See docs/tensorflow-config.md#npu_device.
"""

from __future__ import annotations

from typing import NoReturn

from opdump.interpreter.module_alias import add_alias, remove_alias
from opdump.npu_device.configs.npu_config import NpuConfig
from opdump.npu_device.device import NpuDevice, global_options
from opdump.npu_device.device import open_device as open  # noqa: A004  # npu.open is what the original calls it

__all__ = ["NpuConfig", "NpuDevice", "global_options", "install", "open", "uninstall"]

ALIAS = "npu_device"


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/tensorflow-config.md lists what it has")


def install() -> bool:
    """Makes `import npu_device` give this package; a second call changes nothing.

    False, with a warning, where there is another package npu_device: it is left as it is.
    """
    return add_alias(ALIAS, __name__)


def uninstall() -> None:
    """`import npu_device` gives no longer this package."""
    remove_alias(ALIAS, __name__)


install()
