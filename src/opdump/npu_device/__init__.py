"""The Python interface of the TensorFlow 2 adapter for Ascend devices on stock TensorFlow, as far as dumps need it.

    import opdump.npu_device                     # one line above; the script stays unchanged

    import npu_device as npu
    npu.global_options().dump_config.enable_dump = True
    npu.global_options().dump_config.dump_path = "/tmp/dump"
    npu.open().as_default()

After the import, `import npu_device` imports this package, unless another one with this name exists. TensorFlow is not imported.

See docs/tensorflow-config.md#npu_device.
"""

from __future__ import annotations

from typing import NoReturn

from opdump.interpreter.imports import add_alias, remove_alias
from opdump.npu_device.configs.npu_config import NpuConfig
from opdump.npu_device.device import NpuDevice, global_options
from opdump.npu_device.device import open_device as open  # noqa: A004  # the original's name is npu.open

__all__ = ["NpuConfig", "NpuDevice", "global_options", "install", "open", "uninstall"]

ALIAS = "npu_device"


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/tensorflow-config.md lists what it has")


def install() -> bool:
    """Make `import npu_device` import this package. A second call has no effect.

    If another package npu_device exists, the function warns, changes nothing and returns False.
    """
    return add_alias(ALIAS, __name__)


def uninstall() -> None:
    """Undo the alias `npu_device`."""
    remove_alias(ALIAS, __name__)


install()
