"""Measures how far two tensors are apart: by their elements, by their statistics, and in different layouts."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdump.kernels import PairMetrics, compare_pair
from opdump.records import StatisticValue, TensorRecord
from opdump.statistics import OWN, SummaryStatistics

Array = NDArray[Any]

# Fill values of masks, such as -1e9 for excluded elements. A fill dominates every sum of squares, so comparisons leave it out like the minus
# infinity that it stands for.

LEAST_FILL: Final = 1e4
"""A fill has at least this magnitude, and at least this ratio to all other elements."""
_ROUNDING_OF_FILL: Final = 2.0**-20
"""The largest relative difference of two fills that are left out: a few roundings of float32."""


def fills_of(values: Array) -> NDArray[np.bool_] | None:
    """Return which elements have the fill value of a mask; None if there is none, for example if all elements are NaN or the array is empty.

    It is the finite value of largest magnitude, occurs at least twice, and is far larger than all others. Filled elements may differ from it
    slightly: it was added to ordinary elements (an additive mask), or such elements were subtracted (the maximum, in a softmax).
    """
    if values.dtype.kind != "f" or values.size < 3:
        return None
    most, least = float(values.max()), float(values.min())
    if not (math.isfinite(most) and math.isfinite(least)):
        finite = values[np.isfinite(values)]
        if finite.size < 3:
            return None
        most, least = float(finite.max()), float(finite.min())
    fill = most if most >= -least else least
    if abs(fill) < LEAST_FILL or most == least:
        return None
    far = abs(fill) * (1 - 1 / LEAST_FILL)
    fills = (values >= far if fill > 0 else values <= -far) & np.isfinite(values)
    others = values[~fills & np.isfinite(values)]
    if np.count_nonzero(fills) < 2 or not others.size or float(np.abs(others).max()) * LEAST_FILL > abs(fill):
        return None
    return fills


def without_fill(one: Array, other: Array) -> tuple[Array, Array]:
    """Return 1-D arrays of two tensors of the same shape, without the elements where both have the fill value of the first.

    If there is no fill value or nothing else, the arrays are returned unchanged.
    """
    fills = fills_of(one)
    if fills is None or other.dtype.kind != "f":
        return one, other
    with np.errstate(invalid="ignore"):
        kept = ~fills | ~(np.abs(other - one) <= np.abs(one) * _ROUNDING_OF_FILL)
    return (one[kept], other[kept]) if kept.any() else (one, other)


def fill_as_infinity(values: Array) -> Array:
    """Replace the fill value of a mask by an infinity of the same sign. Without a fill value, the array is returned unchanged."""
    fills = fills_of(values)
    return values if fills is None else np.where(fills, np.copysign(math.inf, values), values)


def is_fill(end: float, other_end: float) -> bool:
    """Whether an extreme (maximum or minimum) is a fill value, given the other extreme."""
    return abs(end) >= LEAST_FILL * max(1.0, abs(other_end))


# The distance of two tensors by their elements.

_EPSILONS: Final = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}


def epsilon_of(dtype: str) -> float:
    """The distance from 1 to the next larger number of the type; 0 for exact types."""
    return _EPSILONS.get(dtype, 0.0)


def coarsest(records: Iterable[TensorRecord | None]) -> float:
    """The rounding of the narrowest type; 0 if all types are exact."""
    return max((epsilon_of(record.dtype) for record in records if record is not None), default=0.0)


def root_mean_square(values: Array) -> float:
    """The root mean square of the elements; 0 if there are none."""
    return (
        math.sqrt(float(np.mean(np.square(np.abs(values.astype(np.result_type(values, np.float64)))))))
        if values.size
        else 0.0
    )


_LARGEST: Final = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "complex64": 3.4028234663852886e38,
    "complex128": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
}


def largest_of(dtype: str) -> float:
    """The largest finite number of the type; infinite for exact types."""
    return _LARGEST.get(dtype, math.inf)


@dataclass(frozen=True, slots=True)
class Difference:
    """The distance of two tensors.

    `relative` is the root mean square of the difference, divided by that of the first tensor. It is infinite if the first is zero, if NaN or
    infinities differ, or if the shapes differ. `peak` is the largest difference, divided by the largest element of the first. For integers and
    booleans, `relative` is the share of elements that differ.
    """

    relative: float
    peak: float
    absolute: float
    """The root mean square of the difference."""

    def __bool__(self) -> bool:
        return self.relative > 0


def in_roundings(relative: float, epsilon: float) -> float:
    """A relative difference in units of rounding; infinite for types that are exact."""
    return relative / epsilon if epsilon else math.inf


_SQUARES_LEAST: Final = 1e-150
_SQUARES_MOST: Final = 1e150
"""Sums of squares of numbers in this range neither overflow nor underflow in float64."""
_NONE: Final = Difference(0.0, 0.0, 0.0)
WHOLLY: Final = Difference(math.inf, math.inf, math.inf)
"""The distance of tensors that have nothing in common."""


def difference(one: Array, other: Array) -> Difference:
    """Return the distance of `other` from `one`. NaN, infinities and fill values that both have in the same position are left out."""
    if one.shape != other.shape:
        return WHOLLY
    one, other = comparable(one), comparable(other)
    found = compare_pair(one, other)
    if not found.different:
        return _NONE
    if found.peak_a >= LEAST_FILL:
        kept = without_fill(one, other)
        found = found if kept[0] is one else compare_pair(*kept)
        one, other = kept
    if one.dtype.kind in "biu" and other.dtype.kind in "biu":
        share = found.different / one.size
        return Difference(share, 1.0, share)
    if not are_finite(found):
        return WHOLLY
    top = max(found.peak_a, found.peak_b)
    unit = 1.0
    if not _SQUARES_LEAST < found.max_absolute <= top < _SQUARES_MOST:
        # Squares or differences exceed the range of float64, so both are scaled by the largest element.
        unit = top
        found = compare_pair(one / unit, other / unit)
    parts = 2 if "c" in (one.dtype.kind, other.dtype.kind) else 1
    return Difference(
        found.relative_l2 or math.ulp(0.0),  # it underflows if the difference is too far below the largest element
        found.max_absolute / found.peak_a if found.peak_a else math.inf,
        found.rmse * unit * math.sqrt(parts),
    )


def are_finite(found: PairMetrics) -> bool:
    """Whether both tensors are finite in the elements that differ."""
    return not (found.nan_a or found.nan_b or found.inf_a or found.inf_b)


def comparable(array: Array) -> Array:
    """Convert types that the kernels cannot read to float64."""
    return array if array.dtype.kind in "biufc" and array.dtype.name != "float128" else array.astype(np.float64)


def unshaped_difference(one: Array, other: Array) -> Difference:
    """The difference of two tensors with the same number of elements in row-major order, whatever their shapes."""
    return difference(one, other.reshape(one.shape) if one.size == other.size else other)


def is_permutation(one: Array, other: Array) -> bool:
    """Whether both tensors have the same elements in any order."""
    return (
        one.size == other.size
        and one.dtype == other.dtype
        and np.array_equal(np.sort(one, axis=None), np.sort(other, axis=None))
    )


def equal_elements(one: Array, other: Array) -> NDArray[np.bool_]:
    """Whether each pair of elements is equal; NaN equals NaN."""
    equal = np.asarray(one == other)
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        equal = equal | (np.isnan(one) & np.isnan(other))
    return equal


def same_bits(one: Array, other: Array) -> bool:
    """Whether both have the same shape, dtype and elements; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind in "fc":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))


