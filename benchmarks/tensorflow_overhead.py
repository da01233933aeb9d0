"""The cost of a capture of TensorFlow programs, each figure with its goal.

    python benchmarks/tensorflow_overhead.py [--rounds 20] [--batch 32] [--variables reference]

    CNN by sessions        two convolutions and a dense layer on 28x28 images, Adam, resource variables
    small session          475 small operators, among them 95 products of 8x8, with almost no arithmetic
    MobileNetV2 by fit     Keras, alpha 0.35, a batch of 8 images of 64x64

The sessions request statistics of the outputs through NpuOptimizer, which writes a file per operator. One more session runs under
`opdump.capture`, which writes a table per step, as does the capture of `fit`. Steps of all kinds alternate in one process, one thread. Times
are CPU seconds of all threads, including those that write. The output is the ratio to the plain step with its 95 % interval. `plain again`
shows the machine's noise. Steps that are not dumped are excluded by the configuration. The first dumped step has to find out how to read the
operators; it is reported in seconds, with its goal: ten plain steps and one second.

The runtime's debugger watches reference variables, which costs more: `--variables reference` measures only the CNN with these.
Whether oneDNN is on depends on the processor; TF_ENABLE_ONEDNN_OPTS=0 or 1 in the environment sets it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from intervals import interval
from memory import keep_freed_memory

import opdump
import opdump.tensorflow
from opdump.kernels import active, set_threads

STEPS: Final = 7
NOT_DUMPED: Final = 1.02
TABLE: Final = "dumped, a table a step"
v1 = tf.compat.v1


@dataclass(frozen=True)
class Measured:
    """CPU seconds of the steps of one program, round by round."""

    name: str
    goal: float
    """The goal for a dumped step, in plain steps."""
    plain: Sequence[float]
    kinds: dict[str, Sequence[float]]
    first: Sequence[float]
    """Seconds of the first dumped steps."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, figure and goal of each measurement."""
        step = statistics.median(self.plain)
        found = [(f"{self.name}: plain", f"{step * 1e3:.1f} ms", "")]
        of_dumped = f"<= {self.goal:.1f}"
        goals = {"dumped": of_dumped, TABLE: of_dumped, "not dumped": f"<= {NOT_DUMPED:.2f}"}
        for kind, seconds in self.kinds.items():
            ratios = [one / other for one, other in zip(seconds, self.plain, strict=True)]
            low, high = interval(ratios)
            shown = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
            found.append((f"{self.name}: {kind}", shown, goals.get(kind, "")))
        shown = f"{statistics.median(self.first):.2f} s"
        return [*found, (f"{self.name}: first dumped", shown, f"<= {10 * step + 1:.2f} s")]


def cnn(batch: int) -> tuple[Any, dict[Any, Any]]:
    """The fetches and feeds of a step of a convolutional network."""
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
    numbers = np.random.default_rng(0)
    feed = {image: numbers.random((batch, 28, 28, 1), np.float32), label: numbers.integers(0, 10, batch)}
    return [v1.train.AdamOptimizer(0.001).minimize(loss), loss], feed


def small(_: int) -> tuple[Any, dict[Any, Any]]:
    """475 consecutive operators on matrices of 8x8: a cell that is applied 95 times."""
    x = v1.placeholder(tf.float32, [8, 8], "x")
    weight = v1.get_variable("weight", [8, 8], initializer=v1.truncated_normal_initializer(0, 0.1))
    read, net = weight.read_value(), x
    for _ in range(95):
        net = tf.tanh(tf.matmul(net, read) + x) * 0.5 - net
    return net, {x: np.random.default_rng(0).random((8, 8), np.float32)}


def config(folder: Path | None, *, steps: str = "", mode: str = "output") -> Any:
    """One thread; with `folder`, the dump that a program requests."""
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


def by_sessions(
    name: str,
    goal: float,
    network: Callable[[int], tuple[Any, dict[Any, Any]]],
    folder: Path,
    *,
    rounds: int,
    steps: int,
    batch: int,
) -> Measured:
    """Measure `steps` steps of each kind per round."""
    folder.mkdir()
    opdump.tensorflow.install()
    configs = {
        "plain": config(None),
        "plain again": config(None),
        "not dumped": config(folder / "none", steps="1000000"),
        "dumped": config(folder / "output"),
        "dumped, inputs too": config(folder / "all", mode="all"),
    }
    captured = opdump.capture(path=folder / "table", saved_data="statistic", input_output=2, framework="tensorflow")
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        fetches, feed = network(batch)
        init = v1.global_variables_initializer()
        sessions = {kind: v1.Session(config=made) for kind, made in configs.items()}
        with captured:  # sessions created before are not captured
            sessions[TABLE] = v1.Session(config=config(None))
            took, first = _in_turns(sessions, init, fetches, feed, rounds=rounds, steps=steps)
        for session in sessions.values():
            session.close()
    opdump.tensorflow.finish()
    return Measured(name, goal, took.pop("plain"), took, [first["dumped"]])


