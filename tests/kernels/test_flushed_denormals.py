"""The caller's floating-point mode, which PyTorch can change, does not affect the kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdump import kernels
from tests.kernels.tensors import make


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_flushed_denormals_of_the_caller_change_nothing(instruction_set: str, dtype: str) -> None:
    if instruction_set == "numpy":
        return  # numpy's own passes follow the caller's mode
    array: Any = make(dtype, "denormal", 1000)
    before, pair = kernels.summarise(array), kernels.compare_pair(array, -array)
    assert before.positive > 0
    assert pair.max_absolute > 0
    if torch.set_flush_denormal(True):
        try:
            flushed, flushed_pair = kernels.summarise(array), kernels.compare_pair(array, -array)
            still_flushing = float(torch.tensor(1e-310, dtype=torch.float64) * 1) == 0
        finally:
            torch.set_flush_denormal(False)
        assert flushed == before
        # Statistics derived from the totals are computed in Python, in the caller's mode.
        assert (flushed_pair.different, flushed_pair.max_absolute, flushed_pair.ulps) == (
            pair.different,
            pair.max_absolute,
            pair.ulps,
        )
        assert still_flushing
