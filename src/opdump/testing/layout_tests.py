"""The contract of a layout: what goes in comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.records import OpRecord, TensorRecord
from opdump.testing.sample_records import SampleStep, sample_step


class LayoutTests(ABC):
    """Subclass it in a test file as `class TestMyLayout(LayoutTests)`; pytest runs what is inherited.

    The records that `read` gives must equal those that were written, order included, and their payloads must hold the same
    elements. Records with `skip` come back without a payload.
    """

    @abstractmethod
    def write(self, root: Path, steps: Sequence[SampleStep]) -> None:
        """File the steps into the empty directory `root`, in their order, elements and statistics."""

    @abstractmethod
    def read(self, root: Path) -> tuple[list[OpRecord], list[TensorRecord]]:
        """Every operator and tensor below `root`, skipped ones included, in the order in which they were written."""

    def test_records_come_back_as_they_went_in(self, tmp_path: Path) -> None:
        steps = [sample_step(0), sample_step(1)]
        self.write(tmp_path, steps)
        ops, tensors = self.read(tmp_path)
        assert ops == [op for step in steps for op in step.ops]
        for found, expected in zip(tensors, [tensor for step in steps for tensor in step.tensors], strict=True):
            assert found == expected

    def test_elements_come_back_to_the_bit(self, tmp_path: Path) -> None:
        step = sample_step(3)
        self.write(tmp_path, [step])
        _, tensors = self.read(tmp_path)
        for found, expected in zip(tensors, step.tensors, strict=True):
            assert (found.payload is None) == (expected.payload is None), expected.name
            if found.payload is not None and expected.payload is not None:
                assert_same_bits(found.payload.to_host(), expected.payload.to_host())

    def test_statistics_come_back_in_full_precision(self, tmp_path: Path) -> None:
        step = sample_step(5)
        self.write(tmp_path, [step])
        _, tensors = self.read(tmp_path)
        for found, expected in zip(tensors, step.tensors, strict=True):
            assert dict(found.statistics).keys() == dict(expected.statistics).keys()
            for name, value in expected.statistics.items():
                np.testing.assert_equal(found.statistics[name], value)

    def test_executions_of_one_name_in_a_step_stay_apart(self, tmp_path: Path) -> None:
        step = sample_step(0)
        self.write(tmp_path, [step])
        ops, _ = self.read(tmp_path)
        assert [op.occurrence for op in ops if op.op_name.endswith("MatMul-op90")] == [0, 1, 2]

    def test_reading_twice_gives_the_same(self, tmp_path: Path) -> None:
        self.write(tmp_path, [sample_step(0)])
        assert self.read(tmp_path) == self.read(tmp_path)

    def test_steps_need_not_begin_at_zero_nor_follow_each_other(self, tmp_path: Path) -> None:
        self.write(tmp_path, [sample_step(2), sample_step(100)])
        ops, _ = self.read(tmp_path)
        assert sorted({op.step for op in ops}) == [2, 100]

    def test_several_graphs_in_a_step(self, tmp_path: Path) -> None:
        steps = [sample_step(0, graph_id=0), sample_step(0, graph_id=1)]
        self.write(tmp_path, steps)
        ops, tensors = self.read(tmp_path)
        assert [op.graph_id for op in ops] == [op.graph_id for step in steps for op in step.ops]
        assert len(tensors) == sum(len(step.tensors) for step in steps)


def assert_same_bits(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """The same type, shape and bytes: NaN equals NaN, 0.0 does not equal -0.0."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()