class _Clock(tf.keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """CPU seconds of each batch of a `fit`."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begin = time.process_time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.process_time() - self._begin)


def _in_turns(
    sessions: dict[str, Any], init: Any, fetches: Any, feed: Any, *, rounds: int, steps: int
) -> tuple[dict[str, Sequence[float]], dict[str, float]]:
    """CPU seconds per step of each session, round by round, and of its first step."""
    took: dict[str, list[float]] = {kind: [] for kind in sessions}
    first = {}
    for kind, session in sessions.items():
        session.run(init)
        begin = time.process_time()
        session.run(fetches, feed)
        first[kind] = time.process_time() - begin
        session.run(fetches, feed)
    order = list(sessions)
    for _ in range(rounds):
        random.shuffle(order)
        for kind in order:
            session, seconds = sessions[kind], []
            for _ in range(steps):
                begin = time.process_time()
                session.run(fetches, feed)
                seconds.append(time.process_time() - begin)
            took[kind].append(statistics.median(seconds[1:]))
    return dict(took), first


def by_fit(name: str, goal: float, folder: Path, rounds: int) -> Measured:
    folder.mkdir()
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.applications.MobileNetV2((64, 64, 3), 0.35, weights=None, classes=10)
    model.compile(tf.keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    numbers = np.random.default_rng(0)

    def seconds(steps: int) -> list[float]:
        images = numbers.random((8 * steps, 64, 64, 3), np.float32)
        clock = _Clock()
        model.fit(images, numbers.integers(0, 10, 8 * steps), batch_size=8, verbose=0, callbacks=[clock])
        return clock.seconds

    seconds(2)
    plain, first = [], []
    kinds: dict[str, list[float]] = {"plain again": [], "not dumped": [], "dumped": []}
    for number in range(rounds):
        half, other = seconds(STEPS)[1:], seconds(STEPS)[1:]
        wanted = f"1-{STEPS}"
        with opdump.capture(
            path=folder / f"{number}", saved_data="statistic", input_output=2, iteration=wanted, framework="tensorflow"
        ):
            # Step 0 is the first call under the capture; examining the function is not a cost of a step.
            under = seconds(2 * STEPS + 2)
        shutil.rmtree(folder / f"{number}")
        plain.append(statistics.median(half))
        kinds["plain again"].append(statistics.median(other))
        first.append(under[1])
        kinds["dumped"].append(statistics.median(under[2 : STEPS + 1]))
        kinds["not dumped"].append(statistics.median(under[STEPS + 2 :]))
    return Measured(name, goal, plain, kinds, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--variables", choices=("resource", "reference"), default="resource")
    arguments = parser.parse_args()
    set_threads(1)
    keep_freed_memory()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    is_resource, rounds = arguments.variables == "resource", arguments.rounds
    (v1.enable_resource_variables if is_resource else v1.disable_resource_variables)()
    print(f"kernels: {active()}; tensorflow {tf.__version__}; batch {arguments.batch}; ratios to plain, 95 % intervals")
    folder = Path(tempfile.mkdtemp(prefix="opdump-tensorflow-overhead-"))
    os.chdir(folder)  # graph files go there
    try:
        sized = {"rounds": rounds, "batch": arguments.batch}
        _print(by_sessions("CNN by sessions", 2.0, cnn, folder / "cnn", steps=STEPS, **sized))
        if is_resource:
            _print(by_sessions("small session", 10.0, small, folder / "small", steps=4 * STEPS, **sized))
            _print(by_fit("MobileNetV2 by fit", 3.0, folder / "fit", max(rounds // 4, 1)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _print(measured: Measured) -> None:
    for name, figure, goal in measured.rows():
        print(f"{name:38} {figure:28} {goal}".rstrip(), flush=True)


if __name__ == "__main__":
    random.seed(0)
    main()
