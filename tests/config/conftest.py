"""A directory whose path MindSpore would accept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdump.configs.mindspore import is_dump_path


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A writable directory whose path has only letters, digits, `-` and `_`."""
    if is_dump_path(str(tmp_path)):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="opdump-", dir="/tmp"))
    try:
        yield made
    finally:
        shutil.rmtree(made)
