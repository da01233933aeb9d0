"""`npu_bridge.npu_init`: the names that `from npu_bridge.npu_init import *` provides, as far as dumps need them.

Functions that add an entry NpuOptimizer to a configuration do so. Functions for several devices behave as on one device and return
their argument unchanged.

See docs/tensorflow-config.md#npu_bridge.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

from opdump.configs.tensorflow import PlainRunConfig
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
    """The ConfigProto, or a new one if the argument is not a ConfigProto, with an entry NpuOptimizer and the settings that it needs.

    An existing entry stays unchanged. A new one has no values: nothing is dumped until `enable_dump` is set in it.
    """
    return _adapter().with_npu_optimizer(config_proto)


def npu_graph_options(graph_options: Any = None) -> Any:
    """The GraphOptions, or new ones, without just-in-time compilation."""
    return _adapter().without_jit_graph(graph_options)


def npu_optimizer_options(optimizer_options: Any = None) -> Any:
    """The OptimizerOptions, or new ones, without just-in-time compilation."""
    return _adapter().without_jit(optimizer_options)


def npu_run_config_init(run_config: Any = None) -> Any:
    """The RunConfig, or a new one if the argument is not a RunConfig, with the session configuration of `npu_config_proto`."""
    base = _adapter().run_config_base()
    if not isinstance(run_config, (PlainRunConfig, *((base,) if base else ()))):
        run_config = (base or PlainRunConfig)()
    run_config.__dict__["_session_config"] = npu_config_proto(run_config.session_config)
    return run_config


def set_keras_session_npu_config(config: Any = None) -> Any:
    """Create a session with the configuration of `npu_config_proto`, which the Keras of TensorFlow 1 then uses."""
    return _adapter().keras_session(config)


def npu_clear_session(config: Any = None) -> None:
    """Clear the graph of the Keras of TensorFlow 1, and create a new session for it."""
    _adapter().clear_keras_session()
    set_keras_session_npu_config(config)


def init_resource(config: Any = None) -> tuple[Any, Any]:
    """Return a session with the configuration of `npu_config_proto`, and None instead of a shutdown operation."""
    return _adapter().new_session(config), None


def shutdown_resource(sess: Any, npu_shutdown: Any) -> None:
    """Do nothing, because there is no device to shut down. If the program has its own shutdown operation, run it."""
    if npu_shutdown is not None:
        sess.run(npu_shutdown)


def close_session(sess: Any) -> None:
    """Close the session."""
    sess.close()


def npu_callbacks_append(callbacks_list: Any = ()) -> list[Any]:
    """The list, or a new one if the argument is not a list. There is no other device to exchange variables with."""
    return callbacks_list if isinstance(callbacks_list, list) else []


def npu_hooks_append(hooks_list: Any = ()) -> list[Any]:
    """Like `npu_callbacks_append`."""
    return npu_callbacks_append(hooks_list)


def npu_tf_optimizer(opt: Any) -> Any:
    """The optimizer. There is no other device to exchange gradients with."""
    return opt


npu_keras_optimizer = npu_tf_optimizer
npu_distributed_optimizer_wrapper = npu_tf_optimizer


def get_rank_id() -> int:
    """The value of RANK_ID, 0 if it is not set."""
    return _rank("RANK_ID", 0)


def get_rank_size() -> int:
    """The value of RANK_SIZE, 1 if it is not set."""
    return _rank("RANK_SIZE", 1)


def get_local_rank_id() -> int:
    """Always 0: every process counts as the only one on its machine."""
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
    return importlib.import_module("opdump.adapters.tensorflow.estimator")
