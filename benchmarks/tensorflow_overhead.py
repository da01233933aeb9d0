"""What capture costs a step of TensorFlow training through `sess.run`: plain, not dumped, and with statistics of every operator.

    python benchmarks/tensorflow_overhead.py [--rounds 40] [--batch 32] [--variables resource|reference]

A network of two convolutions and a dense layer on 28x28 images with Adam, one thread. Steps of all kinds alternate in one process, in
shuffled order, each through a session of its own. Statistics go to one table for each operator (`dump_data: stats`), of the outputs
(`dump_mode: output`, the default) or of inputs and outputs (`all`). Counted are the seconds of the processor, all threads together; printed is
the ratio to plain with its 95 % interval. `again` is plain a second time, and shows what the machine's noise is worth; `not dumped` is a
step that the configuration leaves out. Reference variables are watched by the runtime's debugger, which costs more: they are a run of
their own. The first dumped step builds another executor: it is told by itself. Whether oneDNN is on depends on the processor;
TF_ENABLE_ONEDNN_OPTS=0 or 1 in the environment says so.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from intervals import interval
from memory import keep_freed_memory

import opdump.tensorflow
from opdump.kernels import active, set_threads

STEPS = 5
v1 = tf.compat.v1


def network() -> tuple[Any, Any, Any, Any]:
    """Images, labels, loss, and the operation that trains."""
    image = v1.placeholder(tf.float32, [None, 28, 28, 1], "image")
    label = v1.placeholder(tf.int32, [None], "label")
    net = image
    for number, (size, channels) in enumerate(((1, 32), (32, 64))):
        with v1.variable_scope(f"conv{number}"):
            kernel = v1.get_variable(
                "kernel", [3, 3, size, channels], initializer=v1.truncated_normal_initializer(0, 0.1)
            )
            bias = v1.get_variable("bias", [channels], initializer=v1.zeros_initializer())
            net = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(net, kernel, 1, "SAME"), bias))
            net = tf.nn.max_pool2d(net, 2, 2, "VALID")
    with v1.variable_scope("dense"):
        kernel = v1.get_variable("kernel", [7 * 7 * 64, 10], initializer=v1.truncated_normal_initializer(0, 0.1))
        bias = v1.get_variable("bias", [10], initializer=v1.zeros_initializer())
        logits = tf.matmul(tf.reshape(net, [-1, 7 * 7 * 64]), kernel) + bias
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
    return image, label, loss, v1.train.AdamOptimizer(0.001).minimize(loss)


def config(folder: Path | None, *, steps: str = "", mode: str = "output") -> Any:
    """One thread; with `folder` the dump that a program asks for."""
    made = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    if folder is not None:
        folder.mkdir()
        entry = made.graph_options.rewrite_options.custom_optimizers.add()
        entry.name = "NpuOptimizer"
        entry.parameter_map["enable_dump"].b = True
        for key, text in (
            ("dump_path", str(folder)),
            ("dump_data", "stats"),
            ("dump_mode", mode),
            ("dump_step", steps),
        ):
            entry.parameter_map[key].s = text.encode()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--variables", choices=("resource", "reference"))
    arguments = parser.parse_args()
    set_threads(1)
    keep_freed_memory()
    print(f"kernels: {active()}; tensorflow {tf.__version__}; batch {arguments.batch}; ratios to plain, 95 % intervals")
    for kind in [arguments.variables] if arguments.variables else ("resource", "reference"):
        (v1.enable_resource_variables if kind == "resource" else v1.disable_resource_variables)()
        opdump.tensorflow.install()
        folder = Path(tempfile.mkdtemp(prefix="opdump-tensorflow-overhead-"))
        os.chdir(folder)  # graph files go there
        try:
            measure(kind, folder, arguments.rounds, arguments.batch)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def measure(kind: str, folder: Path, rounds: int, batch: int) -> None:
    configs = {
        "plain": config(None),
        "again": config(None),
        "not dumped": config(folder / "none", steps="1000000"),
        "stats": config(folder / "output"),
        "stats, all": config(folder / "all", mode="all"),
    }
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        image, label, loss, train = network()
        numbers = np.random.default_rng(0)
        feed = {image: numbers.random((batch, 28, 28, 1), np.float32), label: numbers.integers(0, 10, batch)}
        sessions = {name: v1.Session(config=made) for name, made in configs.items()}
        init = v1.global_variables_initializer()
        took: dict[str, list[float]] = {name: [] for name in sessions}
        first = {}
        for name, session in sessions.items():
            session.run(init)
            begin = time.process_time()
            session.run([train, loss], feed)
            first[name] = time.process_time() - begin
            session.run([train, loss], feed)
        order = list(sessions)
        for _ in range(rounds):
            random.shuffle(order)
            for name in order:
                session, seconds = sessions[name], []
                for _ in range(STEPS):
                    begin = time.process_time()
                    session.run([train, loss], feed)
                    seconds.append(time.process_time() - begin)
                took[name].append(statistics.median(seconds[1:]))
        for session in sessions.values():
            session.close()
    opdump.tensorflow.finish()
    plain = took["plain"]
    print(
        f"{kind} variables: plain {statistics.median(plain) * 1e3:.1f} ms, first dumped step {first['stats'] * 1e3:.0f} ms"
    )
    for name, seconds in took.items():
        if name != "plain":
            ratios = [one / other for one, other in zip(seconds, plain, strict=True)]
            low, high = interval(ratios)
            print(f"  {name:12} {statistics.median(ratios):6.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    random.seed(0)
    main()
