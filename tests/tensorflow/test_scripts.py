"""What the source of a program shows about it, read without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opdump.tensorflow.installation import facts_of_program, facts_of_script

ESTIMATOR = """
import tensorflow as tf
from npu_bridge.estimator.npu.npu_config import NPURunConfig
from npu_bridge.estimator.npu.npu_config import DumpConfig
session_config = tf.ConfigProto()
"""
SESSION = """
import tensorflow
config = tensorflow.compat.v1.ConfigProto()
custom_op = config.graph_options.rewrite_options.custom_optimizers.add()
custom_op.name = "NpuOptimizer"
"""


def test_a_program_that_imports_the_adapter_asks_for_dumps() -> None:
    facts = facts_of_script(ESTIMATOR)
    assert facts.asks_for_dumps
    assert facts.drop_ins == ("npu_bridge",)
    assert facts.is_tensorflow_1
    assert facts.framework == "tensorflow"


def test_a_program_that_names_the_optimizer_asks_for_dumps() -> None:
    facts = facts_of_script(SESSION)
    assert facts.asks_for_dumps
    assert facts.drop_ins == ()
    assert not facts.is_tensorflow_1, "it says compat.v1 itself"


def test_the_adapter_of_version_2_is_known() -> None:
    assert facts_of_script("import npu_device as npu\n").drop_ins == ("npu_device",)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nprint('npu_bridge')\n",
        "import tensorflow as tf\nprint(tf.constant(1))\n",
        "from .npu_bridge import DumpConfig\n",  # a module of the program itself
        "def broken(:\n",
        "",
    ],
)
def test_other_programs_do_not_ask_for_dumps(source: str) -> None:
    assert not facts_of_script(source).asks_for_dumps


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import keras\n", "tensorflow"),
        ("from tensorflow import keras\n", "tensorflow"),
        ("import torch\nimport tensorflow\n", "torch"),
        ("import numpy\n", "torch"),
    ],
)
def test_the_framework_is_the_one_that_is_imported(source: str, framework: str) -> None:
    assert facts_of_script(source).framework == framework


def test_a_program_that_imports_the_drop_in_is_read(tmp_path: Path) -> None:
    """If a program requests dumps, one more function waits for the import of tensorflow, also under plain Python."""
    told = (
        "import opdump.npu_bridge\n"
        "from opdump.interpreter.imports import functions_waiting\n"
        "print(functions_waiting('tensorflow'))\n"
    )
    for source, expected in ((ESTIMATOR, "2\n"), ("import sys\n", "1\n")):
        script = tmp_path / "train.py"
        script.write_text(f"import sys\n{told}sys.exit()\n{source}", encoding="utf-8")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_modules_beside_a_script_say_which_framework_it_uses(tmp_path: Path) -> None:
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks/__init__.py").write_text("from layers import Dense\n")
    (tmp_path / "layers.py").write_text("import mindspore as ms\nimport networks\n")
    facts = facts_of_program("import os\nfrom networks import Net\n", str(tmp_path))
    assert facts.framework == "mindspore"
    assert facts_of_program("import jax\nfrom networks import Net\n", str(tmp_path)).framework == "jax"


def test_a_module_that_is_no_python_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "other.py").write_bytes(b"\xff\xfe")
    assert facts_of_program("import broken, other\n", str(tmp_path)).names_no_framework
