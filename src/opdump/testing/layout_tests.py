"""The contract of a layout: records are read back as they were written."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.catalog.catalog import Catalog, open_dump
from opdump.errors import OpdumpError
from opdump.index.writer import RunFacts
from opdump.layouts.base import Layout, RankWriter
from opdump.plan import DumpPlan
from opdump.records import OpRecord, TensorRecord
from opdump.testing.stand_ins import SampleStep, sample_step


class LayoutTests(ABC):
    """Subclass it in a test file as `class TestMyLayout(LayoutTests)`; pytest runs the inherited tests.

    Only `layout` is required. The records read back must equal those that were written, including their order, and their payloads
    must have the same elements; records with `skip` have no payload. A layout that stores less overrides `kept`, and one whose
    plans need other settings overrides `plan`.
    """

    @abstractmethod
    def layout(self) -> Layout:
        """The layout under test, which must be registered under its name, because plans select it by name."""

    def plan(self, root: Path) -> DumpPlan:
        """A plan that writes elements and statistics into `root`."""
        return DumpPlan(path=root, saved_data="full", layout=self.layout().name)

    def kept(self, steps: Sequence[SampleStep]) -> tuple[list[OpRecord], list[TensorRecord]]:
        """The part of these steps that is read back; by default, all of it."""
        return [op for step in steps for op in step.ops], [tensor for step in steps for tensor in step.tensors]

    def write(self, root: Path, steps: Sequence[SampleStep], rank_id: int = 0) -> None:
        """Write the steps of a rank into the directory `root`, in order, with elements and statistics."""
        file_steps(self._writer(root, rank_id), steps)

    def leave(self, root: Path, step: SampleStep) -> None:
        """Write a step and leave the run without an end, like a killed process."""
        writer = self._writer(root, 0)
        file_step(writer, step)
        writer.sink.flush()

    def read(self, root: Path) -> tuple[list[OpRecord], list[TensorRecord]]:
        """Every operator and tensor below `root`, including skipped ones, in the order in which they were written."""
        catalog = self.catalog(root)
        found = [each.op for each in catalog.ops(include_skipped=True)], list(catalog.tensors(include_skipped=True))
        assert not catalog.problems
        return found

    def catalog(self, root: Path) -> Catalog:
        """The dump in `root`, opened by the layout itself."""
        read = self.layout().detect(root)
        assert read is not None, f"{self.layout().name} does not find the dump that it wrote"
        return Catalog(root, read("all"))

    def _writer(self, root: Path, rank_id: int) -> RankWriter:
        plan = self.plan(root)
        run = RunFacts(rank_id, "CPU", "fake", "1.2", "0", ("train.py", "--x"), plan.to_json())
        return self.layout().open_writer(plan, run)

    def test_an_empty_directory_is_not_a_dump(self, tmp_path: Path) -> None:
        assert self.layout().detect(tmp_path) is None
        assert self.layout().detect(tmp_path / "absent") is None

    def test_a_dump_is_found_when_its_directory_is_opened(self, tmp_path: Path) -> None:
        self.write(tmp_path, [sample_step(0)])
        assert open_dump(tmp_path).steps == (0,)

    def test_ranks_are_kept_separate(self, tmp_path: Path) -> None:
        for rank in (0, 3):
            self.write(tmp_path, [sample_step(0, rank_id=rank)], rank)
        catalog = self.catalog(tmp_path)
        assert catalog.ranks == (0, 3)
        for rank in catalog.ranks:
            ops, _ = self.kept([sample_step(0, rank_id=rank)])
            assert [each.op.op_name for each in catalog.ops(rank=rank, include_skipped=True)] == [
                op.op_name for op in ops
            ]

    def test_closing_twice_changes_nothing(self, tmp_path: Path) -> None:
        writer = self._writer(tmp_path, 0)
        file_steps(writer, [sample_step(0)])
        writer.close({"executed": 0})
        assert self.catalog(tmp_path).runs[0].totals["executed"] == len(sample_step(0).ops)

    def test_records_of_a_run_that_never_ends_are_read(self, tmp_path: Path) -> None:
        self.leave(tmp_path, sample_step(0))
        found = list(self.catalog(tmp_path).tensors(include_skipped=True))
        assert len(found) == len(self.kept([sample_step(0)])[1])

    def test_a_file_that_is_cut_off_is_reported(self, tmp_path: Path) -> None:
        """Truncate the largest file: a problem of the dump reports it, or reading the elements does. No other error may occur."""
        self.write(tmp_path, [sample_step(0), sample_step(1)])
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        os.truncate(largest, largest.stat().st_size * 2 // 3)
        try:
            catalog = self.catalog(tmp_path)
            for record in catalog:
                record.numpy()
            told = "; ".join(map(str, catalog.problems))
        except OpdumpError as error:
            told = str(error)
        assert str(tmp_path) in told

    def test_records_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        steps = [sample_step(0), sample_step(1)]
        self.write(tmp_path, steps)
        ops, tensors = self.read(tmp_path)
        expected_ops, expected_tensors = self.kept(steps)
        assert ops == expected_ops
        for found, expected in zip(tensors, expected_tensors, strict=True):
            assert found == expected

    def test_elements_are_read_bit_for_bit(self, tmp_path: Path) -> None:
        step = sample_step(3)
        self.write(tmp_path, [step])
        _, tensors = self.read(tmp_path)
        for found, expected in zip(tensors, self.kept([step])[1], strict=True):
            assert (found.payload is None) == (expected.payload is None), expected.name
            if found.payload is not None and expected.payload is not None:
                assert_same_bits(found.payload.to_host(), expected.payload.to_host())

    def test_statistics_are_read_in_full_precision(self, tmp_path: Path) -> None:
        step = sample_step(5)
        self.write(tmp_path, [step])
        _, tensors = self.read(tmp_path)
        for found, expected in zip(tensors, self.kept([step])[1], strict=True):
            assert dict(found.statistics).keys() == dict(expected.statistics).keys()
            for name, value in expected.statistics.items():
                np.testing.assert_equal(found.statistics[name], value)

    def test_executions_of_one_name_in_a_step_are_kept_separate(self, tmp_path: Path) -> None:
        step = sample_step(0)
        self.write(tmp_path, [step])
        ops, _ = self.read(tmp_path)
        assert [op.occurrence for op in ops if op.op_name.endswith("MatMul-op90")] == [0, 1, 2]

    def test_reading_twice_returns_the_same(self, tmp_path: Path) -> None:
        self.write(tmp_path, [sample_step(0)])
        assert self.read(tmp_path) == self.read(tmp_path)

    def test_steps_need_not_begin_at_zero_or_be_consecutive(self, tmp_path: Path) -> None:
        self.write(tmp_path, [sample_step(2), sample_step(100)])
        ops, _ = self.read(tmp_path)
        assert sorted({op.step for op in ops}) == [2, 100]

    def test_several_graphs_in_a_step(self, tmp_path: Path) -> None:
        steps = [sample_step(0, graph_id=0), sample_step(0, graph_id=1)]
        self.write(tmp_path, steps)
        ops, tensors = self.read(tmp_path)
        expected_ops, expected = self.kept(steps)
        assert [op.graph_id for op in ops] == [op.graph_id for op in expected_ops]
        assert [record.name for record in tensors] == [record.name for record in expected]


def file_steps(writer: RankWriter, steps: Sequence[SampleStep], *, elements: bool = True) -> None:
    """Pass steps to a writer like a recorder, and close it; only statistics if `elements` is False."""
    for step in steps:
        file_step(writer, step, elements=elements)
    writer.close({"executed": sum(len(step.ops) for step in steps)})


def file_step(writer: RankWriter, step: SampleStep, *, elements: bool = True) -> None:
    """Pass one step to a writer, and leave the writer open."""
    files: list[str | None] = []
    for op in step.ops:
        own = [tensor for tensor in step.tensors if tensor.op is op]
        if not elements or op.skip:
            files += [None] * len(own)
        else:
            files += writer.write_operator(op, own)
    writer.write_step(step.step, step.ops, step.tensors, files, {})


def assert_same_bits(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """The same type, shape and bytes: NaN equals NaN, 0.0 does not equal -0.0."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()
