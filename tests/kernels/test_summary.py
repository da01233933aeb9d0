"""The summary kernels: compiled and twin, for every instruction set of this machine, against each other and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from opdump import kernels
from opdump.errors import UnsupportedDtypeError
from opdump.kernels import DTYPE_CODES, SUMMARY_FIELDS, Summary, reference
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


def test_a_field_of_a_record_array_is_read_alone() -> None:
    records = np.zeros(50, np.dtype([("flag", "u1"), ("value", "<f4")]))
    records["value"] = np.arange(50)
    records["flag"] = 255
    assert kernels.summarise(records["value"]) == kernels.summarise(np.arange(50, dtype=np.float32))


def test_a_type_without_a_summary_is_named() -> None:
    with pytest.raises(UnsupportedDtypeError, match=r"complex64.*float32"):
        kernels.summarise(np.zeros(3, np.complex64))
    with pytest.raises(UnsupportedDtypeError, match=r"bfloat16.*4 bytes, not 2"):
        kernels.summarise(np.zeros(3, np.float32), "bfloat16")
