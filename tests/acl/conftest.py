"""Give every test a fresh `acl` process state and a directory to dump into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opdump.acl.process import start_anew

_DUMP_VARIABLES = ("ASCEND_DUMP_SCENE", "ASCEND_DUMP_PATH", "ASCEND_WORK_PATH", "NPU_COLLECT_PATH")


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in _DUMP_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    start_anew()
    yield
    start_anew()


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """An empty directory to dump into."""
    path = tmp_path / "dump"
    path.mkdir()
    return path
