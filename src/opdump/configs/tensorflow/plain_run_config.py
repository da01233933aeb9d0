"""A RunConfig for installations where neither TensorFlow nor tensorflow-estimator has one: stores its settings, without clusters.

Names and defaults are those of `tf.estimator.RunConfig`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

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
        raise ValueError(
            "found save_checkpoints_steps and save_checkpoints_secs, expected one of the two; take one out"
        )
