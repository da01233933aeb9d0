"""`npu_bridge.npu_init`: what `from npu_bridge.npu_init import *` gives to a script, as far as a dump needs it.

Helpers that put an entry NpuOptimizer into a configuration do so; those of several devices answer as on one device, and leave
what they are given as it is.

See docs/tensorflow-config.md#npu_bridge.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

from opdump.configs.tensorflow.plain_run_config import PlainRunConfig
from opdump.npu_bridge.estimator.npu import npu_config, npu_estimator
from opdump.npu_bridge.estimator.npu.npu_config import DumpConfig

if TYPE_CHECKING:
    from types import ModuleType

    NPUEstimator: Any
    NPURunConfig: Any
    NpuEmptyHook: Any
    RewriterConfig: Any

__all__ = [
    "DumpConfig",
    "NPUEstimator",
    "NPURunConfig",
    "NpuEmptyHook",
    "RewriterConfig",
    "close_session",
    "get_local_rank_id",
    "get_npu_local_rank_id",
    "get_npu_rank_id",
    "get_npu_rank_size",
    "get_rank_id",
    "get_rank_size",
    "init_resource",
    "npu_callbacks_append",
    "npu_clear_session",
    "npu_config_proto",
    "npu_distributed_optimizer_wrapper",
    "npu_graph_options",
    "npu_hooks_append",
    "npu_keras_optimizer",
    "npu_optimizer_options",
    "npu_run_config_init",
    "npu_tf_optimizer",
    "set_keras_session_npu_config",
    "shutdown_resource",
]

_OF_ADAPTER: Final = ("NpuEmptyHook", "RewriterConfig")


def __getattr__(name: str) -> Any:
    """Names whose object needs TensorFlow."""
    if name in npu_config.__all__:
        return getattr(npu_config, name)
    if name in npu_estimator.__all__:
        return getattr(npu_estimator, name)
    if name in _OF_ADAPTER:
        return getattr(_adapter(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/tensorflow-config.md lists what it has")


def npu_config_proto(config_proto: Any = None) -> Any:
    """The ConfigProto, or a new one where it is none, with an entry NpuOptimizer and the settings that it needs.

    An entry that is there stays as it is. A new one has no values: nothing is dumped until `enable_dump` is set in it.
    """
    return _adapter().with_npu_optimizer(config_proto)


def npu_graph_options(graph_options: Any = None) -> Any:
    """The GraphOptions, or new ones, without just-in-time compilation."""
    return _adapter().without_jit_graph(graph_options)


def npu_optimizer_options(optimizer_options: Any = None) -> Any:
    """The OptimizerOptions, or new ones, without just-in-time compilation."""
    return _adapter().without_jit(optimizer_options)


def npu_run_config_init(run_config: Any = None) -> Any:
    """The RunConfig, or a new one where it is none, with the session configuration of `npu_config_proto`."""
    base = _adapter().run_config_base()
    if not isinstance(run_config, (PlainRunConfig, *((base,) if base else ()))):
        run_config = (base or PlainRunConfig)()
    run_config.__dict__["_session_config"] = npu_config_proto(run_config.session_config)
    return run_config


def set_keras_session_npu_config(config: Any = None) -> Any:
    """A session with the configuration of `npu_config_proto`, which the Keras of TensorFlow 1 uses from here on."""
    return _adapter().keras_session(config)


def npu_clear_session(config: Any = None) -> None:
    """Forgets the graph of the Keras of TensorFlow 1, and gives it a new session."""
    _adapter().clear_keras_session()
    set_keras_session_npu_config(config)


def init_resource(config: Any = None) -> tuple[Any, Any]:
    """A session with the configuration of `npu_config_proto`, and None where the original has the operation that ends it."""
    return _adapter().new_session(config), None


def shutdown_resource(sess: Any, npu_shutdown: Any) -> None:
    """Nothing: there is no device to give back. A shutdown operation that the program has itself is run."""
    if npu_shutdown is not None:
        sess.run(npu_shutdown)


def close_session(sess: Any) -> None:
    """Closes the session."""
    sess.close()


def npu_callbacks_append(callbacks_list: Any = ()) -> list[Any]:
    """The list itself, or a new one where it is none: there is no other device to send variables to."""
    return callbacks_list if isinstance(callbacks_list, list) else []


def npu_hooks_append(hooks_list: Any = ()) -> list[Any]:
    """As `npu_callbacks_append`."""
    return npu_callbacks_append(hooks_list)


def npu_tf_optimizer(opt: Any) -> Any:
    """The optimizer itself: there is no other device to exchange gradients with."""
    return opt


npu_keras_optimizer = npu_tf_optimizer
npu_distributed_optimizer_wrapper = npu_tf_optimizer


def get_rank_id() -> int:
    """The variable RANK_ID; 0 where it is not set."""
    return _rank("RANK_ID", 0)


def get_rank_size() -> int:
    """The variable RANK_SIZE; 1 where it is not set."""
    return _rank("RANK_SIZE", 1)


def get_local_rank_id() -> int:
    """0: every process counts as alone on its machine."""
    return 0


get_npu_rank_id = get_rank_id
get_npu_rank_size = get_rank_size
get_npu_local_rank_id = get_local_rank_id


def _rank(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    if text and not text.isdecimal():
        raise ValueError(f"{variable} is {text!r}, expected a number; set it to one, or unset it")
    return int(text) if text else default


def _adapter() -> ModuleType:
    return importlib.import_module("opdump.adapters.tensorflow.estimator.config")
