"""Small ONNX models that are run, dumped and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import opdump
import opdump.onnx
from opdump.comparison.result import Result

Array = npt.NDArray[Any]


def dumped(model: onnx.ModelProto, feeds: Mapping[str, Any], path: Path, **settings: Any) -> list[Array]:
    """The outputs of a run that records elements; keywords go to `opdump.onnx.session`."""
    with opdump.onnx.session(
        model, path=str(path), **{"saved_data": "full", "layout": "packed", **settings}
    ) as session:
        return list(session.run(None, feeds))


def compared(
    path: Path,
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    feeds: Mapping[str, Any],
    *,
    levels: Sequence[str] = ("disable", "disable"),
    **settings: Any,
) -> Result:
    """The result of comparing the runs of two models."""
    for name, model, level in (("a", before, levels[0]), ("b", after, levels[1])):
        dumped(model, feeds, path / name, optimize=level, **settings)
    return opdump.compare(path / "a", path / "b")


def off(one: Sequence[Array], other: Sequence[Array]) -> float:
    """The distance between two outputs, relative to the largest value."""
    apart = 0.0
    for before, after in zip(one, other, strict=True):
        if before.dtype.kind == "f":
            scale = max(float(np.abs(before).max(initial=0.0)), 1e-30)
            apart = max(apart, float(np.abs(before.astype(np.float64) - after).max(initial=0.0)) / scale)
        elif not np.array_equal(before, after):
            apart = 1.0
    return apart
