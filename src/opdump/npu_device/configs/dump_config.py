"""`npu.global_options().dump_config`: what to dump."""

from __future__ import annotations

from types import MappingProxyType

from opdump.npu_device.configs.option_base import Option, OptionGroup

_FLAG = (True, False)


class NpuDumpConfig(OptionGroup):
    """Options of a dump. Options with a list of allowed values are checked on assignment, the others when the device is opened."""

    OPTIONS = MappingProxyType(
        {
            "enable_dump": Option(False, _FLAG),
            "dump_path": Option(),
            "dump_step": Option(),
            "dump_mode": Option("output", ("input", "output", "all")),
            "enable_dump_debug": Option(False, _FLAG),
            "dump_debug_mode": Option("all", ("aicore_overflow", "atomic_overflow", "all")),
            "dump_data": Option("tensor", ("tensor", "stats")),
            "dump_layer": Option(),
        }
    )
