"""`npu_bridge.estimator.npu.npu_config`: the configuration of an estimator.

NPURunConfig is a subclass of `tf.estimator.RunConfig`, from TensorFlow or from the package tensorflow-estimator. The class is therefore
created, and TensorFlow imported, on first access.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opdump.configs.tensorflow import PlainRunConfig

__all__ = ["DumpConfig", "NPURunConfig"]

if TYPE_CHECKING:
    NPURunConfig: Any


def __getattr__(name: str) -> Any:
    if name != "NPURunConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    base, new_session_config = _of_tensorflow()
    globals()[name] = made = run_config_class(base, new_session_config, __name__)
    return made


def _of_tensorflow() -> tuple[type, Callable[[], Any]]:
    """The base class of NPURunConfig, and a function that creates an empty ConfigProto, or returns None without TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        return PlainRunConfig, lambda: None
    from opdump.adapters.tensorflow import estimator

    return estimator.run_config_base() or PlainRunConfig, estimator.new_session_config


# The dump configuration of an estimator; docs/tensorflow-config.md#keys explains each parameter.


class DumpConfig:
    """What to dump: iterations, inputs or outputs, or operators that overflow.

    Like the original, it checks nothing; values are checked when a session is created.
    """

    def __init__(
        self,
        enable_dump: Any = False,
        dump_path: Any = None,
        dump_step: Any = None,
        dump_mode: Any = "output",
        enable_dump_debug: Any = False,
        dump_debug_mode: Any = "all",
        dump_data: Any = "tensor",
        dump_layer: Any = None,
    ) -> None:
        self._enable_dump = enable_dump
        self._dump_path = dump_path
        self._dump_step = dump_step
        self._dump_mode = dump_mode
        self._enable_dump_debug = enable_dump_debug
        self._dump_debug_mode = dump_debug_mode
        self.dump_data = dump_data
        self.dump_layer = dump_layer


# A RunConfig with the settings of the device. Settings of dumps and of a RunConfig have an effect, all others are kept unchanged
# (docs/tensorflow-config.md#npu_bridge).

_PARAMETERS: Final[Mapping[str, Any]] = {
    "iterations_per_loop": 1,
    "profiling_config": None,
    "model_dir": None,
    "tf_random_seed": None,
    "save_summary_steps": 0,
    "save_checkpoints_steps": None,
    "save_checkpoints_secs": None,
    "session_config": None,
    "keep_checkpoint_max": 5,
    "keep_checkpoint_every_n_hours": 10000,
    "log_step_count_steps": 100,
    "distribute": None,
    "enable_data_pre_proc": True,
    "precision_mode": None,
    "enable_reduce_precision": False,
    "variable_format_optimize": None,
    "mix_compile_mode": False,
    "hcom_parallel": True,
    "graph_memory_max_size": None,
    "variable_memory_max_size": None,
    "dump_config": None,
    "stream_max_parallel_num": None,
    "is_tailing_optimization": False,
    "horovod_mode": False,
    "graph_run_mode": 1,
    "op_debug_level": None,
    "enable_scope_fusion_passes": None,
    "enable_exception_dump": 2,
    "op_select_implmode": None,
    "optypelist_for_implmode": None,
    "dynamic_input_config": None,
    "aoe_mode": None,
    "work_path": None,
    "buffer_optimize": "l2_optimize",
    "enable_small_channel": 0,
    "fusion_switch_file": None,
    "enable_compress_weight": False,
    "compress_weight_conf": None,
    "op_compiler_cache_mode": None,
    "op_compiler_cache_dir": None,
    "debug_dir": None,
    "hcom_multi_mode": False,
    "dynamic_input": None,
    "dynamic_graph_execute_mode": "dynamic_execute",
    "dynamic_inputs_shape_range": None,
    "train_distribute": None,
    "eval_distribute": None,
    "local_rank_id": None,
    "local_device_list": None,
    "session_device_id": None,
    "distribute_config": None,
    "modify_mixlist": None,
    "op_precision_mode": None,
    "device_type": "default_device_type",
    "soc_config": None,
    "hccl_timeout": None,
    "op_wait_timeout": None,
    "op_execute_timeout": None,
    "HCCL_algorithm": None,
    "customize_dtypes": None,
    "op_debug_config": None,
    "memory_config": None,
    "experimental_config": None,
    "topo_sorting_mode": None,
    "aoe_config_file": None,
    "insert_op_file": None,
    "stream_sync_timeout": -1,
    "event_sync_timeout": -1,
    "external_weight": False,
    "es_cluster_config": None,
    "deterministic": 0,
    "frozen_variable": False,
    "variable_placement": "Device",
    "jit_compile": "auto",
    "precision_mode_v2": None,
    "quant_dumpable": None,
    "auto_tune_mode": None,  # in older versions
}
_SIGNATURE: Final = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in _PARAMETERS.items()
    ]
)
# Parameters of RunConfig itself.
_OF_RUN_CONFIG: Final = (
    "model_dir",
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "train_distribute",
    "eval_distribute",
)
# Attributes with the same name as their parameter; others have a leading underscore.
_PUBLIC: Final = frozenset(
    {
        "iterations_per_loop",
        "mix_compile_mode",
        "enable_data_pre_proc",
        "is_tailing_optimization",
        "variable_format_optimize",
        "horovod_mode",
        "graph_run_mode",
        "op_debug_level",
        "enable_scope_fusion_passes",
        "enable_exception_dump",
        "topo_sorting_mode",
        "aoe_config_file",
        "insert_op_file",
        "stream_sync_timeout",
        "event_sync_timeout",
        "es_cluster_config",
        "quant_dumpable",
    }
)


def run_config_class(base: type, new_session_config: Callable[[], Any], module: str) -> type:
    """The class NPURunConfig over `base`, a RunConfig. `module` is where pickle looks it up."""

    def initialise(self: Any, *args: Any, **keywords: Any) -> None:
        settings = _checked(*args, **keywords)
        for name, value in settings.items():
            if name not in _OF_RUN_CONFIG:
                setattr(self, name if name in _PUBLIC else f"_{name}", value)
        if settings["save_checkpoints_secs"] is None and settings["save_checkpoints_steps"] is None:
            settings["save_checkpoints_steps"] = 100
        if settings["session_config"] is None:
            settings["session_config"] = new_session_config()
        base.__init__(self, **{name: settings[name] for name in _OF_RUN_CONFIG})  # type: ignore[misc] # of that object

    body = {
        "__doc__": "A RunConfig with the settings of the device; those of a dump have an effect (docs/tensorflow-config.md).",
        "__init__": initialise,
        "__module__": module,
        "__signature__": _SIGNATURE,
    }
    return type("NPURunConfig", (base,), body)


def _checked(*args: Any, **keywords: Any) -> dict[str, Any]:
    """All settings by name. Raises TypeError for an unknown one, and the original's errors for invalid ones."""
    try:
        bound = _SIGNATURE.bind(*args, **keywords)
    except TypeError as error:
        raise TypeError(f"NPURunConfig: {error}") from error
    bound.apply_defaults()
    settings = dict(bound.arguments)
    _check_integer("iterations_per_loop", settings["iterations_per_loop"], 1)
    dump_config = settings["dump_config"]
    if dump_config is not None and not isinstance(dump_config, DumpConfig):
        raise ValueError("`dump_config` must be provided with type `DumpConfig`")
    _check_integer("enable_exception_dump", settings["enable_exception_dump"], 0)
    return settings


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be int, got {type(value)}")
    if value < least:
        raise ValueError(f"{name} must be {'positive' if least else 'nonnegative'}, got {value}")
