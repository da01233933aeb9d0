"""`npu.global_options()`: options of the device. Only dump settings have an effect."""

from __future__ import annotations

from types import MappingProxyType

from opdump.npu_device.configs.dump_config import NpuDumpConfig
from opdump.npu_device.configs.option_base import AnyOptions, Option, OptionGroup

# Options without an effect in opdump, which are not checked.
_WITHOUT_EFFECT = """
customize_dtypes debug_dir deterministic enable_scope_fusion_passes enable_small_channel event_sync_timeout
external_weight graph_compiler_cache_dir graph_exec_timeout graph_memory_max_size graph_run_mode hcom_multi_mode
hcom_parallel is_tailing_optimization jit_compile modify_mixlist op_compiler_cache_dir op_compiler_cache_mode
op_precision_mode overflow_flag precision_mode precision_mode_v2 stream_max_parallel_num stream_sync_timeout
topo_sorting_mode variable_memory_max_size
"""
_DEPRECATED = "auto_tune_mode op_debug_level op_select_implmode optypelist_for_implmode variable_format_optimize"


class NpuConfig(OptionGroup):
    """All options."""

    OPTIONS = MappingProxyType(
        {
            "quant_dumpable": Option(None, ("0", "1")),
            "enable_exception_dump": Option(2, (0, 1, 2)),
            "op_debug_config": Option(),
            "fusion_switch_file": Option(),
            **{name: Option() for name in _WITHOUT_EFFECT.split()},
            **{name: Option(is_deprecated=True) for name in _DEPRECATED.split()},
        }
    )
    GROUPS = MappingProxyType(
        {
            "dump_config": NpuDumpConfig,
            "aoe_config": AnyOptions,
            "profiling_config": AnyOptions,
            "memory_config": AnyOptions,
            "experimental": AnyOptions,
        }
    )
