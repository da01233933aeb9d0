"""Runs the algorithms on two tensors with equal numbers of elements, in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from opdump.dump_file import DumpTensor
from opdump.msaccucmp.comparison.algorithm_choice import ChosenAlgorithms
from opdump.msaccucmp.comparison.algorithms import NOT_A_NUMBER, Compared, run_algorithm
from opdump.msaccucmp.exit_codes import AbortError
from opdump.msaccucmp.journal import log

_HALF: Final = 2
"""The number of float16 in dump files."""
_LARGEST_HALF: Final = 65504
_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """The cells of the algorithms, and the reasons."""

    results: tuple[str, ...]
    reasons: tuple[str, ...]


def measure(
    mine: _Array, golden: _Array, shape: tuple[int, ...], paths: tuple[str, str], chosen: ChosenAlgorithms
) -> Measured:
    """Compare two flat arrays; booleans stay booleans if both sides are, and imaginary parts are dropped."""
    if not (mine.dtype == np.bool_ and golden.dtype == np.bool_):
        mine, golden = as_floats(mine), as_floats(golden)
    for array, path in zip((mine, golden), paths, strict=True):
        if not array.size:
            log("WARNING", f"{path} has no elements")
    pair = Compared(mine, golden, shape, *paths)
    found = [run_algorithm(name, function, pair) for name, function in chosen.functions.items()]
    for _, reason in found:
        if reason:
            log("WARNING", reason)
    return Measured(tuple(result for result, _ in found), tuple(reason for _, reason in found))


def as_floats(array: _Array) -> _Array:
    with np.errstate(all="ignore"):
        return (array.real if np.iscomplexobj(array) else array).astype(np.float32)


def overflow_cell(tensor: DumpTensor, array: _Array) -> str:
    """YES if a float16 reaches its largest number, which is a valid one; other types are not checked.

    Raises AbortError if there are no elements.
    """
    if tensor.data_type != _HALF:
        return NOT_A_NUMBER
    if not array.size:
        raise AbortError(f"{tensor.name} has no elements, so it has no largest one")
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(array))
    return "YES" if largest >= _LARGEST_HALF else "NO"