def digest_of(values: Array) -> bytes:
    """A digest of the elements in row-major order, whatever the shape."""
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=16).digest()


# Tensors in memory.


def extent_of(record: TensorRecord) -> int:
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return where.offset
    return where.offset + 1 + sum((size - 1) * stride for size, stride in zip(record.shape, where.strides, strict=True))


def view_of(buffer: Array, record: TensorRecord) -> Array:
    """The view of a tensor into the contents of its storage."""
    where = record.memory
    assert where is not None
    if 0 in record.shape:
        return np.zeros(record.shape, buffer.dtype)
    (step,) = buffer.strides
    strides = [stride * step for stride in where.strides]
    if step == buffer.itemsize:  # takes a tenth of the time of `as_strided`
        view: Array = np.ndarray(record.shape, buffer.dtype, buffer, where.offset * step, strides)
        return view
    return np.lib.stride_tricks.as_strided(
        buffer[where.offset :], record.shape, strides, writeable=buffer.flags.writeable
    )


def in_storage_order(values: Array, record: TensorRecord) -> Array | None:
    """The elements in memory order; None if the tensor is empty or has gaps, or its memory is not recorded."""
    where = record.memory
    if where is None or values.size == 0:
        return None
    axes = sorted(range(values.ndim), key=lambda axis: -where.strides[axis])
    size = 1
    for axis in reversed(axes):
        if values.shape[axis] != 1 and where.strides[axis] != size:
            return None
        size *= values.shape[axis]
    flat: Array = values.transpose(axes).reshape(-1)
    return flat


