"""The summary kernels: compiled and twin, for every instruction set, against each other and numpy; narrow types, and merged parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from opdump import kernels
from opdump.errors import UnsupportedDtypeError
from opdump.kernels import DTYPE_CODES, SUMMARY_FIELDS, Summary, SummaryTable, compare_summaries, reference, summarise
from opdump.kernels.pair_metrics import COUNTED
from opdump.statistics import SummaryStatistics, merge_statistics
from tests.kernels.tensors import COUNTS, FLOATS, KINDS, Array, as_dtype, as_float64, expected, make, ordinary


def row_of_twin(array: Array, dtype: str) -> NDArray[np.float64]:
    table = reference.SummaryTable()
    strides = tuple(stride // array.itemsize for stride in array.strides)
    table.add_strided(array.ctypes.data, DTYPE_CODES[dtype], array.shape, strides)
    row: NDArray[np.float64] = table.rows()[0]
    return row


def assert_same_bits(found: Summary, twin: NDArray[np.float64]) -> None:
    different = {
        field: (x, y)
        for field, x, y in zip(SUMMARY_FIELDS, found, twin.tolist(), strict=True)
        if x != y and not (math.isnan(x) and math.isnan(y))
    }
    assert not different
    assert [math.copysign(1, x) for x in found if not math.isnan(x)] == [
        math.copysign(1, x) for x in twin.tolist() if not math.isnan(x)
    ]


def assert_agrees_with_numpy(found: Summary, values: NDArray[np.float64]) -> None:
    right = expected(values)
    assert found[:9] == pytest.approx(right[:9], rel=0, abs=0, nan_ok=True)
    assert found.sum_squares == pytest.approx(right.sum_squares, rel=1e-12, abs=0, nan_ok=True)
    # If almost everything cancels, the remainder is only as precise as the rounding of the inputs.
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        magnitude = float(np.abs(finite).sum())
    slack = 1e-15 * magnitude if math.isfinite(magnitude) and math.isfinite(right.sum) else 0.0
    assert found.sum == pytest.approx(right.sum, rel=1e-12, abs=slack, nan_ok=True)


@pytest.mark.parametrize(("dtype", "case"), KINDS)
def test_native_and_twin_agree_to_the_bit(instruction_set: str, dtype: str, case: str, threads_restored: None) -> None:
    for count in COUNTS:
        array = make(dtype, case, count)
        twin = row_of_twin(array, dtype)
        for threads in (1, 3):
            kernels.set_threads(threads)
            assert_same_bits(kernels.summarise(array, dtype), twin)


@pytest.mark.parametrize(("dtype", "case"), KINDS)
def test_the_twin_agrees_with_numpy(dtype: str, case: str) -> None:
    for count in COUNTS:
        array = make(dtype, case, count)
        assert_agrees_with_numpy(Summary(*row_of_twin(array, dtype).tolist()), as_float64(array, dtype))


@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_an_empty_tensor_has_nothing_to_count_and_no_extremes(instruction_set: str, dtype: str) -> None:
    assert kernels.summarise(ordinary(dtype, 0), dtype) == Summary(0, 0, 0, 0, 0, 0, 0, -math.inf, math.inf, 0, 0)


def test_the_rules_of_the_statistics_on_a_tensor_written_by_hand(instruction_set: str) -> None:
    array = np.array([1.5, -2.0, 0.0, -0.0, math.inf, -math.inf, math.nan], np.float32)
    found = kernels.summarise(array)
    assert found[:7] == (7, 1, 1, 1, 2, 2, 2)
    assert all(math.isnan(x) for x in found[7:])
    assert kernels.summarise(array[:5]) == (5, 0, 1, 0, 2, 1, 2, math.inf, -2.0, math.inf, math.inf)
    assert kernels.summarise(array[:4]) == (4, 0, 0, 0, 2, 1, 1, 1.5, -2.0, -0.5, 6.25)


def test_opposite_infinities_sum_to_nan_but_their_squares_do_not(instruction_set: str) -> None:
    found = kernels.summarise(np.array([math.inf, 1.0, -math.inf]))
    assert math.isnan(found.sum)
    assert found[7:9] == (math.inf, -math.inf)
    assert found.sum_squares == math.inf


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_and_sums_are_never_negative_zero(instruction_set: str, dtype: str) -> None:
    found = kernels.summarise(as_dtype(np.full(20, -0.0), dtype), dtype)
    assert found[7:] == (0, 0, 0, 0)
    assert [math.copysign(1, x) for x in found[7:]] == [1, 1, 1, 1]


def test_any_byte_but_zero_is_true(instruction_set: str) -> None:
    found = kernels.summarise(np.array([0, 1, 2, 128, 255], np.uint8), "bool")
    assert found == (5, 0, 0, 0, 1, 0, 4, 1, 0, 4, 4)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_wide_integers_are_cast_to_double_before_anything_else(instruction_set: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    edges = [limits.min, limits.max, 2**53 + 1, 2**53 + 3, 2**62 + 2**8 + 1, 2**32, 2**32 - 1, 0, 1]
    array = np.array(edges * 5, dtype)
    found = kernels.summarise(array)
    assert_same_bits(found, row_of_twin(array, dtype))
    assert found.max == float(limits.max)
    assert found.sum == pytest.approx(math.fsum(float(x) for x in edges * 5), rel=1e-15)


def test_every_float16_is_read_right(instruction_set: str) -> None:
    everything = np.arange(65536, dtype=np.uint16).view(np.float16)
    for array in np.split(everything, 256):
        found = kernels.summarise(array)
        assert_same_bits(found, row_of_twin(array, "float16"))
        assert_agrees_with_numpy(found, array.astype(np.float64))


def test_a_sum_that_cancels_keeps_what_remains(instruction_set: str) -> None:
    generator = np.random.default_rng(7)
    half = (generator.standard_normal(100_000) * 1e6).astype(np.float32)
    array = generator.permutation(np.concatenate([half, -half, np.array([1e-3], np.float32)]))
    found = kernels.summarise(array)
    exact = float(np.float32(1e-3))
    assert abs(found.sum - exact) <= abs(float(array.astype(np.float64).sum()) - exact)
    assert found.sum == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_number_of_threads_changes_no_bit(dtype: str, threads: int, threads_restored: None) -> None:
    array = ordinary(dtype, 3_000_001)
    kernels.set_threads(1)
    alone = kernels.summarise(array)
    kernels.set_threads(threads)
    assert all(kernels.summarise(array) == alone for _ in range(20))


def test_instruction_sets_give_the_same_bits_for_strided_memory(instruction_set: str) -> None:
    array = np.asarray(ordinary("float32", 48 * 50 * 70)).reshape(48, 50, 70)[::2, 3:47, ::-3]
    assert_same_bits(kernels.summarise(array), row_of_twin(array, "float32"))


@st.composite
def views(draw: st.DrawFn) -> tuple[str, Array]:
    dtype = draw(st.sampled_from(sorted(DTYPE_CODES)))
    shape = draw(st.lists(st.integers(1, 13), min_size=0, max_size=5))
    array = ordinary(dtype, math.prod(shape)).reshape(shape)
    array = np.transpose(array, draw(st.permutations(range(len(shape)))))
    cuts = []
    for size in map(int, array.shape):
        start = draw(st.integers(0, size - 1))
        step = draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        cuts.append(slice(start, None, step))
    view = np.asarray(array[tuple(cuts)])
    if draw(st.booleans()):
        view = np.broadcast_to(view[..., None], (*view.shape, draw(st.integers(0, 5))))
    return dtype, view


@given(views())
@settings(max_examples=300, deadline=None)
def test_any_view_has_the_summary_of_its_copy(case: tuple[str, Array]) -> None:
    dtype, view = case
    widest = kernels.instruction_sets()[-1]
    for name in kernels.instruction_sets():
        kernels.use_instruction_set(name)
        found = kernels.summarise(view, dtype)
        assert_same_bits(found, row_of_twin(view, dtype))
    kernels.use_instruction_set(widest)
    assert_agrees_with_numpy(found, as_float64(np.array(view), dtype))


@pytest.mark.parametrize("count", [1000, 70_000, 300_000])
@pytest.mark.parametrize("threads", [1, 3])
def test_large_views_are_read_whole(instruction_set: str, count: int, threads: int, threads_restored: None) -> None:
    kernels.set_threads(threads)
    wide = np.asarray(ordinary("float32", count * 3)).reshape(-1, 30)
    for view in (wide[:, ::3], wide[:, 3:27], wide.T[::2], wide[::-1, ::-1]):
        found = kernels.summarise(view)
        assert_same_bits(found, row_of_twin(view, "float32"))
        assert_agrees_with_numpy(found, view.astype(np.float64))


def test_permuted_dense_memory_gives_the_bits_of_the_memory_in_order(instruction_set: str) -> None:
    array = np.asarray(ordinary("float32", 8 * 9 * 10 * 11)).reshape(8, 9, 10, 11)
    assert kernels.summarise(array.transpose(0, 2, 3, 1)) == kernels.summarise(array)
    assert kernels.summarise(array[::-1, :, ::-1]) == kernels.summarise(array)


def test_an_expanded_tensor_counts_every_repetition(instruction_set: str) -> None:
    row = np.array([1.0, -2.0, 0.0, math.inf], np.float32)
    found = kernels.summarise(np.broadcast_to(row, (1000, 4)))
    assert found == (4000, 0, 1000, 0, 1000, 1000, 2000, math.inf, -2.0, math.inf, math.inf)


def test_memory_may_overlap(instruction_set: str) -> None:
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(100, dtype=np.int32), 10)
    found = kernels.summarise(windows)
    assert (found.count, found.sum) == (windows.size, windows.sum())


def test_elements_need_no_alignment(instruction_set: str) -> None:
    array = ordinary("float32", 5000)
    buffer = np.zeros(array.nbytes + 1, np.uint8)
    buffer[1:] = array.view(np.uint8)
    unaligned = buffer[1:].view(np.float32)
    assert not unaligned.flags.aligned
    assert kernels.summarise(unaligned) == kernels.summarise(array)
    assert kernels.summarise(unaligned[::3]) == kernels.summarise(array[::3])
    assert kernels.summarise(unaligned[5]) == kernels.summarise(array[5])
    table = kernels.SummaryTable()
    table.add(unaligned.ctypes.data, DTYPE_CODES["float32"], unaligned.size)
    assert table.rows()[0].tolist() == list(kernels.summarise(array))
    table.add_strided(unaligned.ctypes.data, DTYPE_CODES["float32"], (), ())
    assert table.rows()[1].tolist() == list(kernels.summarise(array[:1]))


def test_other_byte_orders_are_converted() -> None:
    array = np.asarray(ordinary("float32", 100))
    assert kernels.summarise(array.astype(">f4")) == kernels.summarise(array)


def test_only_the_requested_field_of_a_record_array_is_read() -> None:
    records = np.zeros(50, np.dtype([("flag", "u1"), ("value", "<f4")]))
    records["value"] = np.arange(50)
    records["flag"] = 255
    assert kernels.summarise(records["value"]) == kernels.summarise(np.arange(50, dtype=np.float32))


def test_a_type_without_a_summary_is_named() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"complex64.*float32"):
        kernels.summarise(np.zeros(3, np.complex64))
    with pytest.raises(UnsupportedDtypeError, match=r"bfloat16.*4 bytes, not 2"):
        kernels.summarise(np.zeros(3, np.float32), "bfloat16")


BLOCK, CHUNK = reference.BLOCK, reference.CHUNK
HALVES = {"float16": 0x7C00, "bfloat16": 0x7F80}
"""The bits of infinity."""
NARROW = ("int8", "uint8", "int16", "uint16", "bool", *HALVES)


def agree(array: Array, dtype: str) -> None:
    assert_same_bits(kernels.summarise(array, dtype), row_of_twin(array, dtype))


def of_bits(bits: Array, dtype: str) -> Array:
    return bits.view("float16") if dtype == "float16" else bits


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_of_16_bits(instruction_set: str, dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    finite = bits[(bits & 0x7FFF) < HALVES[dtype]]
    shuffled = np.random.default_rng(1).permutation(finite)
    without_nan = np.random.default_rng(2).permutation(bits[(bits & 0x7FFF) <= HALVES[dtype]])
    for each in (bits, finite, shuffled, without_nan, np.tile(shuffled, 3)[:-5]):
        agree(of_bits(each, dtype), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sign", [0, 0x8000])
def test_numbers_of_one_sign_and_zeros_of_both(instruction_set: str, dtype: str, sign: int) -> None:
    bits = np.random.default_rng(3).integers(0, HALVES[dtype], CHUNK + 70).astype(np.uint16) | np.uint16(sign)
    zeros = np.full(100, sign, np.uint16)
    for each in (bits, zeros, np.concatenate([zeros, zeros ^ np.uint16(0x8000)]), np.concatenate([zeros, bits, zeros])):
        agree(of_bits(each, dtype), dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 5 * BLOCK + 3, CHUNK - 1, CHUNK, CHUNK + BLOCK + 1])
def test_nan_and_inf_are_counted_wherever_they_begin(instruction_set: str, dtype: str, place: int) -> None:
    infinity = HALVES[dtype]
    finite = np.random.default_rng(4).integers(0, infinity, CHUNK + 2 * BLOCK + 9).astype(np.uint16)
    finite ^= np.random.default_rng(5).integers(0, 2, finite.size).astype(np.uint16) << np.uint16(15)
    for first in (infinity, infinity | 0x8000, infinity | 1, 0xFFFF):
        bits = finite.copy()
        bits[place] = first
        agree(of_bits(bits, dtype), dtype)
        bits[place::3] = infinity | 0x8000
        bits[place::7] = infinity
        agree(of_bits(bits, dtype), dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "bool"])
@pytest.mark.parametrize("count", [1, BLOCK, CHUNK, CHUNK + 1, 2 * CHUNK + BLOCK + 3])
def test_totals_hold_the_largest_numbers(instruction_set: str, dtype: str, count: int) -> None:
    limits = [0, 1] if dtype == "bool" else [np.iinfo(dtype).min, np.iinfo(dtype).max, 0]
    for each in limits:
        agree(np.full(count, each, dtype), dtype)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(NARROW),
    st.sampled_from(kernels.instruction_sets()),
    st.integers(1, 200) | st.integers(1, 3 * BLOCK),
    st.integers(0, 70),
    st.integers(0, 2**32 - 1),
    st.integers(0, 16),
)
def test_any_bits_at_any_place(
    dtype: str, instruction_set: str, count: int, start: int, seed: int, cleared: int
) -> None:
    """Clears some of the upper bits of 16-bit values: otherwise nearly every tensor would contain NaN."""
    storage = {"bool": "u1", "float16": "u2", "bfloat16": "u2"}.get(dtype, dtype)
    numbers = np.random.default_rng(seed).integers(0, 1 << 16, start + count).astype(np.uint16)
    numbers &= np.uint16(0xFFFF >> cleared)
    array = of_bits(numbers.astype(storage)[start:], dtype)
    widest = kernels.instruction_sets()[-1]
    kernels.use_instruction_set(instruction_set)
    try:
        agree(array.view("bool") if dtype == "bool" else array, dtype)
        agree((array.view("bool") if dtype == "bool" else array)[::-3], dtype)
    finally:
        kernels.use_instruction_set(widest)


_EXACT_FIELDS = tuple(name for name in SUMMARY_FIELDS if not name.startswith("sum"))
_DTYPES = ("float16", "float32", "float64", "int8", "int32", "uint64", "bool")


def _statistics(array: npt.NDArray[Any]) -> SummaryStatistics:
    return SummaryStatistics(summarise(array))


@given(data=st.data(), dtype=st.sampled_from(_DTYPES))
def test_parts_have_the_statistics_of_the_whole(data: st.DataObject, dtype: str) -> None:
    whole = data.draw(arrays.arrays(dtype, st.integers(0, 60)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    found = merge_statistics(map(_statistics, np.split(whole, cuts)))
    expected = _statistics(whole)
    for name in _EXACT_FIELDS:
        assert np.array_equal(getattr(found.summary, name), getattr(expected.summary, name), equal_nan=True), name
    scale = float(np.abs(whole.astype(np.float64)).sum()) if len(whole) else 0.0
    for name in ("sum", "sum_squares"):
        one, other = getattr(found.summary, name), getattr(expected.summary, name)
        if math.isfinite(one) and math.isfinite(other):
            bound = scale if name == "sum" else other
            assert abs(one - other) <= 1e-14 * bound, name
        else:
            assert np.array_equal(one, other, equal_nan=True), name


def test_large_parts_that_cancel_keep_what_is_left() -> None:
    parts = [np.full(1000, 1e16), np.full(1000, 1.0), np.full(1000, -1e16)]
    assert merge_statistics(map(_statistics, parts))["avg"] == 1000 / 3000


def test_no_parts_are_no_elements() -> None:
    found, empty = merge_statistics([]), _statistics(np.empty(0, np.float32))
    assert {name: str(found[name]) for name in empty} == {name: str(empty[name]) for name in empty}


def test_what_cannot_be_merged_is_left_out() -> None:
    part = SummaryStatistics(summarise(np.arange(3.0)), {"md5": "0" * 32})
    assert "md5" not in merge_statistics([part, part])


def test_statistics_without_a_summary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"part 1 has no summary .* these statistics: max, min"):
        merge_statistics([_statistics(np.arange(3.0)), {"max": 1.0, "min": 0.0}])


def test_statistics_of_pairs_are_compared_row_by_row() -> None:
    a = [np.array([1.0, -2.0]), np.array([0.0, 0.0]), np.array([math.nan, 1.0]), np.array([math.inf, 1.0]), np.zeros(0)]
    b = [np.array([2.0, -2.0, 1.0]), np.array([0.0, 1.0]), np.array([math.nan]), np.array([5.0, 1.0]), np.zeros(0)]
    found = compare_summaries(np.array([summarise(each) for each in a]), np.array([summarise(each) for each in b]))
    assert found.max.tolist() == [1.0, math.inf, 0.0, math.inf, 0.0]
    assert found.min.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert found.avg.tolist() == [pytest.approx((1 / 3 + 0.5) / 0.5), math.inf, 0.0, math.inf, 0.0]
    assert found.l2norm[0] == pytest.approx((3 - math.sqrt(5)) / math.sqrt(5))
    assert dict(zip(COUNTED, found.counts[2].tolist(), strict=True)) == {
        **dict.fromkeys(COUNTED, 0),
        "count": -1,
        "positive": -1,
    }


def test_rows_of_a_table_are_taken_and_other_shapes_are_not() -> None:
    rows = SummaryTable().rows()
    assert compare_summaries(rows, rows).max.shape == (0,)
    with pytest.raises(ValueError, match=r"found \(0, 11\) and \(1, 11\)"):
        compare_summaries(rows, np.zeros((1, 11)))
