"""What a script does with the drop-ins for npu_bridge and npu_device before it trains, under a real TensorFlow.

Prints the version of TensorFlow, and whether NPURunConfig is a real RunConfig.
"""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path

import opdump.npu_bridge
import opdump.npu_device

assert opdump.npu_bridge.install()
assert opdump.npu_device.install()

from npu_bridge import npu_init  # type: ignore[import-not-found]  # noqa: E402  # the alias, which exists now
from npu_bridge.estimator.npu.npu_config import DumpConfig  # type: ignore[import-not-found]  # noqa: E402  # the alias
from npu_device import global_options  # type: ignore[import-not-found]  # noqa: E402  # the alias

assert global_options is opdump.npu_device.global_options
assert "tensorflow" not in sys.modules

import tensorflow as tf  # noqa: E402  # after the check that it was not imported
from npu_bridge.npu_init import (  # type: ignore[import-not-found]  # noqa: E402  # the alias
    NpuEmptyHook,
    NPURunConfig,
    RewriterConfig,
    init_resource,
    npu_clear_session,
    npu_config_proto,
    npu_graph_options,
    npu_optimizer_options,
    npu_run_config_init,
    set_keras_session_npu_config,
    shutdown_resource,
)

from opdump.configs.tensorflow import (  # noqa: E402  # after TensorFlow
    parameter_values,
    parameters_of_run_config,
    training_dump_of,
)

v1 = tf.compat.v1
folder = Path(sys.argv[1])
OFF = v1.OptimizerOptions.OFF

# a RunConfig for estimators, if there are any
config = NPURunConfig(dump_config=DumpConfig(True, str(folder), "0|5"), model_dir="/tmp/m", save_checkpoints_steps=7)
assert isinstance(config, v1.estimator.RunConfig)
assert isinstance(config.session_config, v1.ConfigProto)
assert (config.save_checkpoints_steps, config.save_summary_steps, config.model_dir) == (7, 0, "/tmp/m")
assert config.is_chief
assert config.task_type == "worker"
other = config.replace(model_dir="/tmp/n")
assert type(other) is NPURunConfig
assert (other.model_dir, other._dump_config) != ("/tmp/m", None)
assert copy.deepcopy(config).save_checkpoints_steps == 7
assert pickle.loads(pickle.dumps(config)).save_checkpoints_steps == 7

# the entry of a ConfigProto, filled as the estimator does, then read back
given = v1.ConfigProto(inter_op_parallelism_threads=1)
proto = npu_config_proto(given)
assert proto is given
assert proto.inter_op_parallelism_threads == 1
rewriting = proto.graph_options.rewrite_options
assert (proto.allow_soft_placement, proto.log_device_placement) == (True, False)
assert rewriting.remapping == RewriterConfig.OFF == rewriting.memory_optimization
assert proto.graph_options.optimizer_options.global_jit_level == OFF
entry = rewriting.custom_optimizers[0]
assert entry.name == "NpuOptimizer"
for key, value in parameters_of_run_config(config).items():
    setattr(entry.parameter_map[key], str(value.kind), value.value)
rewriting.memory_optimization = RewriterConfig.DEFAULT_MEM_OPT
assert npu_config_proto(proto) is proto
assert len(rewriting.custom_optimizers) == 1
assert rewriting.memory_optimization == RewriterConfig.DEFAULT_MEM_OPT  # an existing entry is not changed
dump = training_dump_of(parameter_values(entry.parameter_map), environ={})
assert dump.plan is not None
assert (dump.plan.path, str(dump.plan.steps), dump.warnings) == (folder.resolve(), "0|5", ())
odd = v1.ConfigProto.FromString(proto.SerializeToString()).graph_options.rewrite_options.custom_optimizers[0]
odd.parameter_map["dump_mode"].i = 3  # a different field than the one that is read
_ = odd.parameter_map["looked_at"]  # creates an entry without a value
values = parameter_values(odd.parameter_map)
assert (values["dump_mode"].kind, values["looked_at"].kind) == ("i", None)
assert npu_config_proto("none").graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"
assert npu_graph_options().optimizer_options.global_jit_level == OFF
assert npu_optimizer_options().global_jit_level == OFF
options = v1.OptimizerOptions(opt_level=-1)
assert npu_optimizer_options(options) is options
assert options.opt_level == -1

# with a stock RunConfig, and without one
stock = v1.estimator.RunConfig(model_dir="/tmp/s")
made = npu_run_config_init(stock)
assert made is stock
assert made.session_config.graph_options.rewrite_options.custom_optimizers[0].name == "NpuOptimizer"

# sessions
npu_clear_session()
session = set_keras_session_npu_config(proto)
assert "enable_dump" in session._config.graph_options.rewrite_options.custom_optimizers[0].parameter_map
with tf.Graph().as_default():
    total = tf.reduce_sum(v1.placeholder(tf.float32, [3], name="x"))
    session, shutdown = init_resource()
    assert session.run(total, {"x:0": [1, 2, 3]}) == 6.0
    with v1.train.MonitoredTrainingSession(config=npu_config_proto(), hooks=[NpuEmptyHook()]) as monitored:
        assert monitored.run(total, {"x:0": [1, 2, 3]}) == 6.0
    shutdown_resource(session, shutdown)
assert npu_init.get_rank_id() == 0
print(tf.__version__)
