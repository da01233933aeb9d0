"""The contract of every adapter, for TensorFlow's eager operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from opdump.adapters.base import Adapter
from opdump.adapters.tensorflow.adapter import ADAPTER
from opdump.testing import AdapterTests

Array = npt.NDArray[Any]


class TestTensorflowAdapter(AdapterTests):
    modes = ("data", "overflow")

    def adapter(self) -> Adapter:
        return ADAPTER

    def tensor(self, array: Array) -> Any:
        return tf.constant(array)

    def array(self, tensor: Any) -> Array:
        return np.asarray(tensor.numpy())

    def multiply(self, one: Any, other: Any) -> Any:
        if one.dtype == tf.bool:
            return tf.raw_ops.LogicalAnd(x=one, y=other)
        return tf.raw_ops.Mul(x=one, y=other)

    def test_an_update_of_a_variable_has_its_values_before_and_after_and_what_it_adds(self, tmp_path: Path) -> None:
        """The value of a variable is in the slot of its handle."""
        before, addend = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
        variable = tf.Variable(before)
        with self.captured(tmp_path) as (clock, writer, _):
            value = variable.read_value()
            variable.assign_add(addend, read_value=False)
            variable.assign_add(addend, read_value=False)
            clock.manual_step()
        assert value.numpy().tolist() == before.tolist()
        by_type = [(record.op.op_type, record.io, record.slot, _elements(record)) for record in writer.tensors]
        assert by_type == [
            ("ReadVariableOp", "input", 0, before.tolist()),
            ("ReadVariableOp", "output", 0, before.tolist()),
            ("Identity", "input", 0, before.tolist()),
            ("Identity", "output", 0, before.tolist()),
            ("AssignAddVariableOp", "input", 0, before.tolist()),
            ("AssignAddVariableOp", "input", 1, addend.tolist()),
            ("AssignAddVariableOp", "output", 0, (before + 0.5).tolist()),
            ("AssignAddVariableOp", "input", 0, (before + 0.5).tolist()),
            ("AssignAddVariableOp", "input", 1, addend.tolist()),
            ("AssignAddVariableOp", "output", 0, (before + 1.0).tolist()),
        ]

    def test_a_reshape_leaves_data_since_tensorflow_has_no_views(self, tmp_path: Path) -> None:
        tensor = self.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        with self.captured(tmp_path) as (clock, writer, recorder):
            _reshaped(tensor)
            clock.manual_step()
        assert [(op.op_type, op.skip) for op in writer.ops] == [("Reshape", "")]
        assert writer.tensors[-1].shape == (6,)
        assert (recorder.tally.executed, recorder.tally.captured) == (1, 1)

    def test_an_operator_that_returns_a_handle_is_skipped_with_a_reason(self, tmp_path: Path) -> None:
        tensor = self.tensor(np.ones((2, 3), np.float32))
        with self.captured(tmp_path) as (clock, writer, recorder):
            for _ in range(3):
                _reshaped(self.multiply(tensor, tensor))
                tf.raw_ops.EmptyTensorList(element_shape=[2], max_num_elements=1, element_dtype=tf.float32)
                clock.manual_step()
        assert recorder.tally.executed == 9
        assert recorder.tally.executed == recorder.tally.captured + recorder.tally.skipped.total()
        assert {op.skip for op in writer.ops if op.op_type == "EmptyTensorList"} <= {"handle", ""}


def _reshaped(tensor: Any) -> Any:
    return tf.raw_ops.Reshape(tensor=tensor, shape=tf.constant([-1]))


def _elements(record: Any) -> list[float]:
    assert record.payload is not None
    found: list[float] = record.payload.to_host().tolist()
    return found
