"""The registry of layouts: names, their properties, and when packages are loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opdump.capturing.deferred_writer import DeferredWriter
from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.errors import ConfigError
from opdump.layouts.base import LAYOUTS, RankWriter
from opdump.plan import DumpPlan
from opdump.records import OpRecord
from opdump.sink import DirectorySink


def test_every_layout_has_the_name_under_which_it_is_registered() -> None:
    assert [LAYOUTS.load(name).name for name in LAYOUTS.own] == list(LAYOUTS.own)


def test_a_name_of_no_layout_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"DumpPlan: layout is 'mindspor-2.3', expected .*; nearest: 'mindspore-2.3'"):
        DumpPlan(path=tmp_path, layout="mindspor-2.3")
    with pytest.raises(ConfigError, match="DumpPlan: layout is 3, expected text"):
        DumpPlan(path=tmp_path, layout=3)  # type: ignore[arg-type]


def test_naming_a_layout_of_opdump_loads_no_writer_and_searches_no_package() -> None:
    code = """
import sys
from pathlib import Path
from opdump.plan import DumpPlan
for layout in ("mindspore-2.3", "mindspore-2.10", "mindspore-async", "acl"):
    assert DumpPlan(path=Path("/tmp"), layout=layout).layout_facts.files
print(*sorted({"importlib.metadata", "numpy", "sqlite3", "opdump.sink"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


class _Least(RankWriter):
    """A writer that stores nothing."""

    def __init__(self, root: Path) -> None:
        self.sink = DirectorySink(root)


def test_a_deferred_writer_ignores_what_its_layout_cannot_store(tmp_path: Path) -> None:
    writer = DeferredWriter(DumpPlan(path=tmp_path), lambda: _Least(tmp_path))
    op = OpRecord("A", "A-op0", 1)
    writer.write_kernel_args(op)
    writer.graphs_ran(0, [0])
    writer.write_overflow(op, OverflowStatus(0))
    writer.write_degradation(Degradation(step=0, time=0, bound="max_disk", now="off", why=""))
    assert writer.write_exception(op, [], "failed") == []
    assert (writer.metadata, writer.index_bytes) == (None, 0)
    writer.flush()
    writer.close({})
