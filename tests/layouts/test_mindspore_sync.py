"""The synchronous layout against its contract, in both generations and with every kind of saved data."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdump.catalog.catalog import open_dump
from opdump.index.writer import RunFacts
from opdump.layouts.base import LAYOUTS, Layout
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.testing import LayoutTests


class TestSeedNaming(LayoutTests):
    def layout(self) -> Layout:
        return LAYOUTS.load("mindspore-2.3")


class TestLaterNaming(LayoutTests):
    def layout(self) -> Layout:
        return LAYOUTS.load("mindspore-2.10")


del LayoutTests  # a contract is not a test class of its own


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10"])
def test_a_writer_that_wrote_nothing_leaves_a_dump_that_opens(tmp_path: Path, layout: str) -> None:
    plan = DumpPlan(path=tmp_path, layout=layout)
    writer = SyncWriter(plan, RunFacts(3, "CPU", "fake", "1", "0", ("train.py",), plan.to_json()))
    writer.close({"executed": 0})
    catalog = open_dump(tmp_path)
    assert catalog.ranks == (3,)
    assert catalog.steps == ()
    assert list(catalog) == []
    assert catalog.runs[0].command == ("train.py",)
    assert catalog.runs[0].complete
