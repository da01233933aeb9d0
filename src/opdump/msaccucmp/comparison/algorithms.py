"""The ten built-in measures of the difference between two tensors, in float32 like the original.

No measure treats NaN and infinities specially: two equal infinities produce `nan`, and the relative errors leave out a NaN on the
right. See docs/msaccucmp.md#algorithms.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

NOT_A_NUMBER: Final = "NaN"
"""The cell if there is no result."""
SCALAR: Final = "This tensor is scalar."
_EPSILON: Final = float(np.finfo(np.float64).eps)
_SMALLEST_DENSITY: Final = np.finfo(np.float32).eps

_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """Two one-dimensional tensors with equal numbers of elements, their shape, and their files."""

    mine: _Array
    golden: _Array
    shape: tuple[int, ...]
    my_path: str
    golden_path: str


Result = tuple[str, str]
"""The text of the cell, and a reason if there is one."""
Algorithm = Callable[[Compared], Result]


def _printed(value: Any) -> Result:
    return f"{value:.6f}", ""


def _cosine_similarity(pair: Compared) -> Result:
    if sum(pair.shape) == len(pair.shape):  # all ones; also 0 and 2
        return "1.000000", SCALAR
    my_norm, golden_norm = (np.sqrt(np.sum(np.square(values))) for values in (pair.mine, pair.golden))
    if my_norm <= _EPSILON and golden_norm <= _EPSILON:
        return "1.0", ""
    for norm, path in ((my_norm, pair.my_path), (golden_norm, pair.golden_path)):
        if np.sqrt(norm) <= _EPSILON:
            return NOT_A_NUMBER, f"Cannot compare by Cosine Similarity. All the data is zero in {path}."
    cosine = np.sum((pair.mine / my_norm) * (pair.golden / golden_norm))
    return _printed(1.0 if cosine > 1 else cosine)


def _max_absolute_error(pair: Compared) -> Result:
    return _printed(np.max(np.abs(pair.mine - pair.golden)))


def _relative_errors(pair: Compared) -> _Array:
    """|m / g - 1|, and 0 if g counts as 0 or is NaN."""
    counted = np.abs(pair.golden) > _EPSILON
    errors = np.zeros_like(pair.golden)
    errors[counted] = np.abs(pair.mine[counted] / pair.golden[counted] - 1)
    return errors


def _accumulated_relative_error(pair: Compared) -> Result:
    return _printed(np.sum(_relative_errors(pair)))


def _relative_euclidean_distance(pair: Compared) -> Result:
    total = np.sum(np.square(pair.golden))
    if np.sqrt(total) <= _EPSILON:
        return _printed(0.0)
    return _printed(np.sqrt(np.sum(np.square(pair.mine - pair.golden)) / total))


def _density(values: _Array) -> _Array:
    largest, smallest = np.max(values), np.min(values)
    if largest != smallest:
        values = (values - smallest) / (largest - smallest)
    values = np.maximum(values, _SMALLEST_DENSITY)
    density: _Array = values / np.sum(values)
    return density


def _kullback_leibler_divergence(pair: Compared) -> Result:
    mine, golden = _density(pair.mine), _density(pair.golden)
    return _printed(np.sum(mine * np.log(mine / golden)))


def _standard_deviation(pair: Compared) -> Result:
    texts = []
    for values in (pair.mine, pair.golden):
        wide = values.astype(np.float64)
        numbers = [0.0 if abs(number) < 0.001 else number for number in (np.mean(wide), np.std(wide))]
        texts.append(f"({numbers[0]:.3f};{numbers[1]:.3f})")
    return ",".join(texts), ""


def _mean_absolute_error(pair: Compared) -> Result:
    return _printed(np.mean(np.abs(pair.mine - pair.golden)))


def _root_mean_square_error(pair: Compared) -> Result:
    return _printed(np.sqrt(np.mean(np.square(pair.mine - pair.golden))))


def _max_relative_error(pair: Compared) -> Result:
    return _printed(np.max(_relative_errors(pair)))


def _mean_relative_error(pair: Compared) -> Result:
    return _printed(np.mean(_relative_errors(pair)))


ALGORITHMS: Final[Mapping[str, Algorithm]] = MappingProxyType(
    {
        "CosineSimilarity": _cosine_similarity,
        "MaxAbsoluteError": _max_absolute_error,
        "AccumulatedRelativeError": _accumulated_relative_error,
        "RelativeEuclideanDistance": _relative_euclidean_distance,
        "KullbackLeiblerDivergence": _kullback_leibler_divergence,
        "StandardDeviation": _standard_deviation,
        "MeanAbsoluteError": _mean_absolute_error,
        "RootMeanSquareError": _root_mean_square_error,
        "MaxRelativeError": _max_relative_error,
        "MeanRelativeError": _mean_relative_error,
    }
)
"""By name, in the order of their numbers."""
_WITHOUT_BOOLEANS: Final = frozenset(ALGORITHMS) - {"CosineSimilarity", "RelativeEuclideanDistance"}


def run_algorithm(name: str, algorithm: Algorithm, pair: Compared) -> Result:
    """The result of the algorithm; an exception becomes a reason, as in the original."""
    if pair.mine.dtype == np.bool_ and pair.golden.dtype == np.bool_ and name in _WITHOUT_BOOLEANS:
        return NOT_A_NUMBER, f"Algorithm {name} does not support Boolean types."
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns about means of empty arrays
            return algorithm(pair)
    except Exception as error:  # noqa: BLE001  # a custom algorithm may raise anything
        return NOT_A_NUMBER, f"Failed to execute 'compare' in '{name}'. {error}"
