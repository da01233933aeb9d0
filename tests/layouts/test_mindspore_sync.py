"""The synchronous layout against its contract, in both generations and all ways of saving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from opdump.catalog.catalog import open_dump
from opdump.layouts.mindspore_sync.writer import SyncWriter
from opdump.plan import DumpPlan
from opdump.records import OpRecord, TensorRecord
from opdump.testing import LayoutTests, SampleStep
from tests.layouts.filing import file_steps


class SyncLayout(LayoutTests):
    layout: str

    def write(self, root: Path, steps: Sequence[SampleStep]) -> None:
        plan = DumpPlan(path=root, saved_data="full", layout=self.layout)
        file_steps(plan, steps)

    def read(self, root: Path) -> tuple[list[OpRecord], list[TensorRecord]]:
        catalog = open_dump(root, run="all")
        assert not catalog.problems
        executions = list(catalog.executions(include_skipped=True))
        return [execution.op for execution in executions], list(catalog.tensors(include_skipped=True))


class TestSeedNaming(SyncLayout):
    layout = "mindspore-2.3"


class TestLaterNaming(SyncLayout):
    layout = "mindspore-2.10"


del SyncLayout, LayoutTests  # contracts are not tests by themselves


@pytest.mark.parametrize("layout", ["mindspore-2.3", "mindspore-2.10"])
def test_a_writer_that_wrote_nothing_leaves_a_dump_that_opens(tmp_path: Path, layout: str) -> None:
    plan = DumpPlan(path=tmp_path, layout=layout)
    writer = SyncWriter(
        plan, rank_id=3, device_target="CPU", framework="fake", framework_version="1", command=("train.py",)
    )
    writer.close({"executed": 0})
    catalog = open_dump(tmp_path)
    assert catalog.ranks == (3,)
    assert catalog.steps == ()
    assert list(catalog) == []
    assert catalog.runs[0].command == ("train.py",)
    assert catalog.runs[0].complete
