"""A TensorFlow program run through a symbolic link dumps into the directory of its file, however it is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
import tensorflow as tf

import opdump

@tf.function
def step(x):
    return tf.nn.relu(x) * 2.0

def train():
    for number in range(2):
        step(tf.constant([1.0, -2.0]) + float(number))

if os.environ.get("WITH_CAPTURE"):
    with opdump.capture(os.environ["WITH_CAPTURE"]):
        train()
else:
    train()
"""
WAYS = {
    "opdump run": ["-m", "opdump", "run", "--config", "CONFIG"],
    "python": [],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_dumps_into_one_place_through_a_link(way: str, tmp_path: Path) -> None:
    real, linked, elsewhere = tmp_path / "real", tmp_path / "linked", tmp_path / "elsewhere"
    for folder in (real, linked, elsewhere):
        (folder / "out").mkdir(parents=True)
    config = tmp_path / "acl.json"
    config.write_text(json.dumps({"dump": {"dump_path": "out", "dump_mode": "all", "dump_list": []}}), encoding="utf-8")
    (real / "program.py").write_text(PROGRAM, encoding="utf-8")
    (linked / "program.py").symlink_to(real / "program.py")
    (tmp_path / "also").symlink_to(real)
    asked = {"WITH_CAPTURE": str(config)} if way == "python" else {}
    for number, started in enumerate((linked / "program.py", tmp_path / "also" / "program.py"), 1):
        ended = subprocess.run(
            [sys.executable, *(str(config) if each == "CONFIG" else each for each in WAYS[way]), str(started)],
            env={**os.environ, **asked},
            cwd=elsewhere,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        assert len(list((real / "out").glob("[0-9]*/0/step/*/*"))) == 2 * number, list((real / "out").rglob("*"))
        assert not list((linked / "out").iterdir())
        assert not list((elsewhere / "out").iterdir())
