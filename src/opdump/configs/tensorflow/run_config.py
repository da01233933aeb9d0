"""The configuration of an estimator: the values of its `parameter_map`, and a RunConfig for installations that have none.

>>> class Config:  # an NPURunConfig
...     enable_exception_dump = 2
>>> parameters_of_run_config(Config())["enable_dump"]
ParameterValue(kind='b', value=False)

Oddities of the adapter are reproduced (docs/tensorflow-config.md#npu_bridge). The list of graph optimizers that the adapter also
sets is left out: in stock TensorFlow it would change the results.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from opdump.configs.tensorflow.keys import ParameterValue

# Text settings by the attributes of an NPURunConfig; each is written if it is not None.
_TEXTS: Final = {
    "quant_dumpable": "quant_dumpable",
    "fusion_switch_file": "_fusion_switch_file",
    "op_debug_config": "_op_debug_config",
    "debug_dir": "_debug_dir",
}


def parameters_of_run_config(config: Any) -> dict[str, ParameterValue]:
    """The values by key. An attribute that `config` lacks has its default.

    Without a `dump_config`, both flags are written as False, and no other dump key. With one, flags are written unchanged, and
    texts if they are not None; `dump_debug_mode` is written if `dump_mode` is not None.

    Raises TypeError for a value that is not a text, and for a `dump_debug_mode` of None together with a `dump_mode`.
    """
    values = {
        "use_off_line": ParameterValue.of(True),
        "enable_exception_dump": ParameterValue.of(getattr(config, "enable_exception_dump", 2)),
        "iterations_per_loop": ParameterValue.of(getattr(config, "iterations_per_loop", 1)),
        "mix_compile_mode": ParameterValue.of(getattr(config, "mix_compile_mode", False)),
        "enable_data_pre_proc": ParameterValue.of(getattr(config, "enable_data_pre_proc", True)),
    }
    device_id = getattr(config, "_session_device_id", None)
    if device_id is not None:
        values["session_device_id"] = ParameterValue.of(device_id)
    for key, attribute in _TEXTS.items():
        if (text := getattr(config, attribute, None)) is not None:
            values[key] = _bytes_of(key, text)
    return values | _of_dump_config(getattr(config, "_dump_config", None))


def _of_dump_config(dump: Any) -> dict[str, ParameterValue]:
    if dump is None:
        return {"enable_dump": ParameterValue.of(False), "enable_dump_debug": ParameterValue.of(False)}
    values = {
        "enable_dump": _flag(dump._enable_dump),
        "enable_dump_debug": _flag(dump._enable_dump_debug),
    }
    texts = {
        "dump_path": dump._dump_path,
        "dump_step": dump._dump_step,
        "dump_mode": dump._dump_mode,
        "dump_data": dump.dump_data,
        "dump_layer": dump.dump_layer,
    }
    values |= {key: _bytes_of(key, text) for key, text in texts.items() if text is not None}
    if dump._dump_mode is not None:  # the adapter tests the other mode here
        values["dump_debug_mode"] = _bytes_of("dump_debug_mode", dump._dump_debug_mode)
    return values


def _flag(value: object) -> ParameterValue:
    """A valid value of a protobuf boolean field."""
    if not isinstance(value, int):
        raise TypeError(f"DumpConfig: found {value!r} for a flag, expected True or False")
    return ParameterValue.of(bool(value))


def _bytes_of(key: str, text: object) -> ParameterValue:
    if not isinstance(text, str | bytes):
        raise TypeError(f"{key}: Expected binary or unicode string, got {text!r}")
    return ParameterValue.of(text)


# A RunConfig for installations where neither TensorFlow nor tensorflow-estimator has one: stores its settings, without clusters.
#
# Names and defaults are those of `tf.estimator.RunConfig`.

_DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "model_dir": None,
        "tf_random_seed": None,
        "save_summary_steps": 100,
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "session_config": None,
        "keep_checkpoint_max": 5,
        "keep_checkpoint_every_n_hours": 10000,
        "log_step_count_steps": 100,
        "train_distribute": None,
        "device_fn": None,
        "protocol": None,
        "eval_distribute": None,
        "experimental_distribute": None,
        "experimental_max_worker_delay_secs": None,
        "session_creation_timeout_secs": 7200,
        "checkpoint_save_graph_def": True,
    }
)
# The values of a program that runs without a cluster.
_ALONE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "cluster_spec": None,
        "evaluation_master": "",
        "global_id_in_cluster": 0,
        "is_chief": True,
        "master": "",
        "num_ps_replicas": 0,
        "num_worker_replicas": 1,
        "service": None,
        "task_id": 0,
        "task_type": "worker",
    }
)


class PlainRunConfig:
    """Settings of a run, each a read-only property.

    Without `save_checkpoints_steps` and `save_checkpoints_secs`, a checkpoint is due every 600 seconds.
    """

    def __init__(self, model_dir: Any = None, **settings: Any) -> None:
        _check(settings)
        settings["model_dir"] = model_dir
        if settings.get("save_checkpoints_steps") is None and settings.get("save_checkpoints_secs") is None:
            settings["save_checkpoints_secs"] = 600
        for name, default in _DEFAULTS.items():
            self.__dict__[f"_{name}"] = settings.get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name in _ALONE:
            return _ALONE[name]
        if name in _DEFAULTS and f"_{name}" in self.__dict__:
            return self.__dict__[f"_{name}"]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _DEFAULTS or name in _ALONE:
            raise AttributeError(f"{name} cannot be assigned; make another one: config.replace({name}=...)")
        super().__setattr__(name, value)

    def replace(self, **settings: Any) -> PlainRunConfig:
        """A copy with other settings."""
        _check(settings)
        made = copy.copy(self)
        for name, value in settings.items():
            made.__dict__[f"_{name}"] = value
        return made


def _check(settings: Mapping[str, Any]) -> None:
    if unknown := [name for name in settings if name not in _DEFAULTS]:
        raise TypeError(f"RunConfig: found {', '.join(unknown)}, expected some of {', '.join(_DEFAULTS)}")
    if settings.get("save_checkpoints_steps") is not None and settings.get("save_checkpoints_secs") is not None:
        raise ValueError("found save_checkpoints_steps and save_checkpoints_secs, expected one of the two; remove one")
