"""Programs on two devices, in one process and in two: each operator is recorded with its device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import opdump
from tests.tensorflow.functions.recording import recorded

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
LOOPS = 2
WORKER = """
import json, os, sys
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
task = strategy.cluster_resolver.task_id
with strategy.scope():
    weight = tf.Variable([[0.1, 0.2], [0.3, 0.4]])

@tf.function
def train(x):
    def replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(x @ weight))
        gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weight))
        weight.assign_sub(0.1 * gradient)
        return loss
    return strategy.run(replica, args=(x,))

for _ in range(2):
    train(tf.ones([2, 2]) * (1.0 + task))
with open(f"weight-{task}.json", "w") as file:
    json.dump(weight.numpy().tolist(), file)
"""


@pytest.fixture(scope="module")
def strategy() -> Any:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _weight(strategy: Any) -> Any:
    with strategy.scope():
        return tf.Variable([[0.1, 0.2], [0.3, 0.4]])


def _in_a_function(strategy: Any, weight: Any, replica: Callable[[Any], Any], x: Any) -> None:
    train = tf.function(lambda x: strategy.run(replica, args=(x,)))
    for _ in range(LOOPS):
        train(x)


def _at_once(strategy: Any, weight: Any, replica: Callable[[Any], Any], x: Any) -> None:
    for _ in range(LOOPS):
        strategy.run(replica, args=(x,))


@pytest.mark.parametrize("runs", [_in_a_function, _at_once])
def test_each_replica_is_captured_with_its_device(runs: Callable[..., None], strategy: Any) -> None:
    def trained() -> Any:
        weight = _weight(strategy)

        def replica(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.sin(x @ weight))
            gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weight))
            weight.assign_sub(0.1 * gradient)

        x = strategy.experimental_distribute_values_from_function(
            lambda context: tf.ones([2, 2]) * (1.0 + context.replica_id_in_sync_group)
        )
        runs(strategy, weight, replica, x)
        return weight.numpy()

    plain = trained()
    with recorded() as recording:
        dumped = trained()
    assert dumped.tobytes() == plain.tobytes()
    for step in range(LOOPS):
        cosines = recording.ops(op_type="Cos", step=step)
        assert sorted(op.arguments.get("device", "CPU:0") for op in cosines) == ["CPU:0", "CPU:1"]
        for op in cosines:
            number = int(op.arguments.get("device", "CPU:0")[-1])
            assert (f"replica_{number}" in op.op_name) or not number, op.op_name
        assert len(recording.ops(op_type="AssignSubVariableOp", step=step)) == 2
    read = {
        op.arguments.get("device", "CPU:0"): recording.array(op, "input") for op in recording.ops(op_type="Cos", step=0)
    }
    assert np.allclose(read["CPU:1"], 2.0 * read["CPU:0"])


def test_keras_trains_on_both_devices(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    with recorded() as recording:
        model.fit(x, y, batch_size=4, verbose=0)
    for step in range(2):
        products = recording.ops(op_type="MatMul", step=step)
        assert {op.arguments.get("device", "CPU:0") for op in products} == {"CPU:0", "CPU:1"}


def test_an_operator_that_is_placed_by_hand_has_its_device() -> None:
    with recorded() as recording:
        with tf.device("CPU:1"):
            tf.sin(1.0)
        thread = threading.Thread(target=lambda: tf.cos(1.0))
        thread.start()
        thread.join()
    assert [op.arguments.get("device") for op in recording.ops(op_type="Sin")] == ["CPU:1"]
    assert [op.arguments.get("device") for op in recording.ops(op_type="Cos")] == [None]


def test_two_processes_are_captured_each_by_its_rank(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")

    def weights(*arguments: str) -> list[str]:
        sockets = [socket.socket() for _ in range(2)]
        for each in sockets:
            each.bind(("localhost", 0))
        workers = [f"localhost:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()
        running = []
        for task in range(2):
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": task}}
            own = {"TF_CONFIG": json.dumps(config), "RANK": str(task), "WORLD_SIZE": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
            command = [sys.executable, *arguments, "worker.py"]
            running.append(subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **own}))
        assert [each.wait(300) for each in running] == [0, 0]
        return [(tmp_path / f"weight-{task}.json").read_text(encoding="utf-8") for task in range(2)]

    assert weights("-m", "opdump", "run", "--path", "dump") == weights()
    operators = [op for op in opdump.open(tmp_path / "dump").ops() if op.op_type == "Cos"]
    assert sorted((op.rank_id, op.step) for op in operators) == [(0, 0), (0, 1), (1, 0), (1, 1)]
