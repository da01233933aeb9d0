"""A child that imports only another framework is counted and reported; one that imports both is captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.startup.test_children import run

pytestmark = pytest.mark.torch


def test_children_of_another_framework_are_counted_and_told(tmp_path: Path) -> None:
    # An importable module of that name is enough for opdump to notice: nothing in it is called.
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.21.0'\n")
    body = """
    train(0)
    for code in ('import tensorflow', 'import tensorflow, train; train.train(1)', 'import train, tensorflow; train.train(1)'):
        subprocess.run([sys.executable, '-c', code], check=True)
    """
    _, report = run(tmp_path, body)
    assert sorted(child["end"] for child in report["children"]) == ["ended", "ended", "not captured"]
    assert report["warnings"] == [
        "1 child process not captured: they import tensorflow, and this run captures torch: choose with --framework"
    ]


def test_forked_children_that_import_another_framework_and_run_nothing_of_this_one_are_counted(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("__version__ = '1.31.1'\n")
    body = """
    train(0)
    for work in ('import onnxruntime', 'import onnxruntime; train(1)', 'pass'):
        if (process := os.fork()) == 0:
            exec(work)
            os._exit(0)
        os.waitpid(process, 0)
    """
    _, report = run(tmp_path, body)
    assert sorted(child["end"] for child in report["children"]) == ["ended", "ended", "not captured"]
    assert report["warnings"] == [
        "1 child process not captured: they import onnxruntime and ran nothing of torch, which this run captures"
    ]
