"""Tests in `functions/` and `sessions/` need TensorFlow: `make test-tensorflow` runs them in environments with TensorFlow, by name (`run`).

Each file has a separate process, because its changes to TensorFlow (eager execution, control flow, flags of XLA) affect the whole process.
Therefore no other run collects them.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

# pytest still collects a file that is named on the command line.
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
    # The programs are like those of users, and Keras 2 also causes warnings in Python's own modules; warnings of opdump stay errors.
    # A fixture would be too late: those of a module are set up before all others.
    warnings.filterwarnings("default")
    warnings.filterwarnings("error", module=r"opdump\b|tests\b")
