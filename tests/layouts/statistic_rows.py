"""Rows of statistic.csv, one string each."""

from __future__ import annotations

from collections.abc import Iterable

from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder
from opdump.records import FiledTensor, OpRecord


def rows_of(encoder: StatisticEncoder, op: OpRecord, op_name: str, tensors: Iterable[FiledTensor]) -> list[str]:
    """The rows of the tensors of one operator, which the file calls `op_name`; tensors without statistics have none."""
    start = encoder.start(op, op_name)
    texts = (encoder.text([start], [tensor]) for tensor in tensors if not tensor.skip)
    return [text.decode() for text in texts if text]
