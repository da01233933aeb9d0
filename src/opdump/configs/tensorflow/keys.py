"""The keys of the `parameter_map` of an NpuOptimizer, and what to say about one that is none of them.

See docs/tensorflow-config.md#keys; the keys that have nothing to do with a dump are those of the adapter's public reference of
session configurations.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from opdump.configs.tensorflow.values import Kind

DUMP_KEYS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "use_off_line": "b",
        "enable_dump": "b",
        "enable_dump_debug": "b",
        "dump_path": "s",
        "dump_step": "s",
        "dump_mode": "s",
        "dump_debug_mode": "s",
        "dump_data": "s",
        "dump_layer": "s",
        "quant_dumpable": "s",
        "enable_exception_dump": "i",
        "session_device_id": "i",
        "iterations_per_loop": "i",
    }
)
"""Keys that a dump looks at, and the field that holds the value."""

_OTHERS: Final = """
HCCL_algorithm ac_parallel_enable aoe_config_file aoe_mode atomic_clean_policy auto_tune_mode autotune_tune_mode
buffer_optimize compile_dynamic_mode compress_weight_conf customize_dtypes debug_dir deterministic device_type
disable_reuse_memory distribute_config dynamic_dims dynamic_graph_execute_mode dynamic_input
dynamic_inputs_shape_range dynamic_node_type enable_compress_weight enable_data_pre_proc enable_profiling
enable_reduce_precision enable_scope_fusion_passes enable_small_channel es_cluster_config event_sync_timeout
execute_times experimental_accelerate_train_mode export_compile_stat external_weight frozen_variable
fusion_switch_file graph_compiler_cache_dir graph_exec_timeout graph_max_parallel_model_num graph_memory_max_size
graph_memory_optimize_config graph_run_mode graph_slice hccl_timeout hcom_multi_mode hcom_parallel horovod_mode
in_out_pair in_out_pair_flag input_batch_cpy input_fusion_size input_shape insert_op_file is_dynamic_input
is_tailing_optimization is_variable_memory_optimize_enable jit_compile job local_device_list local_rank_id
logical_device_cluster_deploy_mode logical_device_id lower_functional_ops memory_optimize_config min_group_size
mix_compile_mode model_deploy_config model_deploy_devicelist model_deploy_mode modify_mixlist oo_constant_folding
oo_level op_compiler_cache_dir op_compiler_cache_mode op_debug_config op_debug_level op_execute_timeout
op_precision_mode op_select_implmode op_tune_mode op_wait_timeout optimization_switch optypelist_for_implmode
precision_mode precision_mode_v2 profiling_options resource_config_path shape_generalization_mode soc_config
static_memory_policy stream_max_parallel_num stream_sync_timeout task_index topo_sorting_mode train_graph
variable_format_optimize variable_location variable_memory_max_size variable_placement variable_use_1g_huge_page
work_path
"""
_OTHER_KEYS: Final = frozenset(_OTHERS.split())
"""Keys of other parts of the adapter. Nothing is said of them."""


def unknown_tensorflow_keys(keys: Iterable[str], where: str) -> list[str]:
    """One sentence for each key that the adapter does not know, with the nearest key that it does."""
    return [
        f"{where}: unknown key {key!r} is ignored; " + (f'is "{near}" meant?' if near else f"a dump knows {_known()}")
        for key in keys
        if key not in DUMP_KEYS and key not in _OTHER_KEYS
        for near in (nearest_tensorflow_key(key),)
    ]


def nearest_tensorflow_key(key: str) -> str | None:
    """The key of a dump, or else any key, that `key` may be meant as; None where none is near."""
    for known in (DUMP_KEYS, _OTHER_KEYS):
        if near := difflib.get_close_matches(key.lower(), sorted(known), 1, 0.75):
            return near[0]
    return None


def _known() -> str:
    return ", ".join(DUMP_KEYS)