def was_changed(made: TensorRecord, read: TensorRecord) -> bool:
    """Whether an input differs from what its maker wrote, although the framework counted no write since. False if unknown.

    Elements are compared, or statistics if the input covers all of the output.
    """
    before, after = made.memory, read.memory
    if before is None or after is None or made.dtype != read.dtype:
        return False
    if (before.storage, before.version) != (after.storage, after.version):
        return False
    if has_elements(made) and has_elements(read):
        flat = in_storage_order(made.numpy(), made)
        if flat is None or after.offset < before.offset or extent_of(read) > before.offset + len(flat):
            return False
        held = view_of(flat, replace(read, memory=replace(after, offset=after.offset - before.offset)))
        return not equal_elements(held, read.numpy()).all()
    is_all = before == after and math.prod(made.shape) == math.prod(read.shape)
    return is_all and has_statistics(made) and has_statistics(read) and not same_statistics(made, read)


# The distance of two tensors by their statistics.

DIFFERS: Final = 1e-3
"""If statistics are further apart, relative to the root mean square of the elements, the tensors are different."""
NAMES: Final = ("max", "min", "avg", "l2norm")
_DIGESTS: Final = frozenset(name for name, each in OWN.items() if each.of_bytes is not None)
Numbers = tuple[float | None, ...]
"""The statistics of a tensor by `NAMES`; None for a missing one."""


def apart(one: TensorRecord, other: TensorRecord) -> float | None:
    """The distance of the statistics, relative to the root mean square of the elements of the first tensor. It is infinite if the sizes differ,
    and None if the tensors have no statistic in common.
    """
    size = math.prod(one.shape)
    if size != math.prod(other.shape):
        return math.inf
    return numbers_apart(numbers_of(one), numbers_of(other), size)


def numbers_of(record: TensorRecord) -> Numbers:
    """Return the statistics to compare."""
    statistics = record.statistics
    if type(statistics) is SummaryStatistics:
        found = statistics.summary
        average = found.sum / found.count if found.count else math.nan
        return found.max, found.min, average, math.sqrt(found.sum_squares)
    return tuple(None if (value := statistics.get(name)) is None else float(value) for name in NAMES)


def numbers_apart(before: Numbers, after: Numbers, size: int) -> float | None:
    """The distance (`apart`) of two tensors with `size` elements. If both have the same fill value as one extreme, only the other is compared."""
    beside_fill = _apart_beside_fill(before, after)
    if beside_fill is not None:
        return beside_fill
    worst: float | None = None
    for place, (a, b) in enumerate(zip(before, after, strict=True)):
        if a is None or b is None:
            continue
        worst = worst or 0.0
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        distance = abs(a - b) / (math.sqrt(size) if place == len(NAMES) - 1 else 1.0)
        if not math.isfinite(distance):
            return math.inf
        scale = _scale(before, size)
        worst = max(worst, distance / scale if scale else math.inf)
    return worst


def _apart_beside_fill(before: Numbers, after: Numbers) -> float | None:
    """The distance of one extreme, relative to itself, if both tensors have the same fill value as the other extreme; None otherwise."""
    for end, other in ((1, 0), (0, 1)):
        fill, mine, its = before[end], before[other], after[other]
        if fill is None or fill != after[end] or mine is None or its is None or not is_fill(fill, mine):
            continue
        if math.isfinite(fill) and math.isfinite(mine) and math.isfinite(its):
            return 0.0 if mine == its else abs(mine - its) / abs(mine) if mine else math.inf
    return None


def _scale(numbers: Numbers, size: int) -> float:
    """The root mean square of the elements. If the norm is unknown or infinite, the largest finite extreme."""
    most, least, _, norm = numbers
    if norm is not None and math.isfinite(norm):
        return norm / math.sqrt(size) if size else 0.0
    ends = (abs(end) for end in (most, least) if end is not None)
    return max((end for end in ends if math.isfinite(end)), default=0.0)


