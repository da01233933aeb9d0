"""The path of a dump's index, and changes of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path


def index_file(root: Path) -> Path:
    return root / "rank_0/.dump_metadata/index.sqlite"


def run_sql(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        database = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            database.execute(statement)
        database.close()

    return change
