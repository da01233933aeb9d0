"""Impossible dump configurations: the errors of a session and an Estimator, and that nothing ran before them.

tf_program_refused.py FOLDER     an existing directory
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import opdump.npu_bridge  # noqa: F401  provides npu_bridge, and intercepts sessions

import tensorflow.compat.v1 as tf  # isort: skip
from npu_bridge.estimator.npu.npu_config import (  # type: ignore[import-not-found]  # isort: skip  # the alias, which exists now
    DumpConfig,
    NPURunConfig,
)
from npu_bridge.estimator.npu.npu_estimator import NPUEstimator  # type: ignore[import-not-found]  # isort: skip  # the alias

folder = sys.argv[1]
CASES: dict[str, dict[str, Any]] = {
    "no path": {"enable_dump": True},
    "no directory": {"enable_dump": True, "dump_path": f"{folder}/none"},
    "mode": {"enable_dump": True, "dump_path": folder, "dump_mode": "both"},
    "steps": {"enable_dump": True, "dump_path": folder, "dump_step": "0|x"},
    "both": {"enable_dump": True, "enable_dump_debug": True, "dump_path": folder},
    "data": {"enable_dump": True, "dump_path": folder, "dump_data": "all"},
    "debug mode": {"enable_dump_debug": True, "dump_path": folder, "dump_debug_mode": "some"},
}


def ran() -> float:
    print("IT RAN")
    return 1.0


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    loss = tf.get_variable("w", []) + tf.py_func(ran, [], tf.float32)
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


for name, settings in CASES.items():
    config = tf.ConfigProto()
    optimizer = config.graph_options.rewrite_options.custom_optimizers.add()
    optimizer.name = "NpuOptimizer"
    for key, value in settings.items():
        if isinstance(value, bool):
            optimizer.parameter_map[key].b = value
        else:
            optimizer.parameter_map[key].s = tf.compat.as_bytes(value)
    try:
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            session.run(tf.py_func(ran, [], tf.float32))
    except Exception as error:  # noqa: BLE001  the message is the result
        print(f"{name} | session | {type(error).__name__} | {error}")
    run_config = NPURunConfig(dump_config=DumpConfig(**settings), model_dir=tempfile.mkdtemp(dir=folder))
    try:
        NPUEstimator(model_fn, config=run_config).train(lambda: (tf.constant(1.0), tf.constant(1.0)), steps=1)
    except Exception as error:  # noqa: BLE001  the message is the result
        print(f"{name} | Estimator | {type(error).__name__} | {error}")
try:
    NPUEstimator(model_fn, config=tf.estimator.RunConfig())
except ValueError as error:
    print(f"no NPURunConfig | Estimator | ValueError | {error}")
given = tf.ConfigProto()
entry = given.graph_options.rewrite_options.custom_optimizers.add()
entry.name = "NpuOptimizer"
entry.parameter_map["enable_dump"].b = True
before = given.SerializeToString(deterministic=True)
for told, dump_config in (("entry stays", None), ("entry replaced", DumpConfig(dump_step="3"))):
    estimator = NPUEstimator(model_fn, config=NPURunConfig(session_config=given, dump_config=dump_config))
    (made,) = estimator.config.session_config.graph_options.rewrite_options.custom_optimizers
    print(told, made.parameter_map["enable_dump"].b, made.parameter_map["dump_step"].s)
print("as it was", given.SerializeToString(deterministic=True) == before)
try:
    print(callable(tf.layers.dense))
except AttributeError as error:
    print("layers |", type(error).__name__, "|", error)
