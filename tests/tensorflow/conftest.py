"""Tests in `functions/` and `sessions/` need TensorFlow: `make test-tensorflow` runs them where it is, by their names (`run`).

Each file has a process of its own, since what it changes of TensorFlow (eager execution, control flow, flags of XLA) holds for a process.
That is why no other run collects them.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

# Where a file is named pytest collects it all the same.
collect_ignore = ["functions", "sessions"]


def pytest_collection_finish(session: pytest.Session) -> None:
    files = {item.path for item in session.items if item.path.parent.parent == Path(__file__).parent}
    if len(files) > 1:
        raise pytest.UsageError(f"{len(files)} files that need TensorFlow: tests/tensorflow/run has a process for each")


@pytest.fixture(autouse=True)
def _graph_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    # The programs are as users write them, and Keras 2 has warnings for Python's own modules too; those of opdump stay errors. It is
    # no fixture, since those of a module are set up before all others.
    warnings.filterwarnings("default")
    warnings.filterwarnings("error", module=r"opdump\b|tests\b")
