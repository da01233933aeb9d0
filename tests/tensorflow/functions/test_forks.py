"""Forked processes of a TensorFlow program are captured if TensorFlow works in them, otherwise counted and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import opdump
from tests.cli.programs import write_config

PROGRAM = """
import multiprocessing, os, sys
import tensorflow as tf
v1 = tf.compat.v1

@tf.function
def product(x):
    return tf.reduce_sum(tf.matmul(x, x))

def work(number):
    print(number, float(product(tf.ones([2, 2]) * number)))
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [2])
        print(number, session.run(fed * number, {fed: [1, 2]}))
    sys.stdout.flush()

def by_hand(number, leave):
    process = os.fork()
    if process == 0:
        work(number)
        leave()
    print(os.waitpid(process, 0)[1], flush=True)

def fail():
    raise ValueError("seven")

if __name__ == "__main__":
    by_hand(1, lambda: os._exit(2))
    by_hand(2, lambda: sys.exit(3))
    by_hand(3, fail)
    process = multiprocessing.get_context("fork").Process(target=work, args=(4,))
    process.start()
    process.join()
    work(5)
    if (process := os.fork()) == 0:
        print(float(tf.reduce_sum(tf.ones([3]))), flush=True)
        sys.exit(0)
    print(os.waitpid(process, 0)[1])
"""


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "OPDUMP_ISA": "numpy"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_forked_processes_are_captured_until_tensorflow_is_initialised_and_reported_from_then_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "forks.py").write_text(PROGRAM, encoding="utf-8")
    config = write_config(tmp_path, saved_data="tensor")
    plain = _run(tmp_path, "forks.py")
    done = _run(tmp_path, "-m", "opdump", "run", "-c", config.name, "--json", "forks.py")
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert plain.stdout.count("\n") == 15
    told = [line for line in done.stderr.splitlines() if line.startswith(("opdump", "{"))]
    assert len(told) == 2, "a warning and the report of the first process, and nothing of the others"
    report: dict[str, Any] = json.loads(told[-1])
    *captured, left_out = report["children"]
    assert [child["end"] for child in captured] == ["ended"] * 4
    assert (left_out["end"], left_out["rank"]) == ("not captured", None)
    (warning,) = report["warnings"]
    assert "1 child process not captured: TensorFlow was already initialised" in warning
    catalog = opdump.open(tmp_path / "dump")
    assert catalog.ranks == (0, *[child["rank"] for child in captured])
    for number, rank in zip((5, 1, 2, 3, 4), catalog.ranks, strict=True):
        kinds = {op.op_type for op in catalog.ops(rank=rank)}
        assert {"MatMul", "Mul", "Sum"} <= kinds
        sums = [each.outputs[0].payload for each in catalog.executions(rank=rank) if each.op.op_type == "Sum"]
        assert [None if each is None else float(each.to_host()) for each in sums] == [8.0 * number**2]
