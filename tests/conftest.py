"""What every test gets: one thread, a quiet environment, no wait without an end, and no PyTorch where there is none."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
from hypothesis import settings

# Read by PyTorch and numpy when they are first imported, which is after this file.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The contracts in opdump.testing hold asserts, and a failing one should say what it compared.
pytest.register_assert_rewrite("opdump.testing")

# The same examples on every run, and no time limit for one of them on a shared machine.
settings.register_profile("opdump", deadline=None, derandomize=True)
settings.load_profile("opdump")

_OPTIONAL = ("torch", "transformers", "sklearn")
_MISSING = tuple(name for name in _OPTIONAL if importlib.util.find_spec(name) is None)
_NEEDS_MISSING = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(_MISSING)})\b", re.MULTILINE) if _MISSING else None

_DUMP_VARIABLES = (
    "MINDSPORE_DUMP_CONFIG",
    "MS_DIAGNOSTIC_DATA_PATH",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the files that import a framework that is not installed (`make test-core`)."""
    if _NEEDS_MISSING is None or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if _NEEDS_MISSING.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that start a program with PyTorch (`pytest.mark.torch`) where there is none."""
    if "torch" not in _MISSING:
        return
    without = [item for item in items if item.get_closest_marker("torch")]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


def pytest_report_header() -> str | None:
    return f"not installed, their test files are left out: {', '.join(_MISSING)}" if _MISSING else None


@pytest.fixture(autouse=True)
def _no_dump_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _DUMP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