def same_statistics(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether both have the same statistics and digests; NaN equals NaN."""
    first, second = one.statistics, other.statistics
    return first == second or (
        first.keys() == second.keys() and all(_same(first[name], second[name]) for name in first)
    )


def has_elements(record: TensorRecord) -> bool:
    """Whether the dump has all elements of the tensor, not just a sample."""
    return record.payload is not None and not record.sample


def has_statistics(record: TensorRecord) -> bool:
    """Whether the tensor was captured and its norm is known."""
    return not record.skip and "l2norm" in record.statistics


def has_same_contents(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether two recorded tensors have the same elements, or if these were not recorded, the same statistics."""
    if has_elements(one) and has_elements(other):
        return one.shape == other.shape and same_bits(one.numpy(), other.numpy())
    return one.shape == other.shape and same_statistics(one, other)


def differ_only_in_digests(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether tensors of the same shape and dtype differ in their digests and in no other statistic, for example because of a different order.

    Tensors of zeros are excluded, because the sign of a zero changes the digest but no result.
    """
    first, second = one.statistics, other.statistics
    if (one.shape, one.dtype) != (other.shape, other.dtype) or first.get("max") == first.get("min") == 0:
        return False
    apart = {name for name in first.keys() & second.keys() if not _same(first[name], second[name])}
    return bool(apart) and apart <= _DIGESTS


def _same(one: StatisticValue, other: StatisticValue) -> bool:
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return both_nan or one == other


# Finds the layout that relates two tensors of different frameworks: NCHW and NHWC, transposed weights, heads before or after positions.

_MOST_AXES: Final = 5
"""Limit for permuted axes of more than one element: 120 orders."""
_SAMPLES: Final = 64
_NO_NEARER: Final = 1e-5
"""Below this difference the search stops, because any other order is much further off."""


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Converts a tensor of B to A's layout: pad, reshape to `start`, transpose by `axes`, reshape to `end`, cut."""

    start: tuple[int, ...]
    axes: tuple[int, ...]
    end: tuple[int, ...]
    padded: tuple[int, ...] = ()
    """The shape to which B's tensor is first padded with zeros at the end of each axis; empty if it is not."""
    cut: tuple[int, ...] = ()
    """The shape of the leading part that is kept at the end; empty if all is."""

    def apply(self, other: Array) -> Array:
        """Return B's tensor in A's layout."""
        if self.padded:
            other = np.pad(other, [(0, size - own) for size, own in zip(self.padded, other.shape, strict=True)])
        moved: Array = other.reshape(self.start).transpose(self.axes).reshape(self.end)
        return moved[tuple(map(slice, self.cut))] if self.cut else moved

    def turned(self, shape: tuple[int, ...]) -> TensorLayout:
        """Return the inverse: A's tensor to B's layout. `shape` is that of B's tensor."""
        axes = tuple(self.axes.index(axis) for axis in range(len(self.axes)))
        start = tuple(self.start[axis] for axis in self.axes)
        cut, padded = (shape, self.padded) if self.padded else ((), shape)
        return TensorLayout(start, axes, padded, self.end if self.cut else (), cut)


_IMAGE_AXES: Final = 4
_BLOCKS: Final = (8, 16)
"""Sizes of the blocks of channels that kernels for a processor use inside (`nchwc`)."""


def find_layout(one: Array, other: Array, *, within: float) -> tuple[TensorLayout, float] | None:
    """Return the layout in which B's elements are nearest to A's, and the remaining relative difference; None if it exceeds `within`."""
    best: tuple[TensorLayout, float] | None = None
    picks = np.unique(np.linspace(0, one.size - 1, min(one.size, _SAMPLES)).astype(np.int64))
    sample = one.reshape(-1)[picks]
    for layout in _layouts(one.shape, other.shape):
        moved = other.reshape(layout.start).transpose(layout.axes)
        if best is not None or one.size > _SAMPLES:
            sampled = moved[np.unravel_index(picks, moved.shape)] if moved.shape else moved.reshape(-1)
            if difference(sample, sampled).relative > 10 * within:
                continue
        found = difference(one, moved.reshape(layout.end)).relative
        if found <= within and (best is None or found < best[1]):
            best = layout, found
            if found < _NO_NEARER:
                break
    return best


_CLEARLY_NEARER: Final = 0.5
"""Tensors of one shape have the same layout unless another one brings them nearer by this factor."""


def likely_layout(one: Array, other: Array) -> tuple[TensorLayout, float] | None:
    """Return the layout in which B's elements are nearest to A's, and the relative difference, however large; None if no layout fits."""
    best = find_layout(one, other, within=math.inf)
    if best is not None and one.shape == other.shape:
        # Among very different values, the nearest of many layouts is chance.
        as_it_is = difference(one, other).relative
        if best[1] > _CLEARLY_NEARER * as_it_is:
            return TensorLayout(one.shape, tuple(range(one.ndim)), one.shape), as_it_is
    return best


def _layouts(one: tuple[int, ...], other: tuple[int, ...]) -> Iterator[TensorLayout]:
    """Yield the row-major order, the permutations of B's axes, the inverse permutations of A's axes, and channels in blocks in B or in A."""
    long_a, long_b = tuple(size for size in one if size > 1), tuple(size for size in other if size > 1)
    yield TensorLayout(long_b, tuple(range(len(long_b))), one)
    if len(long_b) <= _MOST_AXES:
        for axes in itertools.islice(itertools.permutations(range(len(long_b))), 1, None):
            yield TensorLayout(long_b, axes, one)
    if len(long_a) <= _MOST_AXES and long_a != long_b:
        for axes in itertools.islice(itertools.permutations(range(len(long_a))), 1, None):
            inverse = tuple(axes.index(axis) for axis in range(len(axes)))
            yield TensorLayout(tuple(long_a[axis] for axis in axes), inverse, one)
    if one == other:
        yield from blocked_layouts(one, in_b=True)
        yield from blocked_layouts(one, in_b=False)


def blocked_layouts(shape: tuple[int, ...], *, in_b: bool) -> Iterator[TensorLayout]:
    """Yield the layouts of an image (NCHW) whose channels are in blocks in B, or else in A; none for other tensors."""
    if len(shape) != _IMAGE_AXES:
        return
    batch, channels, *sizes = shape
    for block in (each for each in _BLOCKS if channels % each == 0):
        if in_b:
            yield TensorLayout((batch, channels // block, *sizes, block), (0, 1, 4, 2, 3), shape)
        else:
            yield TensorLayout((batch, channels // block, block, *sizes), (0, 1, 3, 4, 2), shape)


# Searches for the elements of a tensor in other tensors, because one program may have in parts what another has as a whole. Among many
# elements, a near one is found by chance. In that case the elements must also be in the order of the tensor: by rows, by columns, or in
# sequence.

_BY_CHANCE: Final = 1e-6
"""Matches with a lower probability are not chance."""
_STEPS: Final = 4
"""Number of different distances between consecutive elements that still count as order: to the next element, row or part."""
_MOST: Final = 0.5
"""The share of elements that must be in order. The others are at the ends of parts, or rounded."""


class Elements:
    """The elements of some tensors, each tensor with the tolerance of its elements."""

    def __init__(self, tensors: Sequence[tuple[Array, float]]) -> None:
        flat = np.concatenate([values.reshape(-1) for values, _ in tensors] or [np.zeros(0)])
        self._order = np.argsort(flat)
        self._values = flat[self._order]
        self._ends = np.cumsum([values.size for values, _ in tensors])
        self._tolerances = np.array([tolerance for _, tolerance in tensors])

    def have(self, values: Array, tolerance: float, *, is_noise: bool = False) -> bool:
        """Whether all elements of a tensor are found, and not by chance. For noise, it is enough that each has a near element."""
        own = values.reshape(-1)
        if not len(self._values):
            return False
        near, places = self._nearest(own, tolerance)
        return bool(near.all()) and (is_noise or not self._by_chance(own, tolerance) or _are_in_order(places))

    def _nearest(self, own: Array, tolerance: float) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Whether each element has a near one, and the position of the nearest."""
        after = np.searchsorted(self._values, own).clip(max=len(self._values) - 1)
        (near, apart), (near_before, apart_before) = (
            self._near(own, at, tolerance) for at in (after, (after - 1).clip(min=0))
        )
        is_before = near_before & (~near | (apart_before < apart))
        return near | near_before, self._order[np.where(is_before, after - 1, after).clip(min=0)]

    def _near(self, own: Array, at: NDArray[np.int64], tolerance: float) -> tuple[NDArray[np.bool_], Array]:
        found = self._values[at]
        allowed = self._tolerances[np.searchsorted(self._ends, self._order[at], side="right")]
        with np.errstate(invalid="ignore"):
            apart = np.abs(found - own)
            near = (apart <= tolerance + allowed) | (found == own) | (np.isnan(own) & np.isnan(self._values[-1]))
        return near, apart

    def _by_chance(self, own: Array, tolerance: float) -> bool:
        """Whether other numbers in the same range, the midpoints between the elements, would be found as well."""
        distinct = np.unique(own[np.isfinite(own)])
        if len(distinct) < 2:
            return True
        share = float(np.mean(self._nearest((distinct[1:] + distinct[:-1]) / 2, tolerance)[0]))
        return share > 0 and len(distinct) * math.log(share) > math.log(_BY_CHANCE)


def _are_in_order(places: NDArray[np.int64]) -> bool:
    """Whether most positions follow each other at one of a few distances."""
    steps, counts = np.unique(np.diff(places), return_counts=True)
    return int(np.sort(counts)[-_STEPS:].sum()) >= _MOST * (len(places) - 1) if len(steps) else True
