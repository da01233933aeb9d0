"""The messages that a user without TensorFlow receives."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import opdump
from opdump.errors import FrameworkMissingError

without_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed here"
)


@without_tensorflow
def test_install_says_what_to_type() -> None:
    with pytest.raises(FrameworkMissingError, match="pip install tensorflow"):
        opdump.tensorflow.install()


def test_finish_without_install_has_no_reports() -> None:
    assert opdump.tensorflow.finish() == ()


@without_tensorflow
def test_a_program_that_asks_for_dumps_ends_as_without_opdump(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import npu_bridge.npu_init\nimport tensorflow as tf\n")
    result = subprocess.run(
        [sys.executable, "-m", "opdump", "run", str(program)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 1
    assert "No module named 'tensorflow'" in result.stderr
    assert "npu_bridge" not in result.stderr, "the drop-in was found"
    assert list(tmp_path.iterdir()) == [program]
