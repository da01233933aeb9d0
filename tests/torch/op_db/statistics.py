"""Takes the records of a capture in memory, and compares their statistics with numpy in float64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from opdump.layouts.base import RankWriter
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord, record_of


class CheckedInMemory(RankWriter):
    """The writing half of a layout. It writes nothing: each record is checked and dropped."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._elements: dict[tuple[int, str, int], npt.NDArray[Any]] = {}

    def write_payload(self, record: TensorRecord) -> str:
        assert record.payload is not None
        self._elements[_key(record)] = record.payload.to_host()
        return ""

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        self.counts["operators"] += len(ops) + sum(counted.values())
        for record in map(record_of, tensors):
            elements = self._elements.get(_key(record))
            if elements is None:
                self.counts[f"tensors without data: {record.skip}"] += 1
                if not record.skip:
                    self.wrong.append(f"{record.name}: no elements and no reason")
            elif np.iscomplexobj(elements):
                self.counts["complex tensors"] += 1
                if record.statistics:
                    self.wrong.append(f"{record.name}: statistics of complex numbers")
            elif record.statistics:
                self.counts["statistics"] += 1
                self._check(record, elements)
            else:
                self.counts[f"elements alone: {record.dtype}"] += 1
        self._elements.clear()

    def _check(self, record: TensorRecord, elements: npt.NDArray[Any]) -> None:
        for name, (wanted, size) in float64_statistics(elements).items():
            got = float(record.statistics[name])
            if got != wanted and not (np.isnan(got) and np.isnan(wanted)) and not abs(got - wanted) <= 1e-12 * size:
                self.wrong.append(
                    f"{record.name} ({record.dtype} {record.shape}): {name} is {got!r}, numpy has {wanted!r}"
                )


def float64_statistics(elements: npt.NDArray[Any]) -> dict[str, tuple[float, float]]:
    """Each statistic, and the magnitude of the terms that its rounding error is relative to (0: it must be exact)."""
    with np.errstate(all="ignore"):
        x = elements.astype(np.float64).reshape(-1)
        size = float(np.abs(x).sum())
        norm = float(np.sqrt(np.square(x).sum()))
        return {
            "max": (float(x.max()), 0),
            "min": (float(x.min()), 0),
            "avg": (float(x.mean()), size / x.size),
            "l2norm": (norm, norm),
            "count": (x.size, 0),
            "nan count": (int(np.count_nonzero(np.isnan(x))), 0),
            "positive inf count": (int(np.count_nonzero(np.isposinf(x))), 0),
            "negative inf count": (int(np.count_nonzero(np.isneginf(x))), 0),
            "zero count": (int(np.count_nonzero(x == 0)), 0),
            "negative zero count": (int(np.count_nonzero(x < 0)), 0),
            "positive zero count": (int(np.count_nonzero(x > 0)), 0),
        }


def _key(record: TensorRecord) -> tuple[int, str, int]:
    return record.op.timestamp, record.io, record.slot
