"""The keys of the `parameter_map` of an NpuOptimizer and their values, and the warnings about unknown ones.

A value is a message with one field for each kind, of which one is set. The adapter reads the field that it expects. If another
one is set it reads zero, the protobuf default, and so does opdump, with a warning.

See docs/tensorflow-config.md#keys; the keys unrelated to dumps are those of the adapter's public reference of session
configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from opdump.plan.unmatched_names import nearest

Kind = Literal["b", "i", "s", "f"]
_WRITTEN: Final[Mapping[Kind, str]] = {"b": "True", "i": "1", "s": 'tf.compat.as_bytes("...")', "f": "1.0"}


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """One value: `kind` is the field that is set, any field of AttrValue; None if none is."""

    kind: str | None
    value: Any = None

    @classmethod
    def of(cls, value: object) -> ParameterValue:
        """Convert a bool, an int, a float, a str or bytes. Raises TypeError for another type."""
        if isinstance(value, bool):
            return cls("b", value)
        if isinstance(value, int):
            return cls("i", value)
        if isinstance(value, float):
            return cls("f", value)
        if isinstance(value, str | bytes):
            return cls("s", value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
        raise TypeError(f"found a {type(value).__name__}, expected bool, int, float, str or bytes")


def parameter_values(parameter_map: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """The values of a protobuf `parameter_map`, with the field that is set in each."""
    found = {}
    for key, message in parameter_map.items():
        kind = message.WhichOneof("value")
        found[key] = ParameterValue(kind, None if kind is None else getattr(message, kind))
    return found


def read_flag(values: Mapping[str, ParameterValue], key: str, default: bool, warnings: list[str]) -> bool:
    """The field `b` of a key; `default` if the key is missing, False if another field is set."""
    return bool(_read(values, key, "b", default, False, warnings))


def read_number(values: Mapping[str, ParameterValue], key: str, default: int, warnings: list[str]) -> int:
    """The field `i` of a key; `default` if the key is missing, 0 if another field is set."""
    return int(_read(values, key, "i", default, 0, warnings))


def read_text(values: Mapping[str, ParameterValue], key: str, default: str | None, warnings: list[str]) -> str | None:
    """The field `s` of a key; `default` if the key is missing, the empty text if another field is set.

    Bytes that are not UTF-8 are decoded like Python decodes file names.
    """
    value = _read(values, key, "s", default, "", warnings)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _read(
    values: Mapping[str, ParameterValue], key: str, kind: Kind, default: Any, zero: Any, warnings: list[str]
) -> Any:
    if key not in values:
        return default
    if values[key].kind == kind:
        return values[key].value
    found = "without a value" if values[key].kind is None else f"as .{values[key].kind}"
    warnings.append(
        f'{key} is set {found} and read as .{kind}, which is {zero!r}; write parameter_map["{key}"].{kind} = {_WRITTEN[kind]}'
    )
    return zero


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
"""Keys of a dump, and the field with the value."""

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
"""Keys of other parts of the adapter, which cause no warning."""


def unknown_tensorflow_keys(keys: Iterable[str], where: str) -> list[str]:
    """One sentence for each key that the adapter does not know, with the nearest known one."""
    return [
        f"{where}: unknown key {key!r} is ignored; " + (f'is "{near}" meant?' if near else f"a dump knows {_known()}")
        for key in keys
        if key not in DUMP_KEYS and key not in _OTHER_KEYS
        for near in (nearest_tensorflow_key(key),)
    ]


def nearest_tensorflow_key(key: str) -> str | None:
    """The dump key or, failing that, any key that `key` may stand for; None if none is similar."""
    for known in (DUMP_KEYS, _OTHER_KEYS):
        if near := nearest(key, sorted(known), 1, alike=0.75):
            return near[0]
    return None


def _known() -> str:
    return ", ".join(DUMP_KEYS)
