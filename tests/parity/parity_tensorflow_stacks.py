"""The line of the program behind each operator of TensorFlow: sessions, estimators, functions, Keras, eager programs, notebooks."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import opdump
from tests.parity import peers

PYTHONS = {"newest": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
CASES = re.findall(r"^@case\ndef (\w+)", (peers.SCRIPTS / "tf_stacks.py").read_text(encoding="utf-8"), re.MULTILINE)
EXAMPLES = peers.ROOT / "examples" / "tensorflow"
PROGRAM = """\
import tensorflow as tf

@tf.function
def loss_of(weight):
    shifted = weight - 1.0
    return tf.reduce_sum(
        tf.math.log(shifted)
    )

weight = tf.Variable([1.0, 3.0])
with tf.GradientTape() as tape:
    loss = loss_of(weight)
print(tape.gradient(loss, weight).numpy())
"""

versions = pytest.mark.parametrize("version", PYTHONS)


def _run(version: str, *arguments: str | Path) -> str:
    environment = {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return peers.run(PYTHONS[version], arguments, environment)


@functools.cache
def _told(version: str) -> dict[str, dict[str, Any]]:
    printed = _run(version, peers.SCRIPTS / "tf_stacks.py")
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {line["case"]: line for line in lines}


@versions
@pytest.mark.parametrize("case", CASES)
def test_case(version: str, case: str) -> None:
    told = _told(version)[case]
    assert told["held"], told["why"]


@versions
@pytest.mark.parametrize("example", ["train_session.py", "train_estimator.py"])
def test_every_operator_of_the_examples_has_its_line(version: str, example: str, tmp_path: Path) -> None:
    _run(version, "-m", "opdump", "run", EXAMPLES / example, tmp_path)
    (dump,) = tmp_path.glob("[0-9]*")
    catalog = opdump.open(dump)
    operators = list(catalog.ops(include_skipped=True))
    without = {(op.op_type, op.op_name, op.skip) for op in operators if not op.stack}
    assert operators
    assert not without
    assert {Path(op.stack[0].file).name for op in operators} == {example}
    convolutions = {op.stack[0].code for op in operators if op.op_type == "Conv2D"}
    assert len(convolutions) == 1
    assert "conv2d" in convolutions.pop()


@versions
def test_the_verdict_and_show_name_the_line(version: str, tmp_path: Path) -> None:
    program, dump = tmp_path / "train.py", tmp_path / "dump"
    program.write_text(PROGRAM, encoding="utf-8")
    command = f"{PYTHONS[version]} -m opdump run --path {dump} --full {program} 2>&1"
    printed = _run_shell(version, command)
    assert re.search(r"first infinity: step 0, Log at train\.py:7, 1 of 2 elements of output\.0", printed), printed
    shown = _show(dump, "--source", "train.py:7")
    assert re.search(r"\bLog\b", shown), shown
    assert "Sub" not in shown
    shown = _show(dump, "--op", "Log")
    assert f"{program}:7  tf.math.log(shifted)" in shown
    assert f"{program}:12  loss = loss_of(weight)" in shown
    assert "opdump/" not in shown.replace(str(dump), "")


def _run_shell(version: str, command: str) -> str:
    return _run(version, "-c", f"import subprocess; subprocess.run({command!r}, shell=True, check=True)")


def _show(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "opdump", "show", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
